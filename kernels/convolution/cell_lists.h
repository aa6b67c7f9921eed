/*
 * The source of a product of cells (warp_group.h): lists of cells, one for CELL units, of all positions of a sample and
 * of zeros between them, ROW_POSITIONS a row. It is a blob of cells or what pack_cells.cl made.
 *
 * Products count SAMPLE_POSITIONS positions a sample. Zeros right of a row are those left of the next one, and what a tap
 * reads after a sample's last row are the zeros before the next sample's first one: so all samples are one row.
 */

/* Any work-item may begin copies; those with neighbouring numbers are in different warps. */
#define COPYING_ITEM (LANE * (ITEMS / WARP_ITEMS) + WARP)

/*
 * Begins to copy lists, `first_list` and those after it of `lists`, `length` cells of each from cell `first`
 * of all samples on, `pitch` apart. Lists after the last one repeat it, as do samples.
 */
INLINE void copy_lists(__local cell_t *to, const int pitch, const int rows, const int length,
                       __global const cell_t *cells, const int first_list, const int lists, const size_t list,
                       const size_t sample, const int first, const int count, __local signal_t *signal)
{
    int n = first / SAMPLE_POSITIONS;
    int at = first % SAMPLE_POSITIONS;
    for (int done = 0; done < length;) {
        const int part = min(length - done, SAMPLE_POSITIONS - at);
        __global const cell_t *from = cells + min(n, count - 1) * sample + at;
        for (int i = COPYING_ITEM; i < rows; i += ITEMS) {
            copy_cells(to + i * pitch + done, from + min(first_list + i, lists - 1) * list, part, signal);
        }
        done += part;
        at = 0;
        n++;
    }
}

/*
 * Begins to copy lists of the source, `first_list` and those after it, `length` cells of each: a run, from cell `first` of all
 * samples on. The run's own first cell is `place` cells behind that of the lists.
 *
 * Where lists do not lie so in the source, which is a blob of cells then (SCATTERED), all work-items copy cell by cell what
 * pack_cells.cl would have made of it. In the blob `place` is row * pitch + column, and cell (y, x) of the run is cell
 * (y * SOURCE_STRIDE_Y + row, x * SOURCE_STRIDE_X + column), or 0 beyond a plane. Behind the `length` cells of a list are as
 * many of the next column, RUN_PHASES in all: neighbours in memory, which are read together. A warp copies 32 cells of every
 * SCATTERED_LISTS-th list: it knows their places for half of the lists, and twice as many warps have work. All work-items give
 * such a signal too (SOURCE_GIVERS), which expects none of these cells (EXPECTED).
 */
#if SCATTERED
#define SCATTERED_LISTS 2
#define SOURCE_GIVERS ITEMS
#define EXPECTED(cells) 0
INLINE void copy_source(__local cell_t *to, const int pitch, const int rows, const int length,
                        __global const cell_t *cells, const int first_list, const int place, const int first,
                        const int count, __local signal_t *signal)
{
    const int row = place / CELLS_UNIT_MEMORY_WIDTH;
    const int column = place % CELLS_UNIT_MEMORY_WIDTH;
    const int parts = (RUN_PHASES * length + WARP_ITEMS - 1) / WARP_ITEMS * SCATTERED_LISTS;
    for (int part = WARP; part < parts; part += ITEMS / WARP_ITEMS) {
        const int cell = part / SCATTERED_LISTS * WARP_ITEMS + LANE;
        const int phase = cell % RUN_PHASES;
        const int i = cell / RUN_PHASES;
        const int n = (first + i) / SAMPLE_POSITIONS;
        const int at = (first + i) % SAMPLE_POSITIONS - SOURCE_BASE;
        const int y = at / ROW_POSITIONS * SOURCE_STRIDE_Y + row;
        const int x = at % ROW_POSITIONS * SOURCE_STRIDE_X + column + phase;
        const bool is_there = at >= 0 && n < count && y < CELLS_UNIT_HEIGHT && x < CELLS_UNIT_WIDTH;
        const size_t from = is_there ? n * (size_t)SOURCE_SAMPLE
                                           + (CELLS_UNIT_MEMORY_HEIGHT_OFFSET + y) * CELLS_UNIT_MEMORY_WIDTH
                                           + CELLS_UNIT_MEMORY_WIDTH_OFFSET + x
                                     : 0;
        for (int k = part % SCATTERED_LISTS; k < rows && i < length; k += SCATTERED_LISTS) {
            copy_cell(to + k * pitch + phase * length + i,
                      cells + from + min(first_list + k, SOURCE_CELLS - 1) * (size_t)SOURCE_LIST, is_there);
        }
    }
    give_copied(signal);
}
#else
#define SOURCE_GIVERS 0
#define EXPECTED(cells) (cells)
INLINE void copy_source(__local cell_t *to, const int pitch, const int rows, const int length,
                        __global const cell_t *cells, const int first_list, const int place, const int first,
                        const int count, __local signal_t *signal)
{
    copy_lists(to, pitch, rows, length, cells + place, first_list, SOURCE_CELLS, SOURCE_LIST, SOURCE_SAMPLE,
               first, count, signal);
}
#endif

/* The lists of a blob, or of what was packed. */
#define LISTS_OF(blob, list) ((__global const cell_t *)(blob) + (size_t)(blob##_unit_offset) * (list))
