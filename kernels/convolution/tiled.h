/*
 * Convolutions as a product of matrices through local memory, for GPUs: packed weights (pack_weight.cl) times the
 * source at all positions of the batch. A work-group makes TILE_UNITS x TILE_COLUMNS sums, a work-item ITEM_UNITS x
 * ITEM_COLUMNS of them; TILE_DEPTH rows of both matrices lie in local memory while the next ones are on their way.
 *
 * Of a product in splits (splits.h) it makes the rows of one.
 *
 * A position is a cell (n, y, x) of the result, without its padding: its source lies at a fixed pointer plus a shift
 * that depends on the row (tap, source unit) alone, and padding is zeros in memory. So any stride, dilation and plane
 * size costs the same, and no position is wasted.
 *
 * Tap (a, b) reads filter cell (TAP_Y_FIRST + a * TAP_Y_STEP, TAP_X_FIRST + b * TAP_X_STEP) and the source ROW_FIRST +
 * a * ROW_STEP rows and COLUMN_FIRST + b * COLUMN_STEP columns away.
 */
#define ITEM get_local_id(0)
#define UNIT_PITCH TILE_UNITS
#define COLUMN_PITCH TILE_COLUMNS
#include "convolution/local_product.h"
#include "convolution/group_tile.h"
#include "place.h"

#define STAGED_STEPS (ITEMS_Y > 2 * TILE_DEPTH ? ITEMS_Y : 2 * TILE_DEPTH)
/* Source: every work-item loads SOURCE_COLUMNS positions of every SOURCE_STEP-th row. */
#define SOURCE_STEP (ITEMS > TILE_COLUMNS ? ITEMS / TILE_COLUMNS : 1)
#define SOURCE_COLUMNS (TILE_COLUMNS > ITEMS ? TILE_COLUMNS / ITEMS : 1)
#define SOURCE_ROWS (TILE_DEPTH / SOURCE_STEP)
#define SOURCE_COLUMN(j) ((int)get_local_id(0) % TILE_COLUMNS + (j) * ITEMS)
#define SOURCE_RUN 1
/* Weights: in quads. */
#define QUADS (TILE_DEPTH * TILE_UNITS / 4)
#define QUAD_LOADS ((QUADS + ITEMS - 1) / ITEMS)
/* Rows go tap by tap in whole tiles, or, where that wastes too much, one after the other. */
#define DEPTH_ROWS_ALL (FILTER_HEIGHT * FILTER_WIDTH * DEPTH_ROWS)
#if DEPTH_ROWS % TILE_DEPTH == 0
#define BY_TAP 1
#define DEPTH_TILES (DEPTH_ROWS / TILE_DEPTH)
#define DEPTH_STEPS (TAPS_Y * TAPS_X * DEPTH_TILES)
#else
#define BY_TAP 0
#define DEPTH_STEPS ((TAPS_Y * TAPS_X * DEPTH + TILE_DEPTH - 1) / TILE_DEPTH)
#endif
/*
 * Whether places of the source are added up, and the least of them taken, instead of rows, which are multiplied then: it
 * spares Intel's compiler three instructions a row. AMD's adds what all work-items have in common to the pointer.
 */
#define BY_PLACE (CHEAP_ADDRESSES && BY_TAP && !SHARED_POINTERS)

/* Whether pointers have how far the rows of a step are after one another: they do unless the last ones are missing. */
#define ROWS_IN_COMMON (SHARED_POINTERS && BY_TAP && DEPTH % TILE_DEPTH == 0)

typedef real_t sums_t[ITEM_UNITS][ITEM_COLUMNS];

/*
 * Where the source is at this work-item's columns, as parameters and arguments of functions. With CHEAP_ADDRESSES local
 * memory has how far each row is from there, unless rows go tap by tap: that is a load in place of two divisions. If that
 * is 2 it has those of the first row of taps, in which there are whole steps: the others lie after another pointer.
 */
#if CHEAP_ADDRESSES
#if BY_TAP || DEPTH_STEPS == 0
#define SHIFTS 1
#elif CHEAP_ADDRESSES == 2
#define SHIFTS (TAPS_X * DEPTH)
#else
#define SHIFTS (DEPTH_STEPS * TILE_DEPTH)
#endif
#define SOURCE_PARAMETERS \
    __global const source_t *source, const uint columns[SOURCE_COLUMNS], __local int shifts[SHIFTS]
