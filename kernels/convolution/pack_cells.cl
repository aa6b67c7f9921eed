/*
 * A blob as lists of cells (cell_lists.h) for the tensor cores that take factors from local memory: a cell is 16 bytes,
 * CELL numbers, the units of one position, rounded to the type of products. Units after the last one of a group are 0.
 *
 * A sample has POSITIONS cells, ROW_POSITIONS a row, of which the BASE first ones are zeros. A blob that is read with a
 * stride is packed as its phases: cell (y, x) of phase (i, j) is cell (y * STRIDE_Y + i, x * STRIDE_X + j) of the blob.
 *
 * Where FOLDED is not 1, as many numbers of a row, STEP_X apart from there on, are side by side as units are: FOLDED of
 * the first unit, then of the next one.
 *
 * Blobs, sizes as arguments:
 *   SOURCE read data alone
 * Arrays:
 *   CELLS write  (COUNT, PHASES_Y, PHASES_X, GROUPS, UNIT_CELLS, POSITIONS) of 16 bytes
 * Scalars:
 *   COUNT           samples in this launch
 *   POSITIONS       of a sample
 *   ROW_POSITIONS
 *   BASE
 *   GROUPS
 *   GROUP_UNITS
 *   UNIT_CELLS      cells of the units of a group
 *   STRIDE_Y
 *   STRIDE_X
 *   FIRST_PHASE_Y   the first phase along each axis
 *   FIRST_PHASE_X   where FOLDED is not 1, the column that the first tap reads for result 0
 *   PHASES_X        phases side by side
 *   FOLDED          numbers of a row that lie as units do
 *   STEP_X          from one of these to the next
 *   LISTS           of a sample
 * Macros:
 *   CELL            8 for numbers of 16 bits, 4 for tf32
 *   HALVES          1: these are float16, else bfloat16
 * Moves:
 *   packing cells
 * Global:
 *   width   positions of the batch
 *   height  phases above one another
 *   units   GROUPS * UNIT_CELLS
 */
#include "blob.h"
#define ITEMS 1
#include "convolution/cell.h"

__kernel void convolution_pack_cells(READ_BLOB(source), WRITE_ARRAY(real_t, cells), const int count,
                                     const int positions, const int row_positions, const int base,
                                     const int groups, const int group_units, const int unit_cells,
                                     const int stride_y, const int stride_x, const int first_phase_y,
                                     const int first_phase_x, const int phases_x, const int folded,
                                     const int step_x, const int lists)
{
    const int n = (int)get_global_id(0) / POSITIONS;
    const int p = (int)get_global_id(0) % POSITIONS;
    if (n >= count) {
        return;
    }
    const int list = get_global_id(2);
    const int group = list / UNIT_CELLS;
    const int first = list % UNIT_CELLS * CELL;
    const int y = (p - BASE) / ROW_POSITIONS * STRIDE_Y + FIRST_PHASE_Y + (int)get_global_id(1);
    const int x = (p - BASE) % ROW_POSITIONS * STRIDE_X + FIRST_PHASE_X;
    const bool is_row = p >= BASE && y < SOURCE_UNIT_HEIGHT;
    __global const source_t *from = source + BLOB_INDEX(SOURCE, n, group * GROUP_UNITS / CELL_UNITS, y, 0);
    const int phase_lists = GROUPS * UNIT_CELLS;
    __global cell_t *to =
        (__global cell_t *)ARRAY(cells)
        + ((size_t)n * LISTS + (int)get_global_id(1) * PHASES_X * phase_lists + list) * POSITIONS + p;
    for (int phase = 0; phase < PHASES_X; phase++) {
        int unit = first / FOLDED;
        int tap = first % FOLDED;
        float values[CELL];
#pragma unroll
        for (int i = 0; i < CELL; i += CELL_UNITS) {
            const int at = x + phase + tap * STEP_X;
            number_t number = 0;
            if (is_row && at >= 0 && at < SOURCE_UNIT_WIDTH && unit < GROUP_UNITS) {
                number = READ_VALUE(from, unit / CELL_UNITS * SOURCE_UNIT_MEMORY_ELEMENTS + at);
            }
            PUT_NUMBER(number, values + i);
            tap++;
            if (tap == FOLDED) {
                tap = 0;
                unit += CELL_UNITS;
            }
        }
        to[(size_t)phase * phase_lists * POSITIONS] = cell_of(values);
    }
}
