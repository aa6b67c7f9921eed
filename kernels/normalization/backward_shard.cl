/*
 * Batch normalization over all shards of a step, backward: puts the gradients of one shard beside those of the others.
 *
 * Arrays:
 *   SCALE_GRADIENT  read   (UNITS)
 *   SHIFT_GRADIENT  read   (UNITS)
 *   DELTA_SUMS      write  (shards, 2, UNITS): both
 * Scalars:
 *   SHARD  whose they are
 *   UNITS
 * Global:
 *   units  UNITS
 */
#include "blob.h"

__kernel void normalization_backward_shard(READ_ARRAY(real_t, scale_gradient),
                                           READ_ARRAY(real_t, shift_gradient),
                                           WRITE_ARRAY(real_t, delta_sums), const int shard, const int units)
{
    const int z = get_global_id(2);
    if (z < UNITS) {
        __global real_t *own = ARRAY(delta_sums) + (size_t)shard * 2 * UNITS;
        own[z] = ARRAY(scale_gradient)[z];
        own[UNITS + z] = ARRAY(shift_gradient)[z];
    }
}
