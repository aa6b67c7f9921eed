/*
 * Dropout, forward in training: output = kept ? input * SCALE : 0; may run in place.
 *
 * Blobs:
 *   INPUT  read
 *   OUTPUT write
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
 *   IN_PLACE      1: INPUT is OUTPUT
 *   GLOBAL_WIDTH  step along the blocks of a sample
 * Tunables:
 *   LANES  loops 8, lanes 1 of 1 2 4 8: random words are made for blocks of 4 * LANES elements
 * Global:
 *   width  blocks of elements, in the order (z, y, x)
 *   units  COUNT
 */
#include "blob.h"

#define ELEMENTS BLOB_ELEMENTS(OUTPUT)
#define FROM_TYPE input_t
#define TO_TYPE output_t
#define FROM_OFFSET(element) BLOB_ELEMENT_OFFSET(INPUT, element)
#define TO_OFFSET(element) BLOB_ELEMENT_OFFSET(OUTPUT, element)
/* A whole sample is one run where there is neither halo nor slack. */
#if INPUT_UNIT_MEMORY_ELEMENTS == INPUT_UNIT_ELEMENTS && OUTPUT_UNIT_MEMORY_ELEMENTS == OUTPUT_UNIT_ELEMENTS
#define RUN ELEMENTS
#else
#define RUN OUTPUT_UNIT_WIDTH
#endif
#define ACCUMULATE 0
#include "dropout/drop.h"

__kernel void dropout_forward(READ_BLOB(input), WRITE_BLOB(output), READ_ARRAY(uint, step), const int count,
                              const int first_sample)
{
    const int n = get_global_id(2);
    if (n >= count) {
        return;
    }
    drop_sample(input + BLOB_INDEX(INPUT, n, 0, 0, 0), output + BLOB_INDEX(OUTPUT, n, 0, 0, 0),
                first_sample + n, ARRAY(step));
}
