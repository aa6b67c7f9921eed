/*
 * Batch normalization over all shards of a step, forward: the statistics of every unit from those of the shards, in
 * their order, as normalization/forward_statistics makes them from those of planes. A shard may have no samples, but
 * not the first one.
 *
 * Arrays:
 *   MOMENTS           read    (SHARDS, 3, UNITS): mean, what its rounding lost, squares of a unit
 *   SHARD_COUNTS      read    (SHARDS): samples
 *   STATISTICS        write   (3, UNITS): mean, what its rounding lost, 1 / sqrt(variance + EPSILON)
 *   RUNNING_MEAN      update  (UNITS)
 *   RUNNING_VARIANCE  update  (UNITS)
 * Scalars:
 *   UNITS
 *   CELLS   values of a unit in a sample
 *   SHARDS
 * Macros:
 *   MOMENTUM  weight of this batch in the running statistics
 *   EPSILON   added to the variance
 *   LOCAL_WIDTH
 * Global:
 *   units  UNITS
 */
#include "blob.h"
#include "normalization/moments.h"

__kernel void normalization_forward_shards(READ_ARRAY(accumulator_t, moments),
                                           READ_ARRAY(real_t, shard_counts), WRITE_ARRAY(real_t, statistics),
                                           WRITE_ARRAY(real_t, running_mean),
                                           WRITE_ARRAY(real_t, running_variance), const int units,
                                           const int cells, const int shards)
{
    const int z = get_global_id(2);
    if (z >= UNITS) {
        return;
    }
    __global const accumulator_t *of_unit = ARRAY(moments) + z;
    __global const real_t *counts = ARRAY(shard_counts);
    const accumulator_t origin = of_unit[0];
    accumulator_t count = 0;
    accumulator_t sum = 0;
    for (int shard = 0; shard < SHARDS; shard++) {
        __global const accumulator_t *own = of_unit + (size_t)shard * 3 * UNITS;
        /* NOTE: what an empty shard has left is of another batch, and may be NaN. */
        if (counts[shard] > 0) {
            count += counts[shard];
            sum += counts[shard] * ((own[0] - origin) + own[UNITS]);
        }
    }
    const accumulator_t relative = sum / count;
    accumulator_t squares = 0;
    for (int shard = 0; shard < SHARDS; shard++) {
        __global const accumulator_t *own = of_unit + (size_t)shard * 3 * UNITS;
        if (counts[shard] > 0) {
            const accumulator_t deviation = (own[0] - origin) + own[UNITS] - relative;
            squares += own[2 * UNITS] + counts[shard] * CELLS * deviation * deviation;
        }
    }
    const accumulator_t mean = origin + relative;
    const unit_moments_t found = {mean, (origin - mean) + relative, squares};
    const accumulator_t values = count * CELLS;
    STORE_STATISTICS(z, found, values);
}
