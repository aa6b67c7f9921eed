/*
 * Convolutions as a product of matrices on tensor cores that take both factors from local memory (warp_group.h): the
 * source as cells (pack_cells.cl) at all positions of the batch, times packed weights (pack_weight_cells.cl).
 *
 * A work-group makes the sums of TILE_COLUMNS positions and TILE_UNITS units, a warp group those of GROUP_POSITIONS; then
 * those of another tile, whose cells have come meanwhile. The cells of a tile for DEPTH_CELLS cells of the depth,
 * TILE_COLUMNS + SPAN positions of each of RUN_PHASES phases of the source, are a run, which is copied once: taps are the
 * same run from another cell on (cell_lists.h). RUN_STAGES runs, and the weights of STAGES taps, lie in local memory or are
 * on their way there. Where STAGES are all steps of a tile (KEPT), the weights are copied once.
 *
 * With WHOLE_SAMPLES a tile's positions are those of whole samples, SAMPLE_POSITIONS of each: a run is all that lies in
 * DEPTH_CELLS lists of these samples, one copy a sample. NOTE: a copy takes as long as 50 cells; in lists of 7x7 positions
 * a run would be 24 of them.
 *
 * The sums of a warp group are of 64 positions (rows) and the tile's units (columns); or, with GROUP_POSITIONS above 64, of
 * 64 units (rows), the tile's, and so many positions (columns): few columns keep tensor cores waiting for local memory.
 *
 * RUN_TABLE has two numbers for each run of a block of the depth: its place in the source, and its first position.
 * TAP_TABLE has three for each tap, in the order in which runs need them: its run, its first cell in a list of the run,
 * and its number in the filter.
 */
#define WARP_GROUPS (TILE_COLUMNS / GROUP_POSITIONS)
#define ITEMS (GROUP_ITEMS * WARP_GROUPS)
#define UNITS_ARE_ROWS (GROUP_POSITIONS > 64)
#if UNITS_ARE_ROWS
#define SUM_COLUMNS GROUP_POSITIONS
#else
#define SUM_COLUMNS TILE_UNITS
#endif
#include "convolution/group_tile.h"
#include "warp_group.h"
#include "convolution/cell_lists.h"

#define WARP_GROUP (WARP / GROUP_WARPS)
/* In a run: how far it is from list to list, the work-items that copy, and the first position of a warp group. */
#if WHOLE_SAMPLES
#define RUN_LIST SOURCE_LIST
#define RUN_SAMPLES (TILE_COLUMNS / SAMPLE_POSITIONS)
#define RUN_COPIES RUN_SAMPLES
#define RUN_ELEMENTS (RUN_SAMPLES * SAMPLE_ELEMENTS)
#define SAMPLE_ELEMENTS (DEPTH_CELLS * RUN_LIST)
#define OWN_ROWS                                                                                            \
    (WARP_GROUP * 64 / SAMPLE_POSITIONS * SAMPLE_ELEMENTS + WARP_GROUP * 64 % SAMPLE_POSITIONS + FIRST_CELL \
     + run_table[0][1])
#else
#define RUN_LIST (RUN_PHASES * (TILE_COLUMNS + SPAN))
#define RUN_COPIES DEPTH_CELLS
#define RUN_ELEMENTS (DEPTH_CELLS * RUN_LIST)
#define OWN_ROWS (WARP_GROUP * GROUP_POSITIONS)
#endif
#define STAGE_ELEMENTS (DEPTH_CELLS * TILE_UNITS)
#define LOCAL_CELLS (RUN_STAGES * RUN_ELEMENTS + STAGES * STAGE_ELEMENTS)

/*
 * Sums of a warp group leave through its part of local memory, 32 units at a time. Lanes store to different banks, or, with
 * units as rows, two to each.
 */
#define STAGED_UNITS 32
#define STAGED_PITCH (TILE_COLUMNS + 4)
#define STAGED_ELEMENTS (STAGED_UNITS * STAGED_PITCH)

typedef real_t sums_t[SUM_REGISTERS];
__constant int run_table[][2] = RUN_TABLE;
__constant int tap_table[][3] = TAP_TABLE;
#define TAPS (PHASE_TAPS > 0 ? PHASE_TAPS : 1)

