/*
 * Results of discrete Fourier transforms (convolution/fourier.h), forward and backward data, with their epilogue.
 *
 * Blobs, sizes as arguments:
 *   RESULT update
 * Arrays:
 *   PRODUCTS read  (POINTS, GROUPS, UNITS, 2 PATCHES)
 * Scalars:
 *   COUNT  samples in this launch
 *   FIRST  the first one
 *   SAMPLE_PATCHES  patches of a sample
 *   ROW_PATCHES     side by side
 *   GROUPS
 *   GROUP_UNITS     units of a group
 *   UNITS           GROUP_UNITS or more
 *   PATCHES         patches of all samples, or more
 * Macros:
 *   CELLS           results of a patch on a side
 *   ACCUMULATE      1: add to RESULT
 * Global:
 *   width   work-groups of LANES patches
 *   height  1
 *   units   groups * GROUP_UNITS
 */
#include "blob.h"
#include "convolution/result.h"
#include "convolution/fourier.h"
#include "put.h"

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void
convolution_fourier_result(WRITE_BLOB(result), EPILOGUE_BLOBS, READ_ARRAY(real_t, products), EPILOGUE_ARRAYS,
                           const int count, const int first, const int sample_patches, const int row_patches,
                           const int groups, const int group_units, const int units, const int patches)
{
    __local real_t staged[STAGED];
    const int unit = get_global_id(2);
    const int matrices = GROUPS * UNITS * 2 * PATCHES;
    __global const real_t *from = ARRAY(products)
                                  + (unit / GROUP_UNITS * UNITS + unit % GROUP_UNITS) * 2 * PATCHES
                                  + PATCH_COLUMN((int)get_group_id(0) * LANES + ROW_LANE);
    real_t real[SIDE];
    real_t imaginary[SIDE];
#pragma unroll
    for (int i = 0; i < SIDE; i++) {
        const bool is_point = IS_POINT(ROW, i);
        const int point = is_point ? POINT(ROW, i) : POINT(OPPOSITE(ROW), OPPOSITE(i));
        real[i] = from[point * matrices];
        imaginary[i] = is_point ? from[point * matrices + LANES] : -from[point * matrices + LANES];
    }
    transform(imaginary, real);
    exchange(real, staged, OF_ROW, OF_COLUMN);
    exchange(imaginary, staged, OF_ROW, OF_COLUMN);
    transform(imaginary, real);
    const real_t bias = UNIT_BIAS(unit);
    const int p = (int)get_group_id(0) * LANES + COLUMN_LANE;
    const int n = first + p / SAMPLE_PATCHES;
    const int y = p % SAMPLE_PATCHES / ROW_PATCHES * CELLS;
    const int x = p % ROW_PATCHES * CELLS + COLUMN;
    if (COLUMN >= CELLS || p >= count * SAMPLE_PATCHES || x >= RESULT_UNIT_WIDTH) {
        return;
    }
    __global result_t *to = result + BLOB_INDEX(RESULT, n, unit, y, x);
#pragma unroll
    for (int row = 0; row < CELLS; row++) {
        if (y + row < RESULT_UNIT_HEIGHT) {
            const real_t sum = real[REVERSED(row)] * (1.f / (SIDE * SIDE));
            const real_t value = CELL_EPILOGUE(BIASED(sum, bias, unit), n, unit, y + row, x);
            PUT(FINISHED(value, unit), to + row * RESULT_UNIT_MEMORY_WIDTH);
        }
    }
}
