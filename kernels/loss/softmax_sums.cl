/*
 * What makes logits probabilities, for each position: the largest logit, and the sum of exp(logit - largest).
 *
 * Blobs:
 *   OUTPUT  read  logits
 * Arrays:
 *   SOFTMAX_SUMS  write  (COUNT, height, width, 2)
 * Macros:
 *   GLOBAL_WIDTH  work-items
 * Global:
 *   width  positions * CLASS_ITEMS
 *   units  COUNT
 */
#include "blob.h"
#include "loss/logits.h"

__kernel void loss_softmax_sums(SHARED_BLOB(output), WRITE_ARRAY(real_t, softmax_sums))
{
    __local accumulator_t group[LOCAL_WIDTH];
    const int n = get_global_id(2);
    __global real_t *sums = ARRAY(softmax_sums) + (size_t)n * OUTPUT_UNIT_ELEMENTS * 2;
    for (int i = get_global_id(0) / CLASS_ITEMS; i < OUTPUT_UNIT_ELEMENTS; i += GLOBAL_WIDTH / CLASS_ITEMS) {
        __global const output_t *logits =
            output + BLOB_INDEX(OUTPUT, n, 0, 0, 0) + BLOB_ELEMENT_OFFSET(OUTPUT, i);
        const real_t largest = largest_of(logits, group);
        int unused;
        const accumulator_t sum = sum_and_place(logits, largest, 0, &unused, group);
        if (FIRST_CLASS == 0) {
            sums[2 * i] = largest;
            sums[2 * i + 1] = sum;
        }
    }
}
