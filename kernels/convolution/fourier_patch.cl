/*
 * Spectra of the patches of a blob (convolution/fourier.h), of all samples side by side. Cells outside the data are 0, and
 * so is what is after the last unit of a group or the last patch.
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
 *   width   work-groups of LANES patches; BY_BATCH: of a patch of LANES units
 *   height  1
 *   units   groups * UNITS; BY_BATCH: groups
 */
#include "blob.h"
#include "convolution/fourier.h"

#if BY_BATCH
#define NUMBER(lane) ((int)get_group_id(0) / (UNITS / LANES))
#define UNIT(lane) ((int)get_group_id(0) % (UNITS / LANES) * LANES + (lane))
#define GROUP (int)get_global_id(2)
#define MATRIX_ROWS (2 * PATCHES)
#define MATRIX_COLUMNS ((DELTA ? 1 : 2) * UNITS)
#define MATRIX_ROW (2 * NUMBER(ROW_LANE))
#define MATRIX_COLUMN UNIT(ROW_LANE)
#define IMAGINARY UNITS
#else
#define NUMBER(lane) ((int)get_group_id(0) * LANES + (lane))
#define UNIT(lane) ((int)get_global_id(2) % UNITS)
#define GROUP ((int)get_global_id(2) / UNITS)
#define MATRIX_ROWS (2 * UNITS)
#define MATRIX_COLUMNS (2 * PATCHES)
#define MATRIX_ROW (2 * UNIT(ROW_LANE))
#define MATRIX_COLUMN PATCH_COLUMN(NUMBER(ROW_LANE))
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
    real_t real[SIDE];
    real_t imaginary[SIDE];
    const int unit = UNIT(COLUMN_LANE);
    const int p = NUMBER(COLUMN_LANE);
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
        real[row] = row_there ? READ_VALUE(from, row * SOURCE_UNIT_MEMORY_WIDTH) : 0;
        imaginary[row] = 0;
    }
    transform(real, imaginary);
    exchange(real, staged, OF_COLUMN, OF_ROW);
    exchange(imaginary, staged, OF_COLUMN, OF_ROW);
    transform(real, imaginary);
    const int matrix = MATRIX_ROWS * MATRIX_COLUMNS;
    __global real_t *to = ARRAY(transformed) + GROUP * matrix + MATRIX_ROW * MATRIX_COLUMNS + MATRIX_COLUMN;
#pragma unroll
    for (int i = 0; i < SIDE; i++) {
        if (IS_POINT(ROW, i)) {
            store(to + POINT(ROW, i) * (GROUPS * matrix), real[REVERSED(i)], imaginary[REVERSED(i)],
                  MATRIX_COLUMNS, IMAGINARY);
        }
    }
}
