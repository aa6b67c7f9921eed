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
 *   COUNT         samples in this batch
 *   FIRST_SAMPLE  number of the first one within the step
 * Macros:
 *   THRESHOLD     the smallest random word that keeps its element
 *   SCALE         1 / (1 - rate)
 *   ORDINAL       number of this layer's random stream
 *   WHOLE         1: all elements of a sample go by the word of its first one
 *   ACCUMULATE    1: add to INPUT_DELTA
 *   IN_PLACE      1: OUTPUT_DELTA is INPUT_DELTA
 *   GLOBAL_WIDTH  step along the blocks of a sample
 * Tunables:
 *   LANES  loops 8, lanes 1 of 1 2 4 8: random words are made for blocks of 4 * LANES elements
 * Global:
 *   width  blocks of elements, in the order (z, y, x)
 *   units  COUNT
 */
#include "blob.h"

#define ELEMENTS BLOB_ELEMENTS(INPUT_DELTA)
#define FROM_TYPE output_delta_t
#define TO_TYPE input_delta_t
#define FROM_OFFSET(element) BLOB_ELEMENT_OFFSET(OUTPUT_DELTA, element)
#define TO_OFFSET(element) BLOB_ELEMENT_OFFSET(INPUT_DELTA, element)
/* A whole sample is one run where there is neither halo nor slack. */
#if OUTPUT_DELTA_UNIT_MEMORY_ELEMENTS == OUTPUT_DELTA_UNIT_ELEMENTS \
    && INPUT_DELTA_UNIT_MEMORY_ELEMENTS == INPUT_DELTA_UNIT_ELEMENTS
#define RUN ELEMENTS
#else
#define RUN INPUT_DELTA_UNIT_WIDTH
#endif
#include "dropout/drop.h"

__kernel void dropout_backward(READ_BLOB(output_delta), WRITE_BLOB(input_delta), READ_ARRAY(uint, step),
                               const int count, const int first_sample)
{
    const int n = get_global_id(2);
    if (n >= count) {
        return;
    }
    drop_sample(output_delta + BLOB_INDEX(OUTPUT_DELTA, n, 0, 0, 0),
                input_delta + BLOB_INDEX(INPUT_DELTA, n, 0, 0, 0), first_sample + n, ARRAY(step));
}