/* The tiles of a work-group, and the runs and steps of a tile: a step is a tap of a block of the depth. */
#define TILES ((count * POSITIONS + TILE_COLUMNS - 1) / TILE_COLUMNS * BLOCKS)
#define TILE_OF(turn) (OWN_TILE + (turn) * (int)get_num_groups(0))
#define OWN_TILES ((TILES - OWN_TILE + (int)get_num_groups(0) - 1) / (int)get_num_groups(0))
#define TILE_RUNS ((END_STEP - FIRST_STEP) * RUNS)
#define TILE_STEPS ((END_STEP - FIRST_STEP) * TAPS)
/* NOTE: with one stage weights must be kept: others would be awaited before their copy begins. */
#define KEPT (SPLITS == 1 && STAGES == TILE_STEPS)
/* NOTE: what is copied must be awaited: a phase without taps copies nothing. */
#define ALL_RUNS (PHASE_TAPS > 0 ? OWN_TILES * TILE_RUNS : 0)
#define ALL_STEPS (PHASE_TAPS > 0 ? OWN_TILES * TILE_STEPS : 0)

/* What lies in local memory; the signals that it has come, and that all have made its products. */
#define RUN_PLACE(run) (memory + (run) % RUN_STAGES * RUN_ELEMENTS)
#define WEIGHTS_PLACE(step) (memory + RUN_STAGES * RUN_ELEMENTS + (step) % STAGES * STAGE_ELEMENTS)
#define RUN_CAME(run) (signals + (run) % RUN_STAGES)
#define RUN_MADE(run) (signals + RUN_STAGES + (run) % RUN_STAGES)
#define WEIGHTS_CAME(step) (signals + 2 * RUN_STAGES + (step) % STAGES)
#define WEIGHTS_MADE(step) (signals + 2 * RUN_STAGES + STAGES + (step) % STAGES)
#define SIGNALS (2 * (RUN_STAGES + STAGES))

/* Begins to copy a run, of all that the work-group takes; first it waits until the run that lies there is done with. */
INLINE void copy_run(const int run, __global const cell_t *cells, __local cell_t *memory,
                     __local signal_t *signals, const int count)
{
    if (run < ALL_RUNS && (SCATTERED || COPYING_ITEM < RUN_COPIES)) {
        const int block = FIRST_STEP + run % TILE_RUNS / RUNS;
        const int first = FIRST_POSITION_OF(TILE_OF(run / TILE_RUNS));
#if COPIES_AHEAD
        if (run >= RUN_STAGES) {
            await_signal(RUN_MADE(run), run / RUN_STAGES - 1);
        }
#endif
        if (COPYING_ITEM == 0) {
            expect_cells(RUN_CAME(run), EXPECTED(RUN_ELEMENTS));
        }
        __global const cell_t *lists = cells + (size_t)GROUP * SOURCE_CELLS * SOURCE_LIST;
#if WHOLE_SAMPLES
        for (int i = COPYING_ITEM; i < RUN_SAMPLES; i += ITEMS) {
            const int n = min(first / SAMPLE_POSITIONS + i, count - 1);
            copy_cells(RUN_PLACE(run) + i * SAMPLE_ELEMENTS,
                       lists + (size_t)n * SOURCE_SAMPLE + block * SAMPLE_ELEMENTS, SAMPLE_ELEMENTS,
                       RUN_CAME(run));
        }
#else
        copy_source(RUN_PLACE(run), RUN_LIST, DEPTH_CELLS, TILE_COLUMNS + SPAN, lists, block * DEPTH_CELLS,
                    run_table[run % RUNS][0], first + FIRST_CELL + run_table[run % RUNS][1], count,
                    RUN_CAME(run));
#endif
    }
}

