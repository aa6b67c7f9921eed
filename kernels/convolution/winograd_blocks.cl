/*
 * Weights for minimal filtering (convolution/winograd.h) on processors: transformed[point][group][block][depth][unit] =
 * (G weight G^T)[point], the units of a block side by side. What is after the last unit is 0.
 *
 * Arrays:
 *   WEIGHT      read   OIHW
 *   TRANSFORMED write  (POINTS, GROUPS, UNITS / BLOCK, GROUP_DEPTH, BLOCK), points WEIGHTS_PITCH apart
 * Macros:
 *   GROUP_UNITS   units of a group: output units forward, input units backward
 *   GROUP_DEPTH   source units of a group
 *   UNITS         whole blocks: GROUP_UNITS or more
 *   BLOCK         units of a block
 *   UNIT_STRIDE   from unit to unit in WEIGHT
 *   DEPTH_STRIDE
 *   WEIGHTS_PITCH
 *   CELLS         results of a patch on a side
 *   TAPS          of a filter on a side
 *   ROTATED       1: the filter turned by 180 degrees, for backward data
 *   LANES         units in a vector, a divisor of BLOCK
 * Moves:
 *   Winograd weights
 * Global:
 *   width   GROUP_DEPTH
 *   height  blocks of units * groups
 */
#include "blob.h"
#include "vector.h"
#include "convolution/filter.h"
#include "convolution/winograd.h"

__kernel void convolution_winograd_blocks(READ_ARRAY(weight_t, weight), WRITE_ARRAY(real_t, transformed))
{
    const int row = get_global_id(0);
    const int block = get_global_id(1);
    const int group = block / (UNITS / BLOCK);
    const int first = block % (UNITS / BLOCK) * BLOCK;
    __global real_t *to = ARRAY(transformed) + (block * GROUP_DEPTH + row) * BLOCK;
    for (int unit = 0; unit < BLOCK; unit += LANES) {
        real_t filters[TAPS * TAPS][LANES];
        for (int lane = 0; lane < LANES; lane++) {
            real_t filter[TAPS * TAPS];
            load_filter(filter, FILTER(group, first + unit + lane, row), first + unit + lane < GROUP_UNITS);
            for (int tap = 0; tap < TAPS * TAPS; tap++) {
                filters[tap][lane] = filter[tap];
            }
        }
        vector_t weights[TAPS * TAPS];
        vector_t points[POINTS];
        for (int tap = 0; tap < TAPS * TAPS; tap++) {
            weights[tap] = VECTOR_LOAD(filters[tap]);
        }
        TRANSFORM_WEIGHT(points, weights);
#pragma unroll
        for (int point = 0; point < POINTS; point++) {
            VECTOR_STORE(points[point], to + unit + point * WEIGHTS_PITCH);
        }
    }
}
