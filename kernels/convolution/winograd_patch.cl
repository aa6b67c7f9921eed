/*
 * Patches of a blob for minimal filtering (convolution/winograd.h): transformed[point][group][unit][patch] =
 * (B^T source B)[point], or (A delta A^T)[point], patches of all samples side by side. Cells outside the data are 0,
 * and so is what is after the last unit of a group or the last patch.
 *
 * Blobs, sizes as arguments:
 *   SOURCE read data alone
 * Arrays:
 *   TRANSFORMED write  (POINTS, GROUPS, UNITS, PATCHES), or BY_BATCH (POINTS, GROUPS, PATCHES, UNITS)
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
 *   TAPS            of a filter on a side
 *   DELTA           0: B^T source B of overlapping patches, 1: A delta A^T of CELLS x CELLS cells
 *   BY_BATCH        1: units lie side by side, for sums over the patches of the batch
 *   LOCAL_WIDTH     patches a work-group
 *   LOCAL_UNITS     units a work-group
 * Moves:
 *   Winograd patches
 * Global:
 *   width   patches of the batch
 *   height  1
 *   units   groups * UNITS
 */
#include "blob.h"
#include "convolution/winograd.h"

/* Points that change hands at once. */
#define STAGED 4

__kernel void convolution_winograd_patch(READ_BLOB(source), WRITE_ARRAY(real_t, transformed), const int count,
                                         const int first, const int sample_patches, const int row_patches,
                                         const int first_y, const int first_x, const int groups,
                                         const int group_units, const int units, const int patches)
{
    const int p = get_global_id(0);
    const int group = (int)get_global_id(2) / UNITS;
    const int unit = (int)get_global_id(2) % UNITS;
    const int y = FIRST_Y + p % SAMPLE_PATCHES / ROW_PATCHES * CELLS;
    const int x = FIRST_X + p % ROW_PATCHES * CELLS;
    const bool there = p < count * SAMPLE_PATCHES && unit < GROUP_UNITS;
    __global const source_t *from =
        source + BLOB_INDEX(SOURCE, first + p / SAMPLE_PATCHES, group * GROUP_UNITS + unit, y, x);
    real_t cells[SIDE * SIDE];
#pragma unroll
    for (int i = 0; i < SIDE; i++) {
        const bool row_there = there && y + i >= 0 && y + i < SOURCE_UNIT_HEIGHT;
#pragma unroll
        for (int j = 0; j < SIDE; j++) {
            /* Not the halo's zeros alone: patches reach beyond it, and what is there may be NaN. */
            cells[i * SIDE + j] = row_there && x + j >= 0 && x + j < SOURCE_UNIT_WIDTH
                                      ? READ_VALUE(from, i * SOURCE_UNIT_MEMORY_WIDTH + j)
                                      : 0;
        }
    }
    real_t points[POINTS];
#if DELTA
    TRANSFORM_DELTA(points, cells);
#else
    TRANSFORM_SOURCE(points, cells);
#endif
#if BY_BATCH
    /* Neighbours have patches side by side, and store units side by side: what they have changes hands. */
    __local real_t staged[2][STAGED][LOCAL_UNITS][LOCAL_WIDTH + 1];
    const int item = get_local_id(2) * LOCAL_WIDTH + get_local_id(0);
    const int to_patch = item / LOCAL_UNITS;
    const int to_unit = item % LOCAL_UNITS;
    __global real_t *to = ARRAY(transformed) + (group * PATCHES + p - (int)get_local_id(0) + to_patch) * UNITS
                          + unit - (int)get_local_id(2) + to_unit;
#pragma unroll
    for (int point = 0; point < POINTS; point += STAGED) {
#pragma unroll
        for (int i = 0; i < STAGED; i++) {
            staged[point / STAGED % 2][i][get_local_id(2)][get_local_id(0)] = points[point + i];
        }
        barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
        for (int i = 0; i < STAGED; i++) {
            to[(point + i) * (GROUPS * PATCHES * UNITS)] = staged[point / STAGED % 2][i][to_unit][to_patch];
        }
    }
#else
    __global real_t *to = ARRAY(transformed) + (group * UNITS + unit) * PATCHES + p;
#pragma unroll
    for (int point = 0; point < POINTS; point++) {
        to[point * (GROUPS * UNITS * PATCHES)] = points[point];
    }
#endif
}
