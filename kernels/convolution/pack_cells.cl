/*
 * A blob as cells for the tensor cores that take factors from local memory (convolution/cell_product.h): a cell is 16
 * bytes, CELL units of one position, rounded to the type of products. Positions of all samples are one row: those of a
 * sample go along its rows, ROW_POSITIONS each, and zeros right of a row are those left of the next, zeros below a sample
 * those above the next one. LEAD positions of zeros come first, TAIL last. Units after the last one of a group are 0.
 *
 * A blob that is read with a stride is packed as its phases: cell (y, x) of phase (i, j) is cell (y * STRIDE_Y + i,
 * x * STRIDE_X + j) of the blob.
 *
 * Blobs, sizes as arguments:
 *   SOURCE read data alone
 * Arrays:
 *   CELLS write  (PHASES_Y, PHASES_X, GROUPS, UNIT_CELLS, LEAD + COUNT * POSITIONS + TAIL) of 16 bytes
 * Scalars:
 *   COUNT           samples in this launch
 *   POSITIONS       of a sample
 *   ROW_POSITIONS
 *   LEAD            at most POSITIONS
 *   TAIL
 *   GROUPS
 *   GROUP_UNITS
 *   UNIT_CELLS      cells of the units of a group
 *   STRIDE_Y
 *   STRIDE_X
 *   FIRST_PHASE_Y   the first phase along each axis
 *   FIRST_PHASE_X
 *   PHASES_X        phases side by side
 * Macros:
 *   CELL            8 for bfloat16, 4 for tf32
 * Moves:
 *   packing cells
 * Global:
 *   width   positions of the batch
 *   height  1
 *   units   phases * groups * UNIT_CELLS
 */
#include "blob.h"
#define ITEMS 1
#include "convolution/cell.h"

__kernel void convolution_pack_cells(READ_BLOB(source), WRITE_ARRAY(real_t, cells), const int count,
                                     const int positions, const int row_positions, const int lead,
                                     const int tail, const int groups, const int group_units,
                                     const int unit_cells, const int stride_y, const int stride_x,
                                     const int first_phase_y, const int first_phase_x, const int phases_x)
{
    const int p = get_global_id(0);
    const int row = get_global_id(2);
    const int phase = row / (GROUPS * UNIT_CELLS);
    const int group = row / UNIT_CELLS % GROUPS;
    const int unit = row % UNIT_CELLS * CELL;
    const int y = p % POSITIONS / ROW_POSITIONS * STRIDE_Y + FIRST_PHASE_Y + phase / PHASES_X;
    const int x = p % POSITIONS % ROW_POSITIONS * STRIDE_X + FIRST_PHASE_X + phase % PHASES_X;
    const bool is_there = p < count * POSITIONS && y < SOURCE_UNIT_HEIGHT && x < SOURCE_UNIT_WIDTH;
    __global const source_t *from =
        source + BLOB_INDEX(SOURCE, p / POSITIONS, group * GROUP_UNITS + unit, y, x);
    float values[CELL];
#pragma unroll
    for (int i = 0; i < CELL; i++) {
        values[i] =
            is_there && unit + i < GROUP_UNITS ? READ_VALUE(from, i * SOURCE_UNIT_MEMORY_ELEMENTS) : 0;
    }
    __global cell_t *to = (__global cell_t *)ARRAY(cells) + (size_t)row * (LEAD + count * POSITIONS + TAIL);
    if (p < LEAD) {
        to[p] = 0;
    }
    if (p < count * POSITIONS) {
        to[LEAD + p] = cell_of(values);
    }
    for (int i = p; i < TAIL; i += get_global_size(0)) {
        to[LEAD + count * POSITIONS + i] = 0;
    }
}
