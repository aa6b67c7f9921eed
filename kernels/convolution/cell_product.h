/*
 * Convolutions as a product of matrices on tensor cores that take both factors from local memory (warp_group.h): the
 * source as cells (pack_cells.cl) at all positions of the batch, times packed weights (pack_weight_cells.cl).
 *
 * A work-group makes the sums of TILE_COLUMNS positions and TILE_UNITS units, a warp group those of 64 positions. The
 * cells of a tile for DEPTH_CELLS cells of the depth, TILE_COLUMNS + SPAN positions of each, are one run, which is copied
 * once: a tap is the same run from another position on (cell_lists.h). A source that is read with a stride has a run for
 * each of its phases. RUN_STAGES runs, and the weights of STAGES taps, lie in local memory or are on their way there.
 *
 * TAP_TABLE has three numbers for each tap, in the order in which runs need them: its run, its shift from the run's first
 * position, and its number in the filter.
 */
#define WARP_GROUPS (TILE_COLUMNS / 64)
#define ITEMS (GROUP_ITEMS * WARP_GROUPS)
#define SUM_COLUMNS TILE_UNITS
#include "convolution/group_tile.h"
#include "warp_group.h"
#define FIRST_COPYING_WARP 0
#include "convolution/cell_lists.h"

#define WARP_GROUP (WARP / GROUP_WARPS)
#define RUN_POSITIONS (TILE_COLUMNS + SPAN)
#define RUN_ELEMENTS (DEPTH_CELLS * RUN_POSITIONS)
#define STAGE_ELEMENTS (DEPTH_CELLS * TILE_UNITS)

/* Sums leave through local memory, 32 units at a time; rows of positions lie in different banks. */
#define STAGED_UNITS 32
#define STAGED_PITCH (TILE_COLUMNS + 4)
#define STAGED_CELLS (STAGED_UNITS * STAGED_PITCH / 4)
#define COPIED_CELLS (RUN_STAGES * RUN_ELEMENTS + STAGES * STAGE_ELEMENTS)
#define LOCAL_CELLS (COPIED_CELLS > STAGED_CELLS ? COPIED_CELLS : STAGED_CELLS)

typedef real_t sums_t[SUM_REGISTERS];
__constant int tap_table[][3] = TAP_TABLE;
#define TAPS (PHASE_TAPS > 0 ? PHASE_TAPS : 1)

/* Has the copying warps begin to copy a run, of all that the work-group takes. */
INLINE void copy_run(__local cell_t *to, const int run, __global const cell_t *cells, const int count,
                     __local signal_t *signal)
{
    if (COPYING_ITEM == 0) {
        expect_cells(signal, RUN_ELEMENTS);
    }
    copy_lists(to, DEPTH_CELLS, RUN_POSITIONS,
               cells + (size_t)(run % RUNS * GROUPS + GROUP) * SOURCE_CELLS * SOURCE_LIST,
               (FIRST_STEP + run / RUNS) * DEPTH_CELLS, SOURCE_CELLS, SOURCE_LIST, SOURCE_SAMPLE,
               FIRST_POSITION + FIRST_CELL, count, signal);
}

/* Has one of them begin to copy the weights of a step: a tap of a block of the depth. */
INLINE void copy_weights(__local cell_t *to, const int step, __global const cell_t *weights,
                         __local signal_t *signal)
{
    const int place = (FIRST_STEP + step / TAPS) * FILTER_TAPS + tap_table[step % TAPS][2];
    if (COPYING_ITEM == 0) {
        expect_cells(signal, STAGE_ELEMENTS);
        copy_cells(to, weights + (size_t)place * STAGE_ELEMENTS, STAGE_ELEMENTS, signal);
    }
}

