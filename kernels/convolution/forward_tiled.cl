/*
 * Convolution, forward, any stride, through local memory: output = epilogue(sum over input units and taps of weight *
 * input), as a product of packed weights and the input at all positions of the batch (convolution/tiled.h).
 *
 * Blobs:
 *   INPUT  read   its halo is the padding
 *   OUTPUT write
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
 *   DILATION_Y
 *   DILATION_X
 *   PAD_TOP
 *   PAD_LEFT
 *   DEPTH_ROWS      rows a tap in PACKED
 *   UNIT_COLUMNS    columns of PACKED
 *   TILE_UNITS      output units a work-group
 *   TILE_COLUMNS    positions a work-group
 *   TILE_DEPTH      rows in local memory
 *   ITEM_UNITS      output units a work-item
 *   ITEM_COLUMNS    positions a work-item
 * Global:
 *   width   work-items a tile of positions * blocks of output units
 *   height  groups
 */
#include "blob.h"
#include "convolution/epilogue.h"
#include "convolution/forward_taps.h"
#include "convolution/tiled.h"

#define BLOCKS (UNIT_COLUMNS / TILE_UNITS)
#define POSITIONS (OUTPUT_UNIT_HEIGHT * OUTPUT_UNIT_WIDTH)
/* The position, in the batch, of this work-item's column j. */
#define POSITION(j) (first_position + (int)get_local_id(0) % TILE_COLUMNS + (j) * ITEMS)
/* A unit of the tile, within its group: those past the last one repeat it. */
#define EXISTING(unit) min((int)(first_unit + (unit)), GROUP_OUTPUT_UNITS - 1)

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void
convolution_forward_tiled(READ_BLOB(input), WRITE_BLOB(output), EPILOGUE_BLOBS, READ_ARRAY(real_t, packed),
                          EPILOGUE_ARRAYS, const int count)
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
        const int p = min(POSITION(j), positions - 1);
        const int y = p % POSITIONS / OUTPUT_UNIT_WIDTH;
        const int x = p % OUTPUT_UNIT_WIDTH;
        columns[j] =
            input + BLOB_INDEX(INPUT, p / POSITIONS, group * GROUP_INPUT_UNITS, y * STRIDE_Y, x * STRIDE_X);
    }
    real_t sums[ITEM_UNITS][ITEM_COLUMNS];
    accumulate_tiles(sums, columns,
                     ARRAY(packed) + (size_t)group * (DEPTH_ROWS_ALL + 1) * UNIT_COLUMNS + first_unit,
                     weights, sources);

#if HAS_CELL_TERM
    /* Loaded all at once, ahead of the barriers. */
    real_t terms[ITEM_UNITS][SOURCE_COLUMNS][STAGED_ROWS];
#pragma unroll
    for (int u = 0; u < ITEM_UNITS; u++) {
#pragma unroll
        for (int j = 0; j < SOURCE_COLUMNS; j++) {
            const int p = min(POSITION(j), positions - 1);
            const int y = p % POSITIONS / OUTPUT_UNIT_WIDTH;
            const int x = p % OUTPUT_UNIT_WIDTH;
#pragma unroll
            for (int i = 0; i < STAGED_ROWS; i++) {
                const int unit = group * GROUP_OUTPUT_UNITS + EXISTING(STAGED_UNIT(u, i));
                terms[u][j][i] = CELL_TERM(p / POSITIONS, unit, y, x);
            }
        }
    }
#endif
#pragma unroll
    for (int u = 0; u < ITEM_UNITS; u++) {
        const unit_terms_t unit_terms = UNIT_TERMS(group * GROUP_OUTPUT_UNITS + EXISTING(ITEM_UNIT(u)));
#pragma unroll
        for (int c = 0; c < ITEM_COLUMNS; c++) {
            sums[u][c] = UNIT_EPILOGUE(sums[u][c], unit_terms);
        }
        stage(sums[u], sources);
#pragma unroll
        for (int j = 0; j < SOURCE_COLUMNS; j++) {
            const int p = POSITION(j);
            const int y = p % POSITIONS / OUTPUT_UNIT_WIDTH;
            const int x = p % OUTPUT_UNIT_WIDTH;
            __global real_t *to =
                output + BLOB_INDEX(OUTPUT, p / POSITIONS, group * GROUP_OUTPUT_UNITS, y, x);
#pragma unroll
            for (int i = 0; i < STAGED_ROWS; i++) {
                const int unit = first_unit + STAGED_UNIT(u, i);
                if (p < positions && unit < GROUP_OUTPUT_UNITS) {
                    real_t value = sources[STAGED_AT(i, j)];
#if HAS_CELL_TERM
                    value += terms[u][j][i];
#endif
                    to[unit * OUTPUT_UNIT_MEMORY_ELEMENTS] = ACTIVATE(value);
                }
            }
        }
    }
}
