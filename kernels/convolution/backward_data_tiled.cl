/*
 * Convolution, backward, delta of the input, through local memory: one phase of a convolution of any stride. Input cells
 * (i * STRIDE_Y + PHASE_Y, j * STRIDE_X + PHASE_X) see the same subset of taps at fixed shifts of the output's delta
 * (see backward_data.cl), as a product of packed weights and the delta at all positions (convolution/tiled.h).
 *
 * Blobs:
 *   OUTPUT_DELTA read   with a halo of zeros
 *   INPUT_DELTA  update
 * Arrays:
 *   PACKED read   weights, see pack_weight.cl
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   GROUP_INPUT_UNITS
 *   GROUP_OUTPUT_UNITS
 *   FILTER_HEIGHT
 *   FILTER_WIDTH
 *   STRIDE_Y
 *   STRIDE_X
 *   PHASE_Y
 *   PHASE_X
 *   TAPS_Y          taps of this phase
 *   TAPS_X
 *   TAP_Y_FIRST     the first one's filter row
 *   TAP_Y_STEP
 *   TAP_X_FIRST
 *   TAP_X_STEP
 *   ROW_FIRST       the first one's shift in rows of the delta
 *   ROW_STEP
 *   COLUMN_FIRST
 *   COLUMN_STEP
 *   DEPTH_ROWS      rows a tap in PACKED
 *   UNIT_COLUMNS    columns of PACKED
 *   ACCUMULATE      1: add to INPUT_DELTA
 *   TILE_UNITS      input units a work-group
 *   TILE_COLUMNS    positions a work-group
 *   TILE_DEPTH      rows in local memory
 *   ITEM_UNITS      input units a work-item
 *   ITEM_COLUMNS    positions a work-item
 * Global:
 *   width   work-items a tile of positions * blocks of input units
 *   height  groups
 */
#include "blob.h"
#include "put.h"

#define DEPTH GROUP_OUTPUT_UNITS
#define SOURCE_PITCH OUTPUT_DELTA_UNIT_MEMORY_WIDTH
#define SOURCE_PLANE OUTPUT_DELTA_UNIT_MEMORY_ELEMENTS
#include "convolution/tiled.h"

#define BLOCKS (UNIT_COLUMNS / TILE_UNITS)
#define PHASE_HEIGHT ((INPUT_DELTA_UNIT_HEIGHT - PHASE_Y + STRIDE_Y - 1) / STRIDE_Y)
#define PHASE_WIDTH ((INPUT_DELTA_UNIT_WIDTH - PHASE_X + STRIDE_X - 1) / STRIDE_X)
#define POSITIONS (PHASE_HEIGHT * PHASE_WIDTH)

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void
convolution_backward_data_tiled(READ_BLOB(output_delta), WRITE_BLOB(input_delta), READ_ARRAY(real_t, packed),
                                const int count)
{
    __local real_t weights[2][TILE_DEPTH * TILE_UNITS] __attribute__((aligned(128)));
    __local real_t sources[STAGED_STEPS * TILE_COLUMNS] __attribute__((aligned(128)));
    const int group = get_global_id(1);
    const int first_unit = get_group_id(0) % BLOCKS * TILE_UNITS;
    const int first_position = get_group_id(0) / BLOCKS * TILE_COLUMNS;
    const int positions = count * POSITIONS;

    __global const real_t *columns[SOURCE_COLUMNS];
#pragma unroll
    for (int j = 0; j < SOURCE_COLUMNS; j++) {
        /* Positions past the last one repeat it; their sums are not stored. */
        const int p = min(first_position + (int)get_local_id(0) % TILE_COLUMNS + j * ITEMS, positions - 1);
        columns[j] = output_delta
                     + BLOB_INDEX(OUTPUT_DELTA, p / POSITIONS, group * GROUP_OUTPUT_UNITS,
                                  p % POSITIONS / PHASE_WIDTH, p % PHASE_WIDTH);
    }
    real_t sums[ITEM_UNITS][ITEM_COLUMNS];
    accumulate_tiles(sums, columns,
                     ARRAY(packed) + (size_t)group * (DEPTH_ROWS_ALL + 1) * UNIT_COLUMNS + first_unit,
                     weights, sources);

#pragma unroll
    for (int u = 0; u < ITEM_UNITS; u++) {
        stage(sums[u], sources);
#pragma unroll
        for (int j = 0; j < SOURCE_COLUMNS; j++) {
            const int p = first_position + (int)get_local_id(0) % TILE_COLUMNS + j * ITEMS;
            __global real_t *to = input_delta
                                  + BLOB_INDEX(INPUT_DELTA, p / POSITIONS, group * GROUP_INPUT_UNITS,
                                               p % POSITIONS / PHASE_WIDTH * STRIDE_Y + PHASE_Y,
                                               p % PHASE_WIDTH * STRIDE_X + PHASE_X);
#pragma unroll
            for (int i = 0; i < STAGED_ROWS; i++) {
                const int unit = first_unit + STAGED_UNIT(u, i);
                if (p < positions && unit < GROUP_INPUT_UNITS) {
                    PUT(sources[STAGED_AT(i, j)], to + unit * INPUT_DELTA_UNIT_MEMORY_ELEMENTS);
                }
            }
        }
    }
}
