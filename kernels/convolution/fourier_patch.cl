/*
 * Spectra of the patches of a blob (convolution/fourier.h), of all samples side by side. Cells outside the data are 0, and
 * so is what is behind the last unit of a group or the last patch.
 *
 * Blobs, sizes as arguments:
 *   SOURCE read data alone
 * Arrays:
 *   TRANSFORMED write  (POINTS, GROUPS, 2 UNITS, 2 PATCHES), or BY_BATCH (POINTS, GROUPS, 2 PATCHES, 2 UNITS), of DELTA
 *                      (POINTS, GROUPS, 2 PATCHES, UNITS)
 * Scalars:
 *   COUNT  samples in this launch
 *   FIRST  the first one
 *   SAMPLE_PATCHES  patches of a sample
 *   ROW_PATCHES     side by side
 *   FIRST_Y         the first patch's first cell
 *   FIRST_X
 *   GROUPS
 *   GROUP_UNITS     units of a group
 *   UNITS           GROUP_UNITS or more
 *   PATCHES         patches of all samples, or more
 * Macros:
 *   CELLS           results of a patch on a side
 *   DELTA           0: all cells of a patch, for the right factor of a product; 1: CELLS x CELLS, for the left one
 *   BY_BATCH        1: units lie side by side, for sums over the patches of the batch
 * Moves:
 *   spectra of patches
 * Global:
 *   width   work-groups of LANES pairs of patches; BY_BATCH: of a pair of LANES units
 *   height  1
 *   units   groups * UNITS; BY_BATCH: groups
 */
#include "blob.h"
#include "convolution/fourier.h"

#if BY_BATCH
#define PAIR(lane) ((int)get_group_id(0) / (UNITS / LANES))
#define UNIT(lane) ((int)get_group_id(0) % (UNITS / LANES) * LANES + (lane))
#define GROUP (int)get_global_id(2)
#define MATRIX_ROWS (2 * PATCHES)
#define MATRIX_COLUMNS ((DELTA ? 1 : 2) * UNITS)
#define MATRIX_ROW(second) (4 * PAIR(ROW_LANE) + 2 * (second))
#define MATRIX_COLUMN(second) UNIT(ROW_LANE)
#define IMAGINARY UNITS
#else
#define PAIR(lane) ((int)get_group_id(0) * LANES + (lane))
#define UNIT(lane) ((int)get_global_id(2) % UNITS)
#define GROUP ((int)get_global_id(2) / UNITS)
#define MATRIX_ROWS (2 * UNITS)
#define MATRIX_COLUMNS (2 * PATCHES)
#define MATRIX_ROW(second) (2 * UNIT(ROW_LANE))
#define MATRIX_COLUMN(second) PAIR_COLUMN(PAIR(ROW_LANE), second)
#define IMAGINARY LANES
#endif

/* Stores a complex number: in the left factor of a product two rows, in the right one two of two columns. */
INLINE void store(__global real_t *to, const real_t real, const real_t imaginary, const int columns,
                  const int to_imaginary)
{
    to[0] = real;
    to[columns] = imaginary;
#if !DELTA
    to[to_imaginary] = imaginary;
    to[to_imaginary + columns] = -real;
#endif
}

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void
convolution_fourier_patch(READ_BLOB(source), WRITE_ARRAY(real_t, transformed), const int count,
                          const int first, const int sample_patches, const int row_patches, const int first_y,
                          const int first_x, const int groups, const int group_units, const int units,
                          const int patches)
{
    __local real_t staged[STAGED];
    real_t values[2][SIDE];
    const int unit = UNIT(COLUMN_LANE);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int p = 2 * PAIR(COLUMN_LANE) + i;
        const int y = FIRST_Y + p % SAMPLE_PATCHES / ROW_PATCHES * CELLS;
        const int x = FIRST_X + p % ROW_PATCHES * CELLS + COLUMN;
        const bool there = p < count * SAMPLE_PATCHES && unit < GROUP_UNITS && x >= 0 && x < SOURCE_UNIT_WIDTH
                           && (!DELTA || COLUMN < CELLS);
        __global const source_t *from =
            source + BLOB_INDEX(SOURCE, first + p / SAMPLE_PATCHES, GROUP * GROUP_UNITS + unit, y, x);
#pragma unroll
        for (int row = 0; row < SIDE; row++) {
            /* Not the halo's zeros alone: patches reach beyond it, and what is there may be NaN. */
            const bool row_there =
                there && y + row >= 0 && y + row < SOURCE_UNIT_HEIGHT && (!DELTA || row < CELLS);
            values[i][row] = row_there ? READ_VALUE(from, row * SOURCE_UNIT_MEMORY_WIDTH) : 0;
        }
    }
    transform(values[0], values[1]);
    columns_to_rows(values[0], staged);
    columns_to_rows(values[1], staged);
    transform(values[0], values[1]);
    const int matrix = MATRIX_ROWS * MATRIX_COLUMNS;
    __global real_t *to = ARRAY(transformed) + GROUP * matrix;
    __global real_t *first_number = to + MATRIX_ROW(0) * MATRIX_COLUMNS + MATRIX_COLUMN(0);
    __global real_t *second_number = to + MATRIX_ROW(1) * MATRIX_COLUMNS + MATRIX_COLUMN(1);
#pragma unroll
    for (int x = 0; x < SIDE; x++) {
        const real_t real = values[0][REVERSED(x)];
        const real_t imaginary = values[1][REVERSED(x)];
        if (IS_POINT(ROW, x)) {
            store(first_number + POINT(ROW, x) * (GROUPS * matrix), real, imaginary, MATRIX_COLUMNS,
                  IMAGINARY);
        }
        if (IS_POINT(OPPOSITE(ROW), OPPOSITE(x))) {
            store(second_number + POINT(OPPOSITE(ROW), OPPOSITE(x)) * (GROUPS * matrix), real, -imaginary,
                  MATRIX_COLUMNS, IMAGINARY);
        }
    }
}
