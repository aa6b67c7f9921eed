/*
 * Adds the gradients of a batch to those of the batches before it in the same step.
 *
 * Arrays:
 *   GRADIENTS     read
 *   GRADIENT_SUM  update
 * Macros:
 *   TRAINABLE_ELEMENTS
 *   GLOBAL_WIDTH        work-items
 * Tunables:
 *   LANES loops 8, lanes 1 of 1 2 4 8 16: elements of a vector
 *   RUN loops 512, lanes 1 of 1 4 64 128 256 512 1024: vectors in a row that a work-item does
 * Global:
 *   width  runs
 */
#include "blob.h"
#include "optimizer/runs.h"

__kernel void optimizer_accumulate(READ_ARRAY(real_t, gradients), WRITE_ARRAY(real_t, gradient_sum))
{
    for (int run = get_global_id(0); run < RUNS; run += GLOBAL_WIDTH) {
        for (int i = RUN_BEGIN(run); i < RUN_END(run); i += LANES) {
            const vector_t before = VECTOR_LOAD(ARRAY(gradient_sum) + i);
            VECTOR_STORE(before + VECTOR_LOAD(ARRAY(gradients) + i), ARRAY(gradient_sum) + i);
        }
    }
}
