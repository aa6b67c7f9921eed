/*
 * Dropout, backward: input_delta = kept ? output_delta * SCALE : 0, with the random words of the forward
 * pass made again; may run in place.
 *
 * Blobs:
 *   OUTPUT_DELTA read
 *   INPUT_DELTA  update
 * Arrays:
 *   STEP  read  seed low, seed high, step
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   THRESHOLD     the smallest random word that keeps its element
 *   SCALE         1 / (1 - rate)
 *   ORDINAL       number of this layer's random stream
 *   ACCUMULATE    1: add to INPUT_DELTA
 *   IN_PLACE      1: OUTPUT_DELTA is INPUT_DELTA
 *   GLOBAL_WIDTH  step along the blocks of a sample
 * Tunables:
 *   LANES  cpu 8, gpu 1 of 1 2 4 8: random words are made for blocks of 4 * LANES elements
 * Global:
 *   width  blocks of elements, in the order (z, y, x)
 *   units  COUNT
 */
#include "blob.h"
#include "dropout/mask.h"

#define ELEMENTS (INPUT_DELTA_UNIT_COUNT * INPUT_DELTA_UNIT_ELEMENTS)
/* Elements that lie in a row in both blobs: a whole sample where there is neither halo nor slack. */
#if INPUT_DELTA_UNIT_MEMORY_ELEMENTS == INPUT_DELTA_UNIT_ELEMENTS \
    && OUTPUT_DELTA_UNIT_MEMORY_ELEMENTS == INPUT_DELTA_UNIT_ELEMENTS
#define RUN ELEMENTS
#else
#define RUN INPUT_DELTA_UNIT_WIDTH
#endif
#define AT(ROLE, n, element)                              \
    BLOB_INDEX(ROLE, n, (element) / ROLE##_UNIT_ELEMENTS, \
               (element) % ROLE##_UNIT_ELEMENTS / ROLE##_UNIT_WIDTH, (element) % ROLE##_UNIT_WIDTH)

__kernel void dropout_backward(READ_BLOB(output_delta), WRITE_BLOB(input_delta), READ_ARRAY(uint, step),
                               const int count)
{
    const int n = get_global_id(2);
    if (n >= count) {
        return;
    }
    for (int block = get_global_id(0) * BLOCK; block < ELEMENTS; block += GLOBAL_WIDTH * BLOCK) {
        uint words[BLOCK];
        dropout_words(words, block / 4, n, ARRAY(step));
        const int end = min(block + BLOCK, ELEMENTS);
        for (int element = block; element < end;) {
            const int run = min(RUN - element % RUN, end - element);
            const uint *random = words + (element - block);
            __global real_t *to = input_delta + AT(INPUT_DELTA, n, element);
            /* NOTE: one pointer in place, two restrict ones else, so that compilers vectorize both. */
#if IN_PLACE
            __global const real_t *from = to;
#else
            __global const real_t *from = output_delta + AT(OUTPUT_DELTA, n, element);
#endif
            for (int i = 0; i < run; i++) {
                const real_t result = random[i] >= THRESHOLD ? from[i] * SCALE : 0.0f;
#if ACCUMULATE
                to[i] += result;
#else
                to[i] = result;
#endif
            }
            element += run;
        }
    }
}
