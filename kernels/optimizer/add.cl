/*
 * Adds the gradients of a part of a batch to those of the parts before it, or those to the last part's.
 *
 * Arrays:
 *   SOURCE  read
 *   TARGET  update  target += source
 * Macros:
 *   TRAINABLE_ELEMENTS
 *   GLOBAL_WIDTH        work-items
 * Tunables:
 *   LANES cpu 8, gpu 1 of 1 2 4 8 16: elements of a vector
 *   RUN cpu 512, gpu 1 of 1 4 64 128 256 512 1024: vectors in a row that a work-item does
 * Global:
 *   width  runs
 */
#include "blob.h"
#include "optimizer/runs.h"

__kernel void optimizer_add(READ_ARRAY(real_t, source), WRITE_ARRAY(real_t, target))
{
    for (int run = get_global_id(0); run < RUNS; run += GLOBAL_WIDTH) {
        for (int i = RUN_BEGIN(run); i < RUN_END(run); i += LANES) {
            VECTOR_STORE(VECTOR_LOAD(ARRAY(target) + i) + VECTOR_LOAD(ARRAY(source) + i), ARRAY(target) + i);
        }
    }
}
