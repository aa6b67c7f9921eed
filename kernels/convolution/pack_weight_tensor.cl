/*
 * Weights as a matrix for the kernels that use tensor cores (convolution/tensor.h), rounded to tf32. Row tap *
 * DEPTH_ROWS + depth has one tap of one source unit for all units. It lies in fragments of 8 rows and 16 units, in the
 * order in which the 32 work-items of a warp take them, four values each (tensor_core.h). Rows without a source unit and
 * units after the last one are 0.
 *
 * Arrays:
 *   WEIGHT read   OIHW
 *   PACKED write  (groups, TAPS * DEPTH_ROWS / 8, UNIT_COLUMNS / 16, 32, 4)
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
 *   width  columns * rows of a tap * groups
 */
#include "blob.h"
#include "combined.h"
#define ITEMS 1
#include "tensor_core.h"

COMBINABLE void convolution_pack_weight_tensor(READ_ARRAY(weight_t, weight), WRITE_ARRAY(real_t, packed),
                                               const int groups, const int units, const int depth,
                                               const int taps, const int depth_rows, const int unit_columns,
                                               const int unit_stride, const int depth_stride,
                                               const int group_stride OF_ITEM)
{
    /* Values of a row of fragments, and such rows. */
    const int value = WORK_ITEM % (UNIT_COLUMNS * 8);
    const int row = WORK_ITEM / (UNIT_COLUMNS * 8) % (DEPTH_ROWS / 8);
    const int group = WORK_ITEM / (UNIT_COLUMNS * DEPTH_ROWS);
    if (group >= GROUPS) {
        return;
    }
    const int lane = value / 4 % 32;
    const int unit = value / 128 * 16 + lane / 4 + value % 2 * 8;
    const int depth_row = row * 8 + lane % 4 + value / 2 % 2 * 4;
    __global const weight_t *from =
        ARRAY(weight) + group * GROUP_STRIDE + unit * UNIT_STRIDE + depth_row * DEPTH_STRIDE;
    __global real_t *to =
        ARRAY(packed) + (size_t)group * TAPS * DEPTH_ROWS * UNIT_COLUMNS + row * 8 * UNIT_COLUMNS + value;
    /* NOTE: all taps in one work-item, since they lie side by side in WEIGHT. */
    for (int tap = 0; tap < TAPS; tap++) {
        to[tap * DEPTH_ROWS * UNIT_COLUMNS] =
            unit < UNITS && depth_row < DEPTH ? round_tf32(READ_VALUE(from, tap)) : 0;
    }
}