/* The same of the weights of a step. Tiles of a work-group are whole multiples of BLOCKS apart: their units are the same. */
INLINE void copy_weights(const int step, __global const cell_t *weights, __local cell_t *memory,
                         __local signal_t *signals, const int count)
{
    if (step < (KEPT ? STAGES : ALL_STEPS) && get_local_id(0) == ITEMS - 1) {
        const int unit_block = GROUP * BLOCKS + OWN_TILE % BLOCKS;
        const int of_tile = step % TILE_STEPS;
        const size_t place = ((size_t)unit_block * DEPTH_STEPS + FIRST_STEP + of_tile / TAPS) * FILTER_TAPS
                             + tap_table[of_tile % TAPS][2];
#if COPIES_AHEAD
        if (step >= STAGES) {
            await_signal(WEIGHTS_MADE(step), step / STAGES - 1);
        }
#endif
        expect_cells(WEIGHTS_CAME(step), STAGE_ELEMENTS);
        copy_cells(WEIGHTS_PLACE(step), weights + place * STAGE_ELEMENTS, STAGE_ELEMENTS, WEIGHTS_CAME(step));
    }
}

/* Before the first tile: all but one of the runs and weights that local memory has room for, or all weights that stay. */
INLINE void begin_copies(__global const cell_t *cells, __global const cell_t *weights, __local cell_t *memory,
                         __local signal_t *signals, const int count)
{
    if (get_local_id(0) == 0) {
        for (int i = 0; i < RUN_STAGES; i++) {
            init_signal(RUN_CAME(i), 1 + SOURCE_GIVERS);
            init_signal(RUN_MADE(i), ITEMS / WARP_ITEMS);
        }
        for (int i = 0; i < STAGES; i++) {
            init_signal(WEIGHTS_CAME(i), 1);
            init_signal(WEIGHTS_MADE(i), ITEMS / WARP_ITEMS);
        }
        SHOW_SIGNALS();
    }
    barrier(CLK_LOCAL_MEM_FENCE);
#if COPIES_AHEAD
    for (int i = 0; i < RUN_STAGES - 1; i++) {
        copy_run(i, cells, memory, signals, count);
    }
    for (int i = 0; i < (KEPT ? STAGES : STAGES - 1); i++) {
        copy_weights(i, weights, memory, signals, count);
    }
#endif
}

/* sums = sum over the depth and taps of cells * weights, of the work-group's next tile. */
INLINE void accumulate_tile(sums_t sums, const int turn, __global const cell_t *cells,
                            __global const cell_t *weights, __local cell_t *memory, __local signal_t *signals,
                            const int count)
{
    UNROLL
    for (int i = 0; i < SUM_REGISTERS; i++) {
        sums[i] = 0;
    }
    const int first = turn * TILE_STEPS;
    const int end = min(ALL_STEPS, first + TILE_STEPS);
    int run = turn * TILE_RUNS - 1;
    int tap = 0;
    for (int step = first; step < end; step++) {
        const bool begins = tap == 0 || tap_table[tap][0] != tap_table[tap - 1][0];
        if (begins) {
            run++;
#if !COPIES_AHEAD
            barrier(CLK_LOCAL_MEM_FENCE);
            copy_run(run, cells, memory, signals, count);
#endif
            await_signal(RUN_CAME(run), run / RUN_STAGES);
            SHOW_COPIED();
        }
#if !COPIES_AHEAD
        barrier(CLK_LOCAL_MEM_FENCE);
        copy_weights(step, weights, memory, signals, count);
#endif
        await_signal(WEIGHTS_CAME(step), KEPT ? 0 : step / STAGES);
        __local const cell_t *own = RUN_PLACE(run) + OWN_ROWS + tap_table[tap][1];
        __local const cell_t *units = WEIGHTS_PLACE(step);
        BEGIN_PRODUCTS();
        UNROLL
        for (int k = 0; k < DEPTH_CELLS; k += 2) {
#if UNITS_ARE_ROWS
            multiply_cells(sums, units + k * TILE_UNITS, TILE_UNITS, own + k * RUN_LIST, RUN_LIST);
#else
            multiply_cells(sums, own + k * RUN_LIST, RUN_LIST, units + k * TILE_UNITS, TILE_UNITS);
#endif
        }
        END_PRODUCTS();
        AWAIT_PRODUCTS(1);
        /* The products of the step before are made, and these go on: what those read may be overwritten. */
        if (LANE == 0 && step > first) {
            if (!KEPT) {
                give_signal(WEIGHTS_MADE(step - 1));
            }
            if (begins) {
                give_signal(RUN_MADE(run - 1));
            }
        }
#if COPIES_AHEAD
        if (!KEPT) {
            copy_weights(step + STAGES - 1, weights, memory, signals, count);
        }
        if (begins) {
            copy_run(run + RUN_STAGES - 1, cells, memory, signals, count);
        }
#endif
        tap = tap + 1 < TAPS ? tap + 1 : 0;
    }
    await_sums(sums);
    if (LANE == 0 && end > first) {
        if (!KEPT) {
            give_signal(WEIGHTS_MADE(end - 1));
        }
        give_signal(RUN_MADE(run));
    }
}

