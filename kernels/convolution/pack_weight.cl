/*
 * Weights as a matrix for the kernels that multiply tiles (convolution/tiled.h): packed[group][row][unit], where row
 * tap * DEPTH_ROWS + depth holds one tap of one source unit for all units side by side. For processors (forward_rows.cl)
 * there is a matrix for each PACKED_UNITS columns, and all taps of PACKED_DEPTH source units follow one another. Rows
 * without a source unit, the last row, and units after the last one are 0.
 *
 * Arrays:
 *   WEIGHT read   OIHW
 *   PACKED write  (groups, UNIT_COLUMNS / PACKED_UNITS, TAPS * DEPTH_ROWS + 1, PACKED_UNITS)
 * Scalars:
 *   GROUPS
 *   UNITS          units of a group: output units forward, input units backward
 *   DEPTH          source units of a group
 *   TAPS
 *   DEPTH_ROWS     rows a tap, DEPTH or more
 *   UNIT_COLUMNS   columns, UNITS or more
 *   PACKED_UNITS   columns of a matrix
 *   PACKED_DEPTH   source units of which one tap follows another
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
                                        const int depth_rows, const int unit_columns, const int packed_units,
                                        const int packed_depth, const int unit_stride, const int depth_stride,
                                        const int group_stride OF_ITEM)
{
    const int unit = WORK_ITEM % UNIT_COLUMNS;
    const int row = WORK_ITEM / UNIT_COLUMNS % (DEPTH_ROWS + 1);
    const int group = WORK_ITEM / UNIT_COLUMNS / (DEPTH_ROWS + 1);
    if (group >= GROUPS) {
        return;
    }
    const int matrix = group * (UNIT_COLUMNS / PACKED_UNITS) + unit / PACKED_UNITS;
    const int first =
        row == DEPTH_ROWS ? TAPS * row : row / PACKED_DEPTH * TAPS * PACKED_DEPTH + row % PACKED_DEPTH;
    __global real_t *to = ARRAY(packed) + ((size_t)matrix * (TAPS * DEPTH_ROWS + 1) + first) * PACKED_UNITS
                          + unit % PACKED_UNITS;
    if (row == DEPTH_ROWS) {
        *to = 0;
        return;
    }
    /* NOTE: all taps in one work-item, since they lie side by side in WEIGHT. */
    __global const weight_t *from =
        ARRAY(weight) + group * GROUP_STRIDE + unit * UNIT_STRIDE + row * DEPTH_STRIDE;
    for (int tap = 0; tap < TAPS; tap++) {
        to[tap * PACKED_DEPTH * PACKED_UNITS] = unit < UNITS && row < DEPTH ? READ_VALUE(from, tap) : 0;
    }
}
