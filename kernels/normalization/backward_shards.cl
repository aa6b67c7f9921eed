/*
 * Batch normalization over all shards of a step, backward: the sums of the shards' gradients, in the shards' order.
 *
 * Arrays:
 *   DELTA_SUMS    read   (SHARDS, 2, UNITS): gradients of scale and shift
 *   SHARD_COUNTS  read   (SHARDS): samples; what a shard without any has left is of another batch
 *   TOTALS        write  (2, UNITS)
 * Scalars:
 *   UNITS
 *   SHARDS
 * Global:
 *   units  UNITS
 */
#include "blob.h"

__kernel void normalization_backward_shards(READ_ARRAY(real_t, delta_sums), READ_ARRAY(real_t, shard_counts),
                                            WRITE_ARRAY(real_t, totals), const int units, const int shards)
{
    const int z = get_global_id(2);
    if (z >= UNITS) {
        return;
    }
    accumulator_t scale = 0;
    accumulator_t shift = 0;
    for (int shard = 0; shard < SHARDS; shard++) {
        if (ARRAY(shard_counts)[shard] > 0) {
            __global const real_t *own = ARRAY(delta_sums) + (size_t)shard * 2 * UNITS;
            scale += own[z];
            shift += own[UNITS + z];
        }
    }
    ARRAY(totals)[z] = scale;
    ARRAY(totals)[UNITS + z] = shift;
}
