/*
 * Weights for minimal filtering (convolution/winograd.h): transformed[point][group][depth][unit] = (G weight G^T)[point],
 * units side by side. What is behind the last unit or source unit is 0.
 *
 * Arrays:
 *   WEIGHT      read   OIHW
 *   TRANSFORMED write  (POINTS, GROUPS, DEPTH, UNITS)
 * Scalars:
 *   GROUPS
 *   GROUP_UNITS   units of a group: output units forward, input units backward
 *   GROUP_DEPTH   source units of a group
 *   UNITS         GROUP_UNITS or more
 *   DEPTH         GROUP_DEPTH or more
 *   UNIT_STRIDE   from unit to unit in WEIGHT
 *   DEPTH_STRIDE
 * Macros:
 *   CELLS         results of a patch on a side
 *   TAPS          of a filter on a side
 *   ROTATED       1: the filter turned by 180 degrees, for backward data
 * Moves:
 *   Winograd weights
 * Global:
 *   width   UNITS
 *   height  DEPTH
 *   units   groups
 */
#include "blob.h"
#include "convolution/filter.h"
#include "convolution/winograd.h"

__kernel void convolution_winograd_weight(READ_ARRAY(weight_t, weight), WRITE_ARRAY(real_t, transformed),
                                          const int groups, const int group_units, const int group_depth,
                                          const int units, const int depth, const int unit_stride,
                                          const int depth_stride)
{
    const int unit = get_global_id(0);
    const int row = get_global_id(1);
    const int group = get_global_id(2);
    real_t filter[TAPS * TAPS];
    load_filter(filter, FILTER(group, unit, row), unit < GROUP_UNITS && row < GROUP_DEPTH);
    real_t points[POINTS];
    TRANSFORM_WEIGHT(points, filter);
    __global real_t *to = ARRAY(transformed) + (group * DEPTH + row) * UNITS + unit;
#pragma unroll
    for (int point = 0; point < POINTS; point++) {
        to[point * (GROUPS * DEPTH * UNITS)] = points[point];
    }
}