/*
 * Sums in local memory: the number of unit STAGED_UNIT(pass, i) of column STAGED_COLUMN(j) is STAGED_NUMBER(i, j), for i <
 * STAGED_ROWS and j < STAGED_COLUMNS. Units are those of the result's blob: of its cells, if it has cells.
 */
#define STAGED_PASSES (TILE_UNITS / STAGED_UNITS)
#define SIDE_BY_SIDE (GROUP_POSITIONS < GROUP_ITEMS ? GROUP_POSITIONS : GROUP_ITEMS)
#define STAGED_STEP (GROUP_ITEMS / SIDE_BY_SIDE)
#define STAGED_COLUMNS (GROUP_POSITIONS / SIDE_BY_SIDE)
#define STAGED_COLUMN(j) \
    (WARP_GROUP * GROUP_POSITIONS + (j) * SIDE_BY_SIDE + (int)get_local_id(0) % SIDE_BY_SIDE)
#define STAGED_ROWS (STAGED_UNITS / CELL_UNITS / STAGED_STEP)
#define STAGED_ROW(i) ((int)get_local_id(0) % GROUP_ITEMS / SIDE_BY_SIDE + (i) * STAGED_STEP)
#define STAGED_UNIT(pass, i) ((pass) * (STAGED_UNITS / CELL_UNITS) + STAGED_ROW(i))
#define STAGED_AT(i, j, unit) staged[(STAGED_ROW(i) * CELL_UNITS + (unit)) * STAGED_PITCH + STAGED_COLUMN(j)]
#if CELL_UNITS == 1
#define STAGED_NUMBER(i, j) STAGED_AT(i, j, 0)
#elif CELL_UNITS == 4
#define STAGED_NUMBER(i, j) \
    ((float4)(STAGED_AT(i, j, 0), STAGED_AT(i, j, 1), STAGED_AT(i, j, 2), STAGED_AT(i, j, 3)))
#else
#define STAGED_NUMBER(i, j)                                                                   \
    ((float8)(STAGED_AT(i, j, 0), STAGED_AT(i, j, 1), STAGED_AT(i, j, 2), STAGED_AT(i, j, 3), \
              STAGED_AT(i, j, 4), STAGED_AT(i, j, 5), STAGED_AT(i, j, 6), STAGED_AT(i, j, 7)))
#endif

INLINE void stage(sums_t sums, const int pass, __local real_t *staged)
{
    await_warp_group();
#if UNITS_ARE_ROWS
    /* Two of the warps have the units of a pass. */
    if (WARP % GROUP_WARPS / 2 == pass) {
        __local real_t *to = staged + (WARP % 2 * 16 + LANE_ROW) * STAGED_PITCH + OWN_ROWS + LANE_COLUMN * 2;
        UNROLL
        for (int i = 0; i < SUM_REGISTERS; i++) {
            to[i / 2 % 2 * 8 * STAGED_PITCH + i / 4 * 8 + i % 2] = sums[i];
        }
    }
#else
    __local real_t *to = staged + LANE_COLUMN * 2 * STAGED_PITCH + WARP * 16 + LANE_ROW;
    UNROLL
    for (int i = 0; i < STAGED_UNITS / 2; i++) {
        to[(i / 4 * 8 + i % 2) * STAGED_PITCH + i / 2 % 2 * 8] = sums[pass * (STAGED_UNITS / 2) + i];
    }
#endif
    await_warp_group();
}
