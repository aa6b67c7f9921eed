/*
 * Convolution, backward, gradient of the weights, on tensor cores that take cells of bfloat16 (warp_group.h):
 * gradient[o][i][tap] = sum over samples and positions of delta[o] * input[i] at the shift of the tap.
 *
 * The delta and the input are cells of the same positions (pack_cells.cl); at those that are no result's the delta is 0. A
 * cell is 8 rows of the product, or columns, at one position. A work-group makes the sums of TILE_UNITS output units,
 * TILE_COLUMNS input units and TAP_GROUPS * GROUP_TAPS taps, a warp group those of 64 output units and GROUP_TAPS taps.
 * Taps of one block read the same phase of the input (TAP_TABLE's run). Of TILE_DEPTH positions the input's cells, SPAN more of each, are copied once for all taps. STAGES of these lie in local
 * memory or are on their way there. Splits of the positions go to a partial sum each; gradient/reduce.cl adds them in a
 * fixed order.
 *
 * Arrays:
 *   CELLS    read   the input
 *   DELTAS   read   the output's delta
 *   PARTIALS write  (SPLITS, OIHW)
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   GROUP_INPUT_UNITS
 *   GROUP_OUTPUT_UNITS
 *   GROUPS
 *   FILTER_HEIGHT
 *   FILTER_WIDTH
 *   CELL              8
 *   SOURCE_CELLS      cells of a group in CELLS, whole tiles
 *   DELTA_CELLS       cells of a group in DELTAS, whole tiles
 *   SAMPLE_POSITIONS  positions of a sample, zeros included
 *   LEAD              positions of CELLS before the first sample
 *   TAIL              those after the last one
 *   DELTA_TAIL        positions of DELTAS after the last sample
 *   SPAN              from the first tap to the last
 *   FIRST_SHIFT       from a position to the first that its taps read
 *   TAP_TABLE         run, shift and number of each tap
 *   BLOCK_TABLE       of each block of taps the first one, and the end of its run
 *   SPLITS
 *   TILE_UNITS        output units a work-group
 *   TILE_COLUMNS      input units a work-group
 *   TILE_DEPTH        positions a step
 *   GROUP_TAPS        taps a warp group
 *   TAP_GROUPS        warp groups that have the same units and other taps
 *   STAGES            steps in local memory
 * Global:
 *   width  work-items a tile * tiles
 *   height SPLITS
 *   units  groups
 */
#include "blob.h"
#define UNIT_GROUPS (TILE_UNITS / 64)
#define ITEMS (GROUP_ITEMS * UNIT_GROUPS * TAP_GROUPS)
#define SUM_COLUMNS TILE_COLUMNS
#include "warp_group.h"

#define UNIT_TILES ((GROUP_OUTPUT_UNITS + TILE_UNITS - 1) / TILE_UNITS)
#define COLUMN_TILES ((GROUP_INPUT_UNITS + TILE_COLUMNS - 1) / TILE_COLUMNS)
#define RUN_POSITIONS (TILE_DEPTH + SPAN)
#define STAGE_DELTAS (TILE_UNITS / CELL * TILE_DEPTH)
#define STAGE_ELEMENTS (STAGE_DELTAS + TILE_COLUMNS / CELL * RUN_POSITIONS)
__constant int tap_table[][3] = TAP_TABLE;
__constant int block_table[][2] = BLOCK_TABLE;

