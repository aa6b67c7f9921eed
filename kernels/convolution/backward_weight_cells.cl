/*
 * Convolution, backward, gradient of the weights, on tensor cores that take cells (warp_group.h):
 * gradient[o][i][tap] = sum over samples and positions of delta[o] * input[i] at the shift of the tap.
 *
 * The delta and the input are cells of the same positions (pack_cells.cl); at those that are no result's the delta is 0. A
 * cell is CELL rows of the product, or columns, at one position. A work-group makes the sums of TILE_UNITS output units,
 * TILE_COLUMNS columns (input units) and TAP_GROUPS * GROUP_TAPS taps, a warp group those of 64 output units and GROUP_TAPS
 * taps.
 * Taps of one block read the same run of the input (TAP_TABLE). Of TILE_DEPTH positions the input's cells, SPAN
 * more of each, are copied once for all taps. STAGES of these lie in local memory or are on their way there. Where FOLDED is
 * not 1, an input unit has as many columns, the taps of a row (pack_cells.cl). Splits of the positions go to a partial sum
 * each; gradient/reduce.cl adds them in a fixed order.
 *
 * A work-item holds its part of the delta's rows in registers, for the products of all its taps. Beginning a copy takes a
 * warp as long as a small product does, so all warps begin some, while their products go on.
 *
 * Blobs:
 *   CELLS  read  the input, see cell_lists.h
 *   DELTAS read  the output's delta
 * Arrays:
 *   PARTIALS write  (SPLITS, OIHW)
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   GROUP_INPUT_UNITS
 *   GROUP_OUTPUT_UNITS
 *   GROUPS
 *   FILTER_HEIGHT
 *   FILTER_WIDTH
 *   CELL              8 for numbers of 16 bits, 4 for tf32
 *   HALVES            1: its numbers are float16, else bfloat16
 *   SOURCE_CELLS      lists of a group in CELLS
 *   SOURCE_LIST       cells from list to list
 *   SOURCE_SAMPLE     cells from sample to sample
 *   DELTA_CELLS       the same of DELTAS
 *   DELTA_LIST
 *   DELTA_SAMPLE
 *   SAMPLE_POSITIONS  positions of a sample, zeros included
 *   ROW_POSITIONS     positions of a row
 *   SPAN              from the first tap to the last
 *   RUN_PHASES        phases of the source side by side in a run
 *   SCATTERED         1: the source's cells are copied one by one, see cell_lists.h
 *   SOURCE_STRIDE_Y   from row to row of a run, in the source
 *   SOURCE_STRIDE_X
 *   SOURCE_BASE       the cell of the first position
 *   FIRST_CELL        the first cell that the taps of the first position read
 *   FIRST_DELTA       the delta's first cell
 *   RUN_TABLE         place and first position of each run
 *   TAP_TABLE         run, shift and number of each tap, or of each row of taps
 *   BLOCK_TABLE       of each block of taps the first one, and the end of its run
 *   FOLDED            taps of a row that are columns of an input unit, or 1
 *   SPLITS
 *   TILE_UNITS        output units a work-group
 *   TILE_COLUMNS      columns a work-group: input units, times FOLDED
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
#if CELL == 4 && SUM_COLUMNS % 64
#error "of tf32 half of the columns must be whole fragments of 32"
#endif
#include "convolution/cell_lists.h"

#define UNIT_TILES ((GROUP_OUTPUT_UNITS + TILE_UNITS - 1) / TILE_UNITS)
#define COLUMNS (GROUP_INPUT_UNITS * FOLDED)
#define COLUMN_TILES ((COLUMNS + TILE_COLUMNS - 1) / TILE_COLUMNS)
#define RUN_POSITIONS (TILE_DEPTH + SPAN)
#define DELTA_PITCH LIST_PITCH(TILE_DEPTH)
#define RUN_PITCH LIST_PITCH(RUN_PHASES *RUN_POSITIONS)
#define STAGE_DELTAS (TILE_UNITS / CELL * DELTA_PITCH)
#define STAGE_LISTS (LISTS * RUN_PITCH)
/* NOTE: a product has columns beyond the last list too, of whatever lies there: their sums are not stored. */
#define TILE_LISTS (TILE_COLUMNS / CELL)
#define LISTS (SOURCE_CELLS < TILE_LISTS ? SOURCE_CELLS : TILE_LISTS)
#define COPIED_ELEMENTS (STAGES * STAGE_ELEMENTS + (TILE_LISTS - LISTS) * RUN_PITCH)
/* Units whose sums leave together, and the sums of one; the pitch keeps most rows of lanes in different banks. */
#define STAGED_UNITS 64
#define BLOCK_TAPS (TAP_GROUPS * GROUP_TAPS)
#define STAGED_SUMS (TILE_COLUMNS * BLOCK_TAPS)
#define STAGED_PITCH (STAGED_SUMS + 5)
#define STAGED_ELEMENTS (STAGED_UNITS * STAGED_PITCH / 4)
#define ALL_ELEMENTS (COPIED_ELEMENTS > STAGED_ELEMENTS ? COPIED_ELEMENTS : STAGED_ELEMENTS)
#define STAGE_ELEMENTS (STAGE_DELTAS + STAGE_LISTS)
__constant int run_table[][2] = RUN_TABLE;
__constant int tap_table[][3] = TAP_TABLE;
__constant int block_table[][2] = BLOCK_TABLE;

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void
convolution_backward_weight_cells(READ_BLOB(cells), READ_BLOB(deltas), WRITE_ARRAY(real_t, partials),
                                  const int count)
{
    __local cell_t memory[ALL_ELEMENTS] __attribute__((aligned(128)));
    /* That a step has come, and that all have made its products. */
    __local signal_t signals[2 * STAGES];
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

    const int end = count * SAMPLE_POSITIONS;
    const int all_steps = (end + TILE_DEPTH - 1) / TILE_DEPTH;
    const int first_step = (int)((long)all_steps * split / SPLITS);
    const int steps = (int)((long)all_steps * (split + 1) / SPLITS) - first_step;
    __global const cell_t *own_deltas =
        LISTS_OF(deltas, DELTA_LIST) + (size_t)group * DELTA_CELLS * DELTA_LIST;
    __global const cell_t *own_cells =
        LISTS_OF(cells, SOURCE_LIST) + (size_t)group * SOURCE_CELLS * SOURCE_LIST;
#define STAGE_OF(step) (memory + (step) % STAGES * STAGE_ELEMENTS)
#define POSITION_OF(step) ((first_step + (step)) * TILE_DEPTH)
#define CAME(step) (signals + (step) % STAGES)
#define MADE(step) (signals + STAGES + (step) % STAGES)
/* Begins to copy the cells of a step. */
#define COPY_STEP(step)                                                                                 \
    do {                                                                                                \
        if (COPYING_ITEM == 0) {                                                                        \
            expect_cells(CAME(step), TILE_UNITS / CELL * TILE_DEPTH + EXPECTED(LISTS * RUN_POSITIONS)); \
        }                                                                                               \
        copy_lists(STAGE_OF(step), DELTA_PITCH, TILE_UNITS / CELL, TILE_DEPTH, own_deltas,              \
                   first_unit / CELL, DELTA_CELLS, DELTA_LIST, DELTA_SAMPLE,                            \
                   POSITION_OF(step) + FIRST_DELTA, count, CAME(step));                                 \
        copy_source(STAGE_OF(step) + STAGE_DELTAS, RUN_PITCH, LISTS, RUN_POSITIONS, own_cells,          \
                    first_column / CELL, run_table[run][0],                                             \
                    POSITION_OF(step) + FIRST_CELL + run_table[run][1], count, CAME(step));             \
    } while (0)

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
    if (get_local_id(0) == 0) {
        for (int i = 0; i < STAGES; i++) {
            init_signal(CAME(i), 1 + SOURCE_GIVERS);
            init_signal(MADE(i), ITEMS / WARP_ITEMS);
        }
        SHOW_SIGNALS();
    }
    barrier(CLK_LOCAL_MEM_FENCE);
#if COPIES_AHEAD
    for (int step = 0; step < STAGES - 1 && step < steps; step++) {
        COPY_STEP(step);
    }
#endif
    for (int step = 0; step < steps; step++) {
#if !COPIES_AHEAD
        barrier(CLK_LOCAL_MEM_FENCE);
        COPY_STEP(step);
#endif
        await_signal(CAME(step), step / STAGES);
        SHOW_COPIED();
        const int left_over = end - POSITION_OF(step);
        if (left_over < TILE_DEPTH) {
            /* What was copied for positions after the last sample is another sample's. */
            for (int i = get_local_id(0); i < STAGE_DELTAS; i += ITEMS) {
                if (i % DELTA_PITCH >= left_over) {
                    STAGE_OF(step)[i] = 0;
                }
            }
            barrier(CLK_LOCAL_MEM_FENCE);
        }
        __local const cell_t *left = STAGE_OF(step) + own_unit / CELL * DELTA_PITCH;
        __local const cell_t *right = STAGE_OF(step) + STAGE_DELTAS;
        rows_t rows[TILE_DEPTH / HELD_POSITIONS];
        UNROLL
        for (int k = 0; k < TILE_DEPTH / HELD_POSITIONS; k++) {
            rows[k] = hold_rows(left + k * HELD_POSITIONS, DELTA_PITCH);
        }
        BEGIN_ROWS();
        UNROLL
        for (int k = 0; k < TILE_DEPTH / HELD_POSITIONS; k++) {
            UNROLL
            for (int j = 0; j < GROUP_TAPS; j++) {
                multiply_rows(sums[j], rows[k], DELTA_PITCH, right + shifts[j] + k * HELD_POSITIONS,
                              RUN_PITCH);
            }
        }
        END_ROWS();
#if COPIES_AHEAD
        /* While these go on: where the step before lay there is room, once all have made its products. */
        if (step + STAGES - 1 < steps) {
            if (step > 0) {
                await_signal(MADE(step - 1), (step - 1) / STAGES);
            }
            COPY_STEP(step + STAGES - 1);
        }
#endif
        AWAIT_ROWS();
        if (LANE == 0) {
            give_signal(MADE(step));
        }
    }
    UNROLL
    for (int j = 0; j < GROUP_TAPS; j++) {
        await_sums(sums[j]);
    }

    __global real_t *results = ARRAY(partials)
                               + ((size_t)split * GROUPS + group) * GROUP_OUTPUT_UNITS * GROUP_INPUT_UNITS
                                     * (FILTER_HEIGHT * FILTER_WIDTH);
    /*
     * Sums leave through local memory, those of 64 units at a time: a unit's taps lie side by side. NOTE: stored one by one,
     * 36 bytes apart, they took 50 us of 100 (H200, 3x3 of 64 units).
     */
    __local real_t *staged = (__local real_t *)memory;
    for (int pass = 0; pass < UNIT_GROUPS; pass++) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (own_unit == pass * STAGED_UNITS) {
            UNROLL
            for (int j = 0; j < GROUP_TAPS; j++) {
                UNROLL
                for (int i = 0; i < SUM_REGISTERS; i++) {
                    const int tap = warp_group / UNIT_GROUPS * GROUP_TAPS + j;
                    staged[ROW_OF_SUM(i) * STAGED_PITCH + COLUMN_OF_SUM(i) * BLOCK_TAPS + tap] = sums[j][i];
                }
            }
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        const int units = min(STAGED_UNITS, GROUP_OUTPUT_UNITS - first_unit - pass * STAGED_UNITS);
        for (int i = get_local_id(0); i < STAGED_SUMS; i += ITEMS) {
            const int column = first_column + i / BLOCK_TAPS;
            const int place = block_table[block][0] + i % BLOCK_TAPS;
            if (place < end_tap && column < COLUMNS) {
                const int at = ((first_unit + pass * STAGED_UNITS) * GROUP_INPUT_UNITS + column / FOLDED)
                                   * (FILTER_HEIGHT * FILTER_WIDTH)
                               + tap_table[place][2] * FOLDED + column % FOLDED;
                for (int unit = 0; unit < units; unit++) {
                    results[at + unit * (GROUP_INPUT_UNITS * FILTER_HEIGHT * FILTER_WIDTH)] =
                        staged[unit * STAGED_PITCH + i];
                }
            }
        }
    }
}
