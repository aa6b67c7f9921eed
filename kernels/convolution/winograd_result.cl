/*
 * Results of minimal filtering (convolution/winograd.h), forward and backward data: result = epilogue(A^T products A).
 * They leave through local memory, so that neighbours store neighbouring cells.
 *
 * Blobs, sizes as arguments:
 *   RESULT update
 * Arrays:
 *   PRODUCTS read  (POINTS, GROUPS, UNITS, PATCHES)
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
 *   TAPS            of a filter on a side
 *   ACCUMULATE      1: add to RESULT
 *   LOCAL_WIDTH     patches a work-group
 * Global:
 *   width   patches of the batch
 *   height  1
 *   units   groups * GROUP_UNITS
 */
#include "blob.h"
#include "convolution/result.h"
#include "convolution/winograd.h"
#include "put.h"

__kernel __attribute__((reqd_work_group_size(LOCAL_WIDTH, 1, 1))) void
convolution_winograd_result(WRITE_BLOB(result), EPILOGUE_BLOBS, READ_ARRAY(real_t, products), EPILOGUE_ARRAYS,
                            const int count, const int first, const int sample_patches, const int row_patches,
                            const int groups, const int group_units, const int units, const int patches)
{
    __local real_t staged[CELLS][LOCAL_WIDTH * CELLS] __attribute__((aligned(128)));
    const int item = get_local_id(0);
    const int unit = get_global_id(2);
    const int row = unit / GROUP_UNITS * UNITS + unit % GROUP_UNITS;
    __global const real_t *from = ARRAY(products) + row * PATCHES + get_global_id(0);
    const real_t bias = UNIT_BIAS(unit);
    real_t points[POINTS];
#pragma unroll
    for (int point = 0; point < POINTS; point++) {
        points[point] = from[point * (GROUPS * UNITS * PATCHES)];
    }
    real_t cells[CELLS * CELLS];
    TRANSFORM_RESULT(cells, points);
#pragma unroll
    for (int i = 0; i < CELLS; i++) {
#pragma unroll
        for (int j = 0; j < CELLS; j++) {
            staged[i][item * CELLS + j] = cells[i * CELLS + j];
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
    for (int j = 0; j < CELLS; j++) {
        const int cell = item + j * LOCAL_WIDTH;
        const int p = get_group_id(0) * LOCAL_WIDTH + cell / CELLS;
        const int y = p % SAMPLE_PATCHES / ROW_PATCHES * CELLS;
        const int x = p % ROW_PATCHES * CELLS + cell % CELLS;
        __global result_t *to = result + BLOB_INDEX(RESULT, first + p / SAMPLE_PATCHES, unit, y, x);
        if (p < count * SAMPLE_PATCHES && x < RESULT_UNIT_WIDTH) {
#pragma unroll
            for (int i = 0; i < CELLS; i++) {
                if (y + i < RESULT_UNIT_HEIGHT) {
                    const real_t value = CELL_EPILOGUE(BIASED(staged[i][cell], bias, unit),
                                                       first + p / SAMPLE_PATCHES, unit, y + i, x);
                    PUT(FINISHED(value, unit), to + i * RESULT_UNIT_MEMORY_WIDTH);
                }
            }
        }
    }
}