#define SOURCE_ARGUMENTS(source) source, columns, shifts
#define DECLARE_SHIFTS __local int shifts[SHIFTS];
#else
#define SOURCE_PARAMETERS PLACE_OF(source_t) const columns[SOURCE_COLUMNS]
#define SOURCE_ARGUMENTS(source) columns
#define DECLARE_SHIFTS
#endif

typedef struct {
    float4 weights[QUAD_LOADS];
    real_t sources[SOURCE_ROWS][SOURCE_COLUMNS];
} prefetch_t;

/* Of the tap in row y and column x of those that are met. */
INLINE int packed_row(const int y, const int x, const int depth)
{
    return ((TAP_Y_FIRST + y * TAP_Y_STEP) * FILTER_WIDTH + TAP_X_FIRST + x * TAP_X_STEP) * DEPTH_ROWS
           + depth;
}

INLINE int source_shift(const int y, const int x, const int depth)
{
    return depth * SOURCE_PLANE + (ROW_FIRST + y * ROW_STEP) * SOURCE_PITCH + COLUMN_FIRST + x * COLUMN_STEP;
}

#if !BY_TAP || CHEAP_ADDRESSES
/*
 * Rows of all taps that are met, counted one by one, or in tiles where they go tap by tap; those of a tap; and how far the
 * next one of a tap is in PACKED and in the source.
 */
#if BY_TAP
#define ROWS_OF_TAP DEPTH_TILES
#define NEXT_PACKED TILE_DEPTH
#define NEXT_SOURCE (TILE_DEPTH * SOURCE_PLANE)
#else
#define ROWS_OF_TAP DEPTH
#define NEXT_PACKED 1
#define NEXT_SOURCE SOURCE_PLANE
#endif
#define TAP_ROWS (TAPS_Y * TAPS_X * ROWS_OF_TAP)
#if CHEAP_ADDRESSES
#define IS_TAP_ROW(k) (TAP_ROWS % TILE_DEPTH == 0 || (k) < TAP_ROWS)
#else
#define IS_TAP_ROW(k) k < TAP_ROWS
#endif

/*
 * n / by, for rows or taps n; all of them are few. NOTE: a multiplication and a shift where both fit in 32 bits: compilers
 * multiply 64 bits, or change to 16 and back. Intel's GPUs multiply by 16 bits at once, by 32 in four instructions.
 */
#define QUOTIENT_BITS(by) (TAP_ROWS * (by) < 1 << 16 ? 16 : 20)
INLINE uint quotient(const uint n, const uint by)
{
    return by == 1 ? n
           : TAP_ROWS < 1 << 12 && TAP_ROWS * by < 1 << 20
               ? n * ((1 << QUOTIENT_BITS(by)) / by + 1) >> QUOTIENT_BITS(by)
               : n / by;
}

/* The same where the quotient is less than `all`, which compilers do not know. */
#if CHEAP_ADDRESSES
#define QUOTIENT_BELOW(all, n, by) ((all) == 1 ? 0 : quotient(n, by))
#else
#define QUOTIENT_BELOW(all, n, by) quotient(n, by)
#endif

/*
 * How far row k, of those that are met, is from the first one, where the next source unit, tap and row of taps are so far
 * away. NOTE: remainders would need more multiplications; where rows follow one another, nothing is divided.
 */
INLINE int from_first_row(const uint k, const int of_unit, const int of_tap, const int of_tap_row)
{
    const uint tap = QUOTIENT_BELOW(TAPS_Y * TAPS_X, k, ROWS_OF_TAP);
    return k * of_unit + tap * (of_tap - ROWS_OF_TAP * of_unit)
           + QUOTIENT_BELOW(TAPS_Y, tap, TAPS_X) * (of_tap_row - TAPS_X * of_tap);
}

/* The row of PACKED that is row k, and how far from its columns the source of row k is. */
#define PACKED_ROW(k)   \
    packed_row(0, 0, 0) \
        + from_first_row(k, NEXT_PACKED, TAP_X_STEP *DEPTH_ROWS, TAP_Y_STEP *FILTER_WIDTH *DEPTH_ROWS)
#define ROW_SHIFT(k) \
    source_shift(0, 0, 0) + from_first_row(k, NEXT_SOURCE, COLUMN_STEP, ROW_STEP *SOURCE_PITCH)
#endif

