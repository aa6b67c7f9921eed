/*
 * Batch normalization over all shards of a step, forward: the statistics of every unit in one shard, from those of its
 * planes.
 *
 * Arrays:
 *   PARTIALS  read   (3, UNITS, DEPTH, COUNT): mean, what its rounding lost, squares of a plane
 *   MOMENTS   write  (shards, 3, UNITS): the same of every unit
 * Scalars:
 *   COUNT  samples in this batch
 *   SHARD  whose they are
 *   UNITS
 *   CELLS  values in a plane
 * Macros:
 *   DEPTH        planes of a unit
 *   LOCAL_WIDTH  work-items that share a unit
 *   LOCAL_UNITS  units of a work-group
 * Global:
 *   width  work-items that share a unit
 *   units  UNITS
 * Local:
 *   width  all of the global width
 *   units  units
 */
#include "blob.h"
#include "normalization/moments.h"
#include "normalization/unit_planes.h"

__kernel void normalization_forward_shard(READ_ARRAY(accumulator_t, partials),
                                          WRITE_ARRAY(accumulator_t, moments), const int count,
                                          const int shard, const int units, const int cells)
{
    __local accumulator_t group[LOCAL_WIDTH * LOCAL_UNITS];
    const int z = get_global_id(2);
    /* NOTE: barriers need every work-item: those after the last unit repeat it and write nothing. */
    unit_moments_t found;
    moments_of_unit(&found, ARRAY(partials), min(z, UNITS - 1), UNITS, UNIT_PLANES, CELLS, group);
    if (z < UNITS && get_local_id(0) == 0) {
        __global accumulator_t *own = ARRAY(moments) + (size_t)shard * 3 * UNITS;
        own[z] = found.mean;
        own[UNITS + z] = found.lost;
        own[2 * UNITS + z] = found.squares;
    }
}
