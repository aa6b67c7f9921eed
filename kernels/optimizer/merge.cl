/*
 * Adds one sum of gradients to another, and clears it for the sums to come.
 *
 * Arrays:
 *   MERGED  update
 *   SUM     update
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

__kernel void optimizer_merge(WRITE_ARRAY(real_t, merged), WRITE_ARRAY(real_t, sum),
                              const int trainable_elements, const int global_width)
{
    for (int run = get_global_id(0); run < RUNS; run += GLOBAL_WIDTH) {
        for (int i = RUN_BEGIN(run); i < RUN_END(run); i += LANES) {
            const vector_t before = VECTOR_LOAD(ARRAY(sum) + i);
            VECTOR_STORE(before + VECTOR_LOAD(ARRAY(merged) + i), ARRAY(sum) + i);
            VECTOR_STORE((vector_t)0, ARRAY(merged) + i);
        }
    }
}
