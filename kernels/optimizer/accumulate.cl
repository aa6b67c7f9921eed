/*
 * Adds the gradients of a batch to those of the batches before it in the same step; or of several shards, along a tree
 * of neighbours, then neighbouring pairs, and so on.
 *
 * Arrays:
 *   GRADIENTS     read    of one shard behind the other
 *   GRADIENT_SUM  update
 * Scalars:
 *   FILLED_SHARDS  those with samples; others have no gradients
 *   TRAINABLE_ELEMENTS
 *   STRIDE        elements from one to the next
 *   GLOBAL_WIDTH  work-items
 * Macros:
 *   AT_ONCE       shards, a power of two
 * Tunables:
 *   LANES loops 8, lanes 1 of 1 2 4 8 16: elements of a vector
 *   RUN loops 512, lanes 1 of 1 4 64 128 256 512 1024: vectors in a row that a work-item does
 * Global:
 *   width  runs
 */
#include "blob.h"
#include "optimizer/runs.h"

__kernel void optimizer_accumulate(READ_ARRAY(real_t, gradients), WRITE_ARRAY(real_t, gradient_sum),
                                   const int filled_shards, const int trainable_elements, const int stride,
                                   const int global_width)
{
    for (int run = get_global_id(0); run < RUNS; run += GLOBAL_WIDTH) {
        for (int i = RUN_BEGIN(run); i < RUN_END(run); i += LANES) {
            const vector_t before = VECTOR_LOAD(ARRAY(gradient_sum) + i);
            vector_t sums[AT_ONCE];
            for (int shard = 0; shard < AT_ONCE; shard++) {
                sums[shard] = 0;
                if (shard < filled_shards) {
                    sums[shard] = VECTOR_LOAD(ARRAY(gradients) + (size_t)shard * STRIDE + i);
                }
            }
            for (int distance = 1; distance < AT_ONCE; distance *= 2) {
                for (int shard = 0; shard < AT_ONCE; shard += 2 * distance) {
                    sums[shard] += sums[shard + distance];
                }
            }
            VECTOR_STORE(before + sums[0], ARRAY(gradient_sum) + i);
        }
    }
}