/* sums = sum over the depth and taps of cells * weights. */
INLINE void accumulate_tiles(sums_t sums, __global const cell_t *cells, __global const real_t *packed,
                             __local cell_t *memory, __local signal_t *signals, const int count)
{
    __global const cell_t *weights =
        (__global const cell_t *)packed
        + (size_t)(GROUP * BLOCKS + FIRST_UNIT / TILE_UNITS) * DEPTH_STEPS * FILTER_TAPS * STAGE_ELEMENTS;
    __local cell_t *stages = memory + RUN_STAGES * RUN_ELEMENTS;
    __local signal_t *stage_signals = signals + RUN_STAGES;
    /* NOTE: what is copied must be awaited: a phase without taps copies nothing. */
    const int blocks = PHASE_TAPS > 0 ? END_STEP - FIRST_STEP : 0;
    const int runs = blocks * RUNS;
    const int steps = blocks * TAPS;
    const bool copies = WARP < COPYING_WARPS;
    UNROLL
    for (int i = 0; i < SUM_REGISTERS; i++) {
        sums[i] = 0;
    }
    if (get_local_id(0) == 0) {
        for (int i = 0; i < RUN_STAGES + STAGES; i++) {
            init_signal(signals + i, 1);
        }
        SHOW_SIGNALS();
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (copies) {
        for (int i = 0; i < RUN_STAGES - 1 && i < runs; i++) {
            copy_run(memory + i * RUN_ELEMENTS, i, cells, count, signals + i);
        }
        for (int i = 0; i < STAGES - 1 && i < steps; i++) {
            copy_weights(stages + i * STAGE_ELEMENTS, i, weights, stage_signals + i);
        }
    }
    int run = -1;
    int tap = 0;
    for (int step = 0; step < steps; step++) {
        const bool begins = tap == 0 || tap_table[tap][0] != tap_table[tap - 1][0];
        if (begins) {
            run++;
            await_signal(signals + run % RUN_STAGES, run / RUN_STAGES);
        }
        await_signal(stage_signals + step % STAGES, step / STAGES);
        __local const cell_t *left =
            memory + run % RUN_STAGES * RUN_ELEMENTS + WARP_GROUP * 64 + tap_table[tap][1];
        __local const cell_t *right = stages + step % STAGES * STAGE_ELEMENTS;
        BEGIN_PRODUCTS();
        UNROLL
        for (int k = 0; k < DEPTH_CELLS; k += 2) {
            multiply_cells(sums, left + k * RUN_POSITIONS, RUN_POSITIONS, right + k * TILE_UNITS, TILE_UNITS);
        }
        END_PRODUCTS();
        AWAIT_PRODUCTS(1);
        barrier(CLK_LOCAL_MEM_FENCE);
        /* All have made the products of the step before: what these read may be overwritten. */
        if (copies) {
            const int next = step + STAGES - 1;
            if (next < steps) {
                copy_weights(stages + next % STAGES * STAGE_ELEMENTS, next, weights,
                             stage_signals + next % STAGES);
            }
            const int next_run = run + RUN_STAGES - 1;
            if (begins && next_run < runs) {
                copy_run(memory + next_run % RUN_STAGES * RUN_ELEMENTS, next_run, cells, count,
                         signals + next_run % RUN_STAGES);
            }
        }
        tap = tap + 1 < TAPS ? tap + 1 : 0;
    }
    await_sums(sums);
}

/*
 * Sums in local memory: the number of unit STAGED_UNIT(pass, i) of column STAGED_COLUMN(j) is STAGED_NUMBER(i, j), for i <
 * STAGED_ROWS and j < STAGED_COLUMNS. Units are those of the result's blob: of its cells, if it has cells.
 */
#define STAGED_PASSES (TILE_UNITS / STAGED_UNITS)
#define STAGED_STEP (ITEMS / TILE_COLUMNS)
#define STAGED_COLUMNS 1
#define STAGED_COLUMN(j) ((int)get_local_id(0) % TILE_COLUMNS)
#define STAGED_ROWS (STAGED_UNITS / CELL_UNITS / STAGED_STEP)
#define STAGED_ROW(i) ((int)get_local_id(0) / TILE_COLUMNS + (i) * STAGED_STEP)
#define STAGED_UNIT(pass, i) ((pass) * (STAGED_UNITS / CELL_UNITS) + STAGED_ROW(i))
#define STAGED_AT(i, j, unit) staged[(STAGED_ROW(i) * CELL_UNITS + (unit)) * STAGED_PITCH + STAGED_COLUMN(j)]
#if CELL_UNITS == 1
#define STAGED_NUMBER(i, j) STAGED_AT(i, j, 0)
#else
#define STAGED_NUMBER(i, j)                                                                   \
    ((float8)(STAGED_AT(i, j, 0), STAGED_AT(i, j, 1), STAGED_AT(i, j, 2), STAGED_AT(i, j, 3), \
              STAGED_AT(i, j, 4), STAGED_AT(i, j, 5), STAGED_AT(i, j, 6), STAGED_AT(i, j, 7)))
#endif

INLINE void stage(sums_t sums, const int pass, __local real_t *staged)
{
    barrier(CLK_LOCAL_MEM_FENCE);
    __local real_t *to = staged + LANE_COLUMN * 2 * STAGED_PITCH + WARP * 16 + LANE_ROW;
    UNROLL
    for (int i = 0; i < STAGED_UNITS / 2; i++) {
        to[(i / 4 * 8 + i % 2) * STAGED_PITCH + i / 2 % 2 * 8] = sums[pass * (STAGED_UNITS / 2) + i];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
}