/* Loads what this work-item brings of one step: its part of TILE_DEPTH rows. */
INLINE void fetch(prefetch_t *next, const int step, SOURCE_PARAMETERS, __global const real_t *packed)
{
    const int item = get_local_id(0);
#if BY_TAP && CHEAP_ADDRESSES
    const int step_depth =
        (step - QUOTIENT_BELOW(TAPS_Y * TAPS_X, step, DEPTH_TILES) * DEPTH_TILES) * TILE_DEPTH;
    const int step_row = PACKED_ROW(step);
    const int step_shift = ROW_SHIFT(step);
#elif BY_TAP
    const int step_tap = step / DEPTH_TILES;
    const int step_depth = step % DEPTH_TILES * TILE_DEPTH;
    const int step_row = packed_row(step_tap / TAPS_X, step_tap % TAPS_X, step_depth);
    const int step_shift = source_shift(step_tap / TAPS_X, step_tap % TAPS_X, step_depth);
#elif CHEAP_ADDRESSES == 2
    const uint tap_row = (uint)step / (SHIFTS / TILE_DEPTH);
    const uint first_shift = step * TILE_DEPTH - tap_row * SHIFTS;
    source += (int)tap_row * (ROW_STEP * SOURCE_PITCH);
#elif CHEAP_ADDRESSES
    const uint first_shift = step * TILE_DEPTH;
#endif
#pragma unroll
    for (int i = 0; i < QUAD_LOADS; i++) {
        const int quad = item + i * ITEMS;
        const int r = quad / (TILE_UNITS / 4);
#if BY_TAP
        const int row = step_row + r;
#else
        const uint k = step * TILE_DEPTH + r;
        const int row = IS_TAP_ROW(k) ? PACKED_ROW(k) : DEPTH_ROWS_ALL;
#endif
        if (QUADS % ITEMS == 0 || quad < QUADS) {
            next->weights[i] =
                *(__global const float4 *)(packed + (row * UNIT_COLUMNS + quad % (TILE_UNITS / 4) * 4));
        }
    }
    const int first = item / TILE_COLUMNS;
#if CHEAP_ADDRESSES && !BY_TAP
    __local const int *row_shifts = shifts + (first_shift + first);
#endif
#if BY_PLACE
    const uint tap_shift = DISTANCE(source_t, step_shift - step_depth * SOURCE_PLANE);
    const uint first_shift = tap_shift + DISTANCE(source_t, (step_depth + first) * SOURCE_PLANE);
    const uint last_shift = tap_shift + DISTANCE(source_t, (DEPTH - 1) * SOURCE_PLANE);
#endif
#pragma unroll
    for (int i = 0; i < SOURCE_ROWS; i++) {
        /* By tap, rows after the last source unit repeat it: their weights are 0. */
#if BY_PLACE
#pragma unroll
        for (int j = 0; j < SOURCE_COLUMNS; j++) {
            const uint place = columns[j] + first_shift + DISTANCE(source_t, i * SOURCE_STEP * SOURCE_PLANE);
            next->sources[i][j] = READ_DISTANCE(
                source_t, source, DEPTH % TILE_DEPTH == 0 ? place : min(place, columns[j] + last_shift));
        }
#else
        const int r = first + i * SOURCE_STEP;
#if CHEAP_ADDRESSES
        __global const source_t *const row_source =
            source + (ROWS_IN_COMMON ? i * SOURCE_STEP * SOURCE_PLANE : 0);
#endif
#if ROWS_IN_COMMON
        const int shift = DISTANCE(source_t, step_shift) + DISTANCE(source_t, first * SOURCE_PLANE);
#elif BY_TAP
        const int depth = DEPTH % TILE_DEPTH == 0 ? r : min(r, DEPTH - 1 - step_depth);
        const int shift = DISTANCE(source_t, step_shift) + DISTANCE(source_t, depth * SOURCE_PLANE);
#elif CHEAP_ADDRESSES
        const int shift = row_shifts[i * SOURCE_STEP];
#else
        const uint k = min((uint)(step * TILE_DEPTH + r), (uint)(TAP_ROWS - 1));
        const int shift = ROW_SHIFT(k);
#endif
#pragma unroll
        for (int j = 0; j < SOURCE_COLUMNS; j++) {
            next->sources[i][j] = READ_PLACE(source_t, row_source, columns[j], shift);
        }
#endif
    }
}

