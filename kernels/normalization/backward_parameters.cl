/*
 * Batch normalization, backward, second stage: the sums of all planes of a unit, in the order of the samples:
 * shift_gradient = sum(delta), scale_gradient = sum(delta * normalized).
 *
 * Arrays:
 *   PARTIALS        read   (2, UNITS, DEPTH, COUNT): of every plane: sum(delta), sum(delta * normalized)
 *   SCALE_GRADIENT  write  (UNITS)
 *   SHIFT_GRADIENT  write  (UNITS)
 * Scalars:
 *   COUNT  samples in this batch
 *   UNITS
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
#define GROUP_SUM_TYPE accumulator_pair_t
#include "group_sum.h"
#include "normalization/unit_planes.h"

__kernel void normalization_backward_parameters(READ_ARRAY(accumulator_t, partials),
                                                WRITE_ARRAY(real_t, scale_gradient),
                                                WRITE_ARRAY(real_t, shift_gradient), const int count,
                                                const int units)
{
    __local accumulator_pair_t group[LOCAL_WIDTH * LOCAL_UNITS];
    const int z = get_global_id(2);
    /* NOTE: barriers need every work-item: those after the last unit repeat it and write nothing. */
    __global const accumulator_t *sums = ARRAY(partials) + (size_t)min(z, UNITS - 1) * UNIT_PLANES;
    __global const accumulator_t *products = sums + (size_t)UNITS * UNIT_PLANES;
    accumulator_pair_t both = 0;
    for (int n = get_local_id(0); n < UNIT_PLANES; n += LOCAL_WIDTH) {
        both += (accumulator_pair_t)(sums[n], products[n]);
    }
    const accumulator_pair_t total = GROUP_SUM(both, group);
    if (z < UNITS && get_local_id(0) == 0) {
        ARRAY(shift_gradient)[z] = total.s0;
        ARRAY(scale_gradient)[z] = total.s1;
    }
}
