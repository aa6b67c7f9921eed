/*
 * The gradient of the weights by minimal filtering (convolution/winograd.h): gradient = G^T (sum of products) G, over the
 * splits in their order.
 *
 * Arrays:
 *   PRODUCTS        read   (SPLITS, POINTS, GROUPS, UNITS, COLUMNS)
 *   WEIGHT_GRADIENT write  OIHW
 * Scalars:
 *   SPLITS
 *   GROUPS
 *   GROUP_INPUT_UNITS
 *   GROUP_OUTPUT_UNITS
 *   UNITS               GROUP_OUTPUT_UNITS or more
 *   COLUMNS             GROUP_INPUT_UNITS or more
 * Macros:
 *   CELLS               results of a patch on a side
 *   TAPS                of a filter on a side
 * Global:
 *   width   input units of a group
 *   height  output units of a group
 *   units   groups
 */
#include "blob.h"
#include "convolution/winograd.h"

__kernel void convolution_winograd_gradient(READ_ARRAY(real_t, products),
                                            WRITE_ARRAY(real_t, weight_gradient), const int splits,
                                            const int groups, const int group_input_units,
                                            const int group_output_units, const int units, const int columns)
{
    const int column = get_global_id(0);
    const int unit = get_global_id(1);
    const int group = get_global_id(2);
    if (column >= GROUP_INPUT_UNITS) {
        return;
    }
    __global const real_t *from = ARRAY(products) + (group * UNITS + unit) * COLUMNS + column;
    real_t points[POINTS];
#pragma unroll
    for (int point = 0; point < POINTS; point++) {
        points[point] = from[point * (GROUPS * UNITS * COLUMNS)];
    }
    for (int split = 1; split < SPLITS; split++) {
        from += POINTS * (GROUPS * UNITS * COLUMNS);
#pragma unroll
        for (int point = 0; point < POINTS; point++) {
            points[point] += from[point * (GROUPS * UNITS * COLUMNS)];
        }
    }
    real_t filter[TAPS * TAPS];
    TRANSFORM_GRADIENT(filter, points);
    __global real_t *to =
        ARRAY(weight_gradient)
        + ((group * GROUP_OUTPUT_UNITS + unit) * GROUP_INPUT_UNITS + column) * (TAPS * TAPS);
#pragma unroll
    for (int tap = 0; tap < TAPS * TAPS; tap++) {
        to[tap] = filter[tap];
    }
}
