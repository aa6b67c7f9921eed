/*
 * Weights as a matrix for the kernels that multiply tiles (convolution/tiled.h): packed[group][row][unit], where row
 * tap * DEPTH_ROWS + depth holds one tap of one source unit for all units side by side. Rows without a source unit,
 * the last row, and units after the last one are 0.
 *
 * Arrays:
 *   WEIGHT read   OIHW
 *   PACKED write  (groups, TAPS * DEPTH_ROWS + 1, UNIT_COLUMNS)
 * Scalars:
 *   GROUPS
 *   UNITS          units of a group: output units forward, input units backward
 *   DEPTH          source units of a group
 *   TAPS
 *   DEPTH_ROWS     rows a tap, DEPTH or more
 *   UNIT_COLUMNS   columns, UNITS or more
 *   UNIT_STRIDE    from unit to unit in WEIGHT
 *   DEPTH_STRIDE
 *   GROUP_STRIDE
 * Moves:
 *   packing weights
 * Combined:
 *   packed weights
 * Global:
 *   width  columns * rows of a tap, and one more, * groups
 */
#include "blob.h"
#include "combined.h"

COMBINABLE void convolution_pack_weight(READ_ARRAY(weight_t, weight), WRITE_ARRAY(real_t, packed),
                                        const int groups, const int units, const int depth, const int taps,
                                        const int depth_rows, const int unit_columns, const int unit_stride,
                                        const int depth_stride, const int group_stride OF_ITEM)
{
    const int unit = WORK_ITEM % UNIT_COLUMNS;
    const int row = WORK_ITEM / UNIT_COLUMNS % (DEPTH_ROWS + 1);
    const int group = WORK_ITEM / UNIT_COLUMNS / (DEPTH_ROWS + 1);
    if (group >= GROUPS) {
        return;
    }
    __global real_t *to =
        ARRAY(packed) + ((size_t)group * (TAPS * DEPTH_ROWS + 1) + row) * UNIT_COLUMNS + unit;
    if (row == DEPTH_ROWS) {
        to[(TAPS - 1) * DEPTH_ROWS * UNIT_COLUMNS] = 0;
        return;
    }
    /* NOTE: all taps in one work-item, since they lie side by side in WEIGHT. */
    __global const weight_t *from =
        ARRAY(weight) + group * GROUP_STRIDE + unit * UNIT_STRIDE + row * DEPTH_STRIDE;
    for (int tap = 0; tap < TAPS; tap++) {
        to[tap * DEPTH_ROWS * UNIT_COLUMNS] = unit < UNITS && row < DEPTH ? READ_VALUE(from, tap) : 0;
    }
}