INLINE void put(const prefetch_t *next, __local real_t *weights, __local real_t *sources)
{
    const int item = get_local_id(0);
#pragma unroll
    for (int i = 0; i < QUAD_LOADS; i++) {
        const int quad = item + i * ITEMS;
        if (QUADS % ITEMS == 0 || quad < QUADS) {
            *(__local float4 *)(weights + quad * 4) = next->weights[i];
        }
    }
    const int first = item / TILE_COLUMNS;
#pragma unroll
    for (int i = 0; i < SOURCE_ROWS; i++) {
#pragma unroll
        for (int j = 0; j < SOURCE_COLUMNS; j++) {
            sources[(first + i * SOURCE_STEP) * TILE_COLUMNS + item % TILE_COLUMNS + j * ITEMS] =
                next->sources[i][j];
        }
    }
}

/* sums[u][p] = sum over all rows of the split of packed weight * source. */
INLINE void accumulate_tiles(sums_t sums, SOURCE_PARAMETERS, __global const real_t *packed,
                             __local real_t weights[2][TILE_DEPTH * TILE_UNITS],
                             __local real_t sources[STAGED_STEPS * TILE_COLUMNS])
{
    clear(sums);
#if DEPTH_STEPS > 0
    const int last = END_STEP - 1;
#if SPLITS > 1
    if (last < FIRST_STEP) {
        return;
    }
#endif
#if CHEAP_ADDRESSES && !BY_TAP
    for (int row = get_local_id(0); row < SHIFTS; row += ITEMS) {
        /* Rows past the last one repeat it: their weights are 0. */
        const uint k = min(row, TAP_ROWS - 1);
        shifts[row] = DISTANCE(source_t, ROW_SHIFT(k));
    }
    barrier(CLK_LOCAL_MEM_FENCE);
#endif
    prefetch_t next;
#if CHEAP_ADDRESSES
    DECLARE_TILES(weights, weights[0], weights[1]);
    DECLARE_TILES(sources, sources, sources + TILE_DEPTH * TILE_COLUMNS);
    fetch(&next, FIRST_STEP, SOURCE_ARGUMENTS(source), packed);
    put(&next, weights_now, sources_now);
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int step = FIRST_STEP; step < last; step++) {
        fetch(&next, step + 1, SOURCE_ARGUMENTS(source), packed);
        multiply(sums, weights_now, sources_now);
        put(&next, LATER(weights), LATER(sources));
        barrier(CLK_LOCAL_MEM_FENCE);
        SWAP_TILES(weights);
        SWAP_TILES(sources);
    }
    multiply(sums, weights_now, sources_now);
#else
    fetch(&next, FIRST_STEP, SOURCE_ARGUMENTS(source), packed);
    put(&next, weights[FIRST_STEP % 2], sources + FIRST_STEP % 2 * TILE_DEPTH * TILE_COLUMNS);
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int step = FIRST_STEP; step < last; step++) {
        fetch(&next, step + 1, SOURCE_ARGUMENTS(source), packed);
        multiply(sums, weights[step % 2], sources + step % 2 * TILE_DEPTH * TILE_COLUMNS);
        put(&next, weights[(step + 1) % 2], sources + (step + 1) % 2 * TILE_DEPTH * TILE_COLUMNS);
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    multiply(sums, weights[last % 2], sources + last % 2 * TILE_DEPTH * TILE_COLUMNS);
#endif
#endif
}

/*
 * Sums leave through local memory, ITEMS_Y units a pass, so that neighbours store neighbouring positions: unit
 * STAGED_UNIT(pass, i) of column STAGED_COLUMN(j) is staged[STAGED_AT(i, j)], for i < STAGED_ROWS.
 */
#define STAGED_PASSES ITEM_UNITS
#define STAGED_COLUMNS SOURCE_COLUMNS
#define STAGED_COLUMN(j) SOURCE_COLUMN(j)
#define STAGED_ROWS (ITEMS_Y / SOURCE_STEP)
#define STAGED_ROW(i) (get_local_id(0) / TILE_COLUMNS + (i) * SOURCE_STEP)
#define STAGED_UNIT(pass, i) ((pass) / 4 * (ITEMS_Y * 4) + STAGED_ROW(i) * 4 + (pass) % 4)
#define STAGED_AT(i, j) (STAGED_ROW(i) * TILE_COLUMNS + get_local_id(0) % TILE_COLUMNS + (j) * ITEMS)

INLINE void stage(sums_t sums, const int pass, __local real_t *staged)
{
    barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
    for (int p = 0; p < ITEM_COLUMNS; p += 4) {
        *(__local float4 *)(staged + get_local_id(0) / ITEMS_X * TILE_COLUMNS + ITEM_COLUMN(p)) =
            vload4(0, sums[pass] + p);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
}
