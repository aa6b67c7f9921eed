/*
 * Weights for minimal filtering (convolution/winograd.h): transformed[point][group][depth][unit] = (G weight G^T)[point],
 * units side by side. What is after the last unit or source unit is 0.
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
 * Combined:
 *   transformed weights
 * Global:
 *   width  UNITS * DEPTH * groups
 */
#include "blob.h"
#include "combined.h"
#include "convolution/filter.h"
#include "convolution/winograd.h"

COMBINABLE void convolution_winograd_weight(READ_ARRAY(weight_t, weight), WRITE_ARRAY(real_t, transformed),
                                            const int groups, const int group_units, const int group_depth,
                                            const int units, const int depth, const int unit_stride,
                                            const int depth_stride OF_ITEM)
{
    const int unit = WORK_ITEM % UNITS;
    const int row = WORK_ITEM / UNITS % DEPTH;
    const int group = WORK_ITEM / UNITS / DEPTH;
    if (group >= GROUPS) {
        return;
    }
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