INLINE void copy_step(__local cell_t *stage, __global const cell_t *deltas, const int delta_positions,
                      __global const cell_t *cells, const int positions, __local signal_t *signal)
{
    expect_cells(signal, STAGE_ELEMENTS);
    for (int i = 0; i < TILE_UNITS / CELL; i++) {
        copy_cells(stage + i * TILE_DEPTH, deltas + (size_t)i * delta_positions, TILE_DEPTH, signal);
    }
    for (int i = 0; i < TILE_COLUMNS / CELL; i++) {
        copy_cells(stage + STAGE_DELTAS + i * RUN_POSITIONS, cells + (size_t)i * positions, RUN_POSITIONS,
                   signal);
    }
}

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void
convolution_backward_weight_cells(READ_ARRAY(real_t, cells), READ_ARRAY(real_t, deltas),
                                  WRITE_ARRAY(real_t, partials), const int count)
{
    __local cell_t memory[STAGES * STAGE_ELEMENTS] __attribute__((aligned(128)));
    __local signal_t signals[STAGES];
    const int tile = get_group_id(0);
    const int first_unit = tile % UNIT_TILES * TILE_UNITS;
    const int first_column = tile / UNIT_TILES % COLUMN_TILES * TILE_COLUMNS;
    const int warp_group = WARP / GROUP_WARPS;
    const int own_unit = warp_group % UNIT_GROUPS * 64;
    const int block = tile / (UNIT_TILES * COLUMN_TILES);
    const int first_tap = block_table[block][0] + warp_group / UNIT_GROUPS * GROUP_TAPS;
    const int end_tap = block_table[block][1];
    const int run = tap_table[block_table[block][0]][0];
    const int split = get_global_id(1);
    const int group = get_global_id(2);

    const int delta_positions = count * SAMPLE_POSITIONS + DELTA_TAIL;
    const int positions = LEAD + count * SAMPLE_POSITIONS + TAIL;
    const int all_steps = (count * SAMPLE_POSITIONS + TILE_DEPTH - 1) / TILE_DEPTH;
    const int first_step = (int)((long)all_steps * split / SPLITS);
    const int steps = (int)((long)all_steps * (split + 1) / SPLITS) - first_step;
    __global const cell_t *own_deltas = (__global const cell_t *)ARRAY(deltas)
                                        + (size_t)(group * DELTA_CELLS + first_unit / CELL) * delta_positions
                                        + first_step * TILE_DEPTH;
    __global const cell_t *own_cells =
        (__global const cell_t *)ARRAY(cells)
        + (size_t)((run * GROUPS + group) * SOURCE_CELLS + first_column / CELL) * positions + LEAD
        + FIRST_SHIFT + first_step * TILE_DEPTH;
#define COPY_STEP(step)                                                                                     \
    copy_step(memory + (step) % STAGES * STAGE_ELEMENTS, own_deltas + (step) * TILE_DEPTH, delta_positions, \
              own_cells + (step) * TILE_DEPTH, positions, signals + (step) % STAGES)

    real_t sums[GROUP_TAPS][SUM_REGISTERS];
    UNROLL
    for (int j = 0; j < GROUP_TAPS; j++) {
        UNROLL
        for (int i = 0; i < SUM_REGISTERS; i++) {
            sums[j][i] = 0;
        }
    }
    /* Taps past the last one of the block repeat it; their sums are not stored. */
    int shifts[GROUP_TAPS];
    UNROLL
    for (int j = 0; j < GROUP_TAPS; j++) {
        shifts[j] = tap_table[min(first_tap + j, end_tap - 1)][1];
    }
    const bool copies = get_local_id(0) == 0;
    if (copies) {
        for (int i = 0; i < STAGES; i++) {
            init_signal(signals + i);
        }
        SHOW_SIGNALS();
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (copies) {
        for (int step = 0; step < STAGES - 1 && step < steps; step++) {
            COPY_STEP(step);
        }
    }
    for (int step = 0; step < steps; step++) {
        await_signal(signals + step % STAGES, step / STAGES);
        __local const cell_t *left = memory + step % STAGES * STAGE_ELEMENTS + own_unit / CELL * TILE_DEPTH;
        __local const cell_t *right = memory + step % STAGES * STAGE_ELEMENTS + STAGE_DELTAS;
        BEGIN_PRODUCTS();
        UNROLL
        for (int k = 0; k < TILE_DEPTH; k += 16) {
            UNROLL
            for (int j = 0; j < GROUP_TAPS; j++) {
                multiply_turned(sums[j], left + k, TILE_DEPTH, right + shifts[j] + k, RUN_POSITIONS);
            }
        }
        END_PRODUCTS();
        AWAIT_PRODUCTS(1);
        barrier(CLK_LOCAL_MEM_FENCE);
        /* All have made the products of the step before: what these read may be overwritten. */
        if (copies && step + STAGES - 1 < steps) {
            COPY_STEP(step + STAGES - 1);
        }
    }
    UNROLL
    for (int j = 0; j < GROUP_TAPS; j++) {
        await_sums(sums[j]);
    }

    __global real_t *results = ARRAY(partials)
                               + ((size_t)split * GROUPS + group) * GROUP_OUTPUT_UNITS * GROUP_INPUT_UNITS
                                     * (FILTER_HEIGHT * FILTER_WIDTH);
    UNROLL
    for (int j = 0; j < GROUP_TAPS; j++) {
        const int tap = tap_table[min(first_tap + j, end_tap - 1)][2];
        UNROLL
        for (int i = 0; i < SUM_REGISTERS; i++) {
            const int unit = first_unit + own_unit + WARP % GROUP_WARPS * 16 + LANE_ROW + i / 2 % 2 * 8;
            const int column = first_column + i / 4 * 8 + LANE_COLUMN * 2 + i % 2;
            if (first_tap + j < end_tap && unit < GROUP_OUTPUT_UNITS && column < GROUP_INPUT_UNITS) {
                results[(unit * GROUP_INPUT_UNITS + column) * (FILTER_HEIGHT * FILTER_WIDTH) + tap] =
                    sums[j][i];
            }
        }
    }
}
