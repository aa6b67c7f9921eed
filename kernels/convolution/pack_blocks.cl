/*
 * Weights as a matrix for backward data at a stride, its phases side by side (phase_positions.h): as pack_weight.cl, but
 * a tap is one of TAPS_Y x TAPS_X cells of the delta that all cells of a block read, and a unit of the matrix is a cell
 * of the block of one unit. Where no weight meets them there is 0.
 *
 * Arrays:
 *   WEIGHT read   OIHW
 *   PACKED write  (groups, TAPS_Y * TAPS_X * DEPTH_ROWS + 1, UNIT_COLUMNS)
 * Macros:
 *   GROUPS
 *   UNITS          input units of a group
 *   DEPTH          output units of a group
 *   DEPTH_ROWS     rows a tap, DEPTH or more
 *   UNIT_COLUMNS   columns, UNITS * BESIDE_Y * BESIDE_X or more
 *   UNIT_STRIDE    from unit to unit in WEIGHT
 *   DEPTH_STRIDE
 *   GROUP_STRIDE
 *   KERNEL_HEIGHT  of the filter
 *   KERNEL_WIDTH
 *   DILATION_Y
 *   DILATION_X
 *   STRIDE_Y
 *   STRIDE_X
 *   PAD_TOP
 *   PAD_LEFT
 *   PHASE_Y        the first block's place
 *   PHASE_X
 *   BESIDE_Y       cells of a block
 *   BESIDE_X
 *   TAPS_Y
 *   TAPS_X
 *   ROW_FIRST      the first tap's shift in rows of the delta; the others are each one less
 *   COLUMN_FIRST
 * Moves:
 *   packing weights
 * Global:
 *   width  columns * rows of a tap, and one more, * groups
 */
#include "blob.h"
#include "convolution/block_taps.h"

/* The way from a cell of the block to the place of filter cell 0 at tap j: tap * dilation, if there is such a tap. */
#define WAY_Y(cell, j) ((cell) + PHASE_Y + PAD_TOP - (ROW_FIRST - (j)) * STRIDE_Y)
#define WAY_X(cell, j) ((cell) + PHASE_X + PAD_LEFT - (COLUMN_FIRST - (j)) * STRIDE_X)

__kernel void convolution_pack_blocks(READ_ARRAY(weight_t, weight), WRITE_ARRAY(real_t, packed))
{
    const int item = get_global_id(0);
    const int column = item % UNIT_COLUMNS;
    const int row = item / UNIT_COLUMNS % (DEPTH_ROWS + 1);
    const int group = item / UNIT_COLUMNS / (DEPTH_ROWS + 1);
    if (group >= GROUPS) {
        return;
    }
    const int unit = column / (BESIDE_Y * BESIDE_X);
    __global real_t *to =
        ARRAY(packed) + ((size_t)group * (TAPS_Y * TAPS_X * DEPTH_ROWS + 1) + row) * UNIT_COLUMNS + column;
    if (row == DEPTH_ROWS) {
        to[(TAPS_Y * TAPS_X - 1) * DEPTH_ROWS * UNIT_COLUMNS] = 0;
        return;
    }
    __global const weight_t *from =
        ARRAY(weight) + group * GROUP_STRIDE + unit * UNIT_STRIDE + row * DEPTH_STRIDE;
    for (int tap = 0; tap < TAPS_Y * TAPS_X; tap++) {
        const int y = TAP_AT(WAY_Y(column / BESIDE_X % BESIDE_Y, tap / TAPS_X), DILATION_Y, KERNEL_HEIGHT);
        const int x = TAP_AT(WAY_X(column % BESIDE_X, tap % TAPS_X), DILATION_X, KERNEL_WIDTH);
        const bool there = unit < UNITS && row < DEPTH && y >= 0 && x >= 0;
        to[tap * DEPTH_ROWS * UNIT_COLUMNS] = there ? READ_VALUE(from, y * KERNEL_WIDTH + x) : 0;
    }
}
