/*
 * Weights as cells for the tensor cores that take factors from local memory (convolution/cell_product.h): for each
 * group, tile of units, step of the depth and tap, DEPTH_CELLS cells of the depth of each unit of the tile. Source units
 * and units after the last one are 0. Where FOLDED is not 1, each source unit is as many units of the depth: the taps of a
 * row (pack_cells.cl).
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

COMBINABLE void convolution_pack_weight_cells(READ_ARRAY(weight_t, weight), WRITE_ARRAY(real_t, packed),
                                              const int groups, const int units, const int depth,
                                              const int taps, const int folded, const int depth_steps,
                                              const int depth_cells, const int unit_columns,
                                              const int tile_units, const int unit_stride,
                                              const int depth_stride, const int group_stride OF_ITEM)
{
    const int unit = WORK_ITEM % UNIT_COLUMNS;
    const int cell = WORK_ITEM / UNIT_COLUMNS % (DEPTH_STEPS * DEPTH_CELLS);
    const int group = WORK_ITEM / (UNIT_COLUMNS * DEPTH_STEPS * DEPTH_CELLS);
    if (group >= GROUPS) {
        return;
    }
    __global const weight_t *from = ARRAY(weight) + group * GROUP_STRIDE + unit * UNIT_STRIDE;
    int places[CELL];
    int row = cell * CELL / FOLDED;
    int column = cell * CELL % FOLDED;
    for (int i = 0; i < CELL; i++) {
        places[i] = unit < UNITS && row < DEPTH ? row * DEPTH_STRIDE + column : -1;
        column++;
        if (column == FOLDED) {
            column = 0;
            row++;
        }
    }
    const int tile = group * (UNIT_COLUMNS / TILE_UNITS) + unit / TILE_UNITS;
    const int step = tile * DEPTH_STEPS + cell / DEPTH_CELLS;
    __global cell_t *to = (__global cell_t *)ARRAY(packed) + (size_t)step * TAPS * DEPTH_CELLS * TILE_UNITS
                          + cell % DEPTH_CELLS * TILE_UNITS + unit % TILE_UNITS;
    for (int tap = 0; tap < TAPS; tap++) {
        float values[CELL];
        for (int i = 0; i < CELL; i++) {
            values[i] = places[i] >= 0 ? READ_VALUE(from, places[i] + tap * FOLDED) : 0;
        }
        to[tap * DEPTH_CELLS * TILE_UNITS] = cell_of(values);
    }
}
