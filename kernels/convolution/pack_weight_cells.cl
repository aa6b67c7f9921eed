/*
 * Weights as cells for the tensor cores that take factors from local memory (convolution/cell_product.h): for each
 * group, tile of units, step of the depth and tap, DEPTH_CELLS cells of the depth of each unit of the tile. Source units
 * and units after the last one are 0. Where FOLDED is not 1, each source unit is as many units of the depth: the taps of a
 * row (pack_cells.cl).
 *
 * Of phases side by side (phase_positions.h) a unit of the matrix is a cell of the block, BESIDE_Y x BESIDE_X, of RESULT_CELL
 * units, which count first. A tap is a cell of the window that all cells of a block read: tap j of cell c is that of the
 * filter at place WAY + c + j * BESIDE, if there is one, else 0.
 *
 * Arrays:
 *   WEIGHT read   OIHW
 *   PACKED write  (groups, UNIT_COLUMNS / TILE_UNITS, DEPTH_STEPS, TAPS, DEPTH_CELLS, TILE_UNITS) of 16 bytes
 * Scalars:
 *   GROUPS
 *   UNITS          units of a group: output units forward, input units backward
 *   DEPTH          source units of a group
 *   TAPS           or rows of taps
 *   FOLDED         taps of a row that are units of the depth, or 1
 *   DEPTH_STEPS
 *   DEPTH_CELLS
 *   UNIT_COLUMNS   UNITS or more, whole tiles
 *   TILE_UNITS
 *   UNIT_STRIDE    from unit to unit in WEIGHT
 *   DEPTH_STRIDE
 *   GROUP_STRIDE
 *   RESULT_CELL    units of a cell of the result
 *   KERNEL_HEIGHT  of the filter
 *   KERNEL_WIDTH
 *   WINDOW_WIDTH   taps of a row in PACKED
 *   BESIDE_Y       1: the window is the filter, with a DILATION of 1 and a WAY of 0
 *   BESIDE_X
 *   DILATION_Y
 *   DILATION_X
 *   WAY_Y
 *   WAY_X
 * Macros:
 *   CELL           8 for numbers of 16 bits, 4 for tf32
 *   HALVES         1: these are float16, else bfloat16
 * Moves:
 *   packing weights
 * Combined:
 *   packed weights
 * Global:
 *   width  units * cells of the depth * groups
 */
#include "blob.h"
#include "combined.h"
#define ITEMS 1
#include "convolution/cell.h"
#include "convolution/block_taps.h"

COMBINABLE void convolution_pack_weight_cells(
    READ_ARRAY(weight_t, weight), WRITE_ARRAY(real_t, packed), const int groups, const int units,
    const int depth, const int taps, const int folded, const int depth_steps, const int depth_cells,
    const int unit_columns, const int tile_units, const int unit_stride, const int depth_stride,
    const int group_stride, const int result_cell, const int kernel_height, const int kernel_width,
    const int window_width, const int beside_y, const int beside_x, const int dilation_y,
    const int dilation_x, const int way_y, const int way_x OF_ITEM)
{
    const int column = WORK_ITEM % UNIT_COLUMNS;
    const int cell = WORK_ITEM / UNIT_COLUMNS % (DEPTH_STEPS * DEPTH_CELLS);
    const int group = WORK_ITEM / (UNIT_COLUMNS * DEPTH_STEPS * DEPTH_CELLS);
    if (group >= GROUPS) {
        return;
    }
    const int block = column / RESULT_CELL;
    const int unit = block / (BESIDE_Y * BESIDE_X) * RESULT_CELL + column % RESULT_CELL;
    const int y = block / BESIDE_X % BESIDE_Y + WAY_Y;
    const int x = block % BESIDE_X + WAY_X;
    __global const weight_t *from = ARRAY(weight) + group * GROUP_STRIDE + unit * UNIT_STRIDE;
    int places[CELL];
    int row = cell * CELL / FOLDED;
    int of_row = cell * CELL % FOLDED;
    for (int i = 0; i < CELL; i++) {
        places[i] = unit < UNITS && row < DEPTH ? row * DEPTH_STRIDE + of_row : -1;
        of_row++;
        if (of_row == FOLDED) {
            of_row = 0;
            row++;
        }
    }
    const int tile = group * (UNIT_COLUMNS / TILE_UNITS) + column / TILE_UNITS;
    const int step = tile * DEPTH_STEPS + cell / DEPTH_CELLS;
    __global cell_t *to = (__global cell_t *)ARRAY(packed) + (size_t)step * TAPS * DEPTH_CELLS * TILE_UNITS
                          + cell % DEPTH_CELLS * TILE_UNITS + column % TILE_UNITS;
    for (int tap = 0; tap < TAPS; tap++) {
        const int tap_y = TAP_AT(y + tap / WINDOW_WIDTH * BESIDE_Y, DILATION_Y, KERNEL_HEIGHT);
        const int tap_x = TAP_AT(x + tap % WINDOW_WIDTH * BESIDE_X, DILATION_X, KERNEL_WIDTH);
        const bool is_there = tap_y >= 0 && tap_x >= 0;
        float values[CELL];
        for (int i = 0; i < CELL; i++) {
            values[i] = is_there && places[i] >= 0
                            ? READ_VALUE(from, places[i] + (tap_y * KERNEL_WIDTH + tap_x) * FOLDED)
                            : 0;
        }
        to[tap * DEPTH_CELLS * TILE_UNITS] = cell_of(values);
    }
}
