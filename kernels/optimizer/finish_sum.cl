/*
 * Makes the sum of a step's gradients, times SUM_SCALE, the gradients, and clears the sum for the next step.
 *
 * Arrays:
 *   SUM_SCALE     read    one number
 *   GRADIENT_SUM  update
 *   GRADIENTS     write
 * Scalars:
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

__kernel void optimizer_finish_sum(READ_ARRAY(real_t, sum_scale), WRITE_ARRAY(real_t, gradient_sum),
                                   WRITE_ARRAY(real_t, gradients), const int trainable_elements,
                                   const int global_width)
{
    const real_t scale = ARRAY(sum_scale)[0];
    for (int run = get_global_id(0); run < RUNS; run += GLOBAL_WIDTH) {
        for (int i = RUN_BEGIN(run); i < RUN_END(run); i += LANES) {
            const vector_t sum = VECTOR_LOAD(ARRAY(gradient_sum) + i);
            // A sum of zeros is +0, whether it began with +0 or with one of them.
            VECTOR_STORE(scale * sum + (vector_t)0, ARRAY(gradients) + i);
            VECTOR_STORE((vector_t)0, ARRAY(gradient_sum) + i);
        }
    }
}
