/*
 * Weights as a matrix for the kernels that multiply tiles (convolution/tiled.h): packed[group][row][unit], where row
 * tap * DEPTH_ROWS + depth holds one tap of one source unit for all units side by side. Rows without a source unit,
 * the last row, and units behind the last one are 0.
 *
 * Arrays:
 *   WEIGHT read   OIHW
 *   PACKED write  (groups, TAPS * DEPTH_ROWS + 1, UNIT_COLUMNS)
 * Macros:
 *   UNITS          units of a group: output units forward, input units backward
 *   DEPTH          source units of a group
 *   TAPS
 *   DEPTH_ROWS     rows a tap, DEPTH or more
 *   UNIT_COLUMNS   columns, UNITS or more
 *   UNIT_STRIDE    from unit to unit in WEIGHT
 *   DEPTH_STRIDE
 *   GROUP_STRIDE
 * Global:
 *   width   UNIT_COLUMNS
 *   height  rows
 *   units   groups
 */
#include "blob.h"

__kernel void convolution_pack_weight(READ_ARRAY(real_t, weight), WRITE_ARRAY(real_t, packed))
{
    const int unit = get_global_id(0);
    const int row = get_global_id(1);
    const int group = get_global_id(2);
    const int tap = row / DEPTH_ROWS;
    const int depth = row % DEPTH_ROWS;
    if (unit >= UNIT_COLUMNS || tap > TAPS || (tap == TAPS && depth > 0)) {
        return;
    }
    real_t value = 0;
    if (unit < UNITS && depth < DEPTH && tap < TAPS) {
        value = ARRAY(weight)[group * GROUP_STRIDE + unit * UNIT_STRIDE + depth * DEPTH_STRIDE + tap];
    }
    ARRAY(packed)[(group * (TAPS * DEPTH_ROWS + 1) + row) * UNIT_COLUMNS + unit] = value;
}
