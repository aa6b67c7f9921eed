/*
 * The loop of dropout over a sample, the same in both directions: to = kept ? from * SCALE : 0, where either each
 * element has a random word of its own, or the WHOLE sample goes by that of its first one. A kernel defines before: ELEMENTS of a sample, RUN (elements that lie in a row in both blobs), and where an element
 * lies after the sample's first one: FROM_OFFSET(element), TO_OFFSET(element); and FROM_TYPE, TO_TYPE.
 */
#include "in_place.h"
#include "put.h"
#include "dropout/mask.h"

INLINE void drop_sample(__global const FROM_TYPE *restrict input, __global TO_TYPE *restrict output,
                        const int n, __global const uint *step)
{
    for (int block = get_global_id(0) * BLOCK; block < ELEMENTS; block += GLOBAL_WIDTH * BLOCK) {
        uint words[BLOCK];
        dropout_words(words, WHOLE ? 0 : block / 4, n, step);
        const int end = min(block + BLOCK, ELEMENTS);
        for (int element = block; element < end;) {
            const int run = min(RUN - element % RUN, end - element);
            const uint *random = words + (WHOLE ? 0 : element - block);
            __global TO_TYPE *to = output + TO_OFFSET(element);
            __global const FROM_TYPE *from = IN_PLACE_OF(to, input + FROM_OFFSET(element));
            for (int i = 0; i < run; i++) {
                PUT(random[WHOLE ? 0 : i] >= THRESHOLD ? READ_VALUE(from, i) * SCALE : (number_t)(0.0f),
                    to + i);
            }
            element += run;
        }
    }
}
