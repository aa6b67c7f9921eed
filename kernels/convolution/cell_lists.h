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
 * of all samples on. Lists after the last one repeat it, as do samples.
 */
INLINE void copy_lists(__local cell_t *to, const int rows, const int length, __global const cell_t *cells,
                       const int first_list, const int lists, const size_t list, const size_t sample,
                       const int first, const int count, __local signal_t *signal)
{
    int n = first / SAMPLE_POSITIONS;
    int at = first % SAMPLE_POSITIONS;
    for (int done = 0; done < length;) {
        const int part = min(length - done, SAMPLE_POSITIONS - at);
        __global const cell_t *from = cells + min(n, count - 1) * sample + at;
        for (int i = COPYING_ITEM; i < rows; i += ITEMS) {
            copy_cells(to + i * length + done, from + min(first_list + i, lists - 1) * list, part, signal);
        }
        done += part;
        at = 0;
        n++;
    }
}

/* The lists of a blob, or of what was packed. */
#define LISTS_OF(blob, list) ((__global const cell_t *)(blob) + (size_t)(blob##_unit_offset) * (list))
