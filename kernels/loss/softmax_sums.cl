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
 *   width  positions
 *   units  COUNT
 */
#include "blob.h"
#include "loss/logits.h"

__kernel void loss_softmax_sums(SHARED_BLOB(output), WRITE_ARRAY(real_t, softmax_sums))
{
    const int n = get_global_id(2);
    __global real_t *sums = ARRAY(softmax_sums) + (size_t)n * OUTPUT_UNIT_ELEMENTS * 2;
    for (int i = get_global_id(0); i < OUTPUT_UNIT_ELEMENTS; i += GLOBAL_WIDTH) {
        __global const output_t *logits =
            output + BLOB_INDEX(OUTPUT, n, 0, 0, 0) + BLOB_ELEMENT_OFFSET(OUTPUT, i);
        const real_t largest = largest_of(logits);
        int unused;
        sums[2 * i] = largest;
        sums[2 * i + 1] = sum_and_place(logits, largest, 0, &unused);
    }
}
