/*
 * Dense layers as products of matrices through local memory, for GPUs: sum (u, c) = sum over ROWS rows r of
 * left(r, u) * right(r, c). A work-group makes TILE_UNITS x TILE_COLUMNS sums, a work-item ITEM_UNITS x ITEM_COLUMNS of
 * them, while the next TILE_DEPTH rows are on their way (convolution/local_product.h multiplies).
 *
 * A kernel says where its factors lie: LEFT_AT(u) and RIGHT_AT(c) are offsets of row 0, LEFT_STEP and RIGHT_STEP lead
 * from row to row, and left_t and right_t are how they lie in memory. Where the rows of a factor are neighbours (a step
 * of 1), work-items load runs of 8 of them, and a pitch of 4 more keeps their stores in different banks; else they load
 * neighbouring units or columns.
 */
#define ITEM (int)get_local_id(0)
#define UNIT_PITCH (TILE_UNITS + 4)
#define COLUMN_PITCH (TILE_COLUMNS + 4)
#include "convolution/local_product.h"
#include "place.h"

#define RUN 8
/* Of a factor with a step and an extent: units or columns loaded at once, how often, and the rows of each. */
#define SPAN(step, extent) ((step) == 1 ? ITEMS / RUN : ITEMS < (extent) ? ITEMS : (extent))
#define SPANS(step, extent) ((extent) / SPAN(step, extent))
#define SPAN_ROWS(step, extent) (TILE_DEPTH * SPAN(step, extent) / ITEMS)
/* What this work-item loads of span s, and of its rows i. */
#define SPAN_INDEX(step, extent, s) \
    (((step) == 1 ? ITEM / RUN : ITEM % SPAN(step, extent)) + (s) * SPAN(step, extent))
#define SPAN_ROW(step, extent, i) \
    ((step) == 1 ? ITEM % RUN + (i) * RUN : ITEM / SPAN(step, extent) + (i) * (ITEMS / SPAN(step, extent)))

#define LEFT_SPANS SPANS(LEFT_STEP, TILE_UNITS)
#define LEFT_ROWS SPAN_ROWS(LEFT_STEP, TILE_UNITS)
#define RIGHT_SPANS SPANS(RIGHT_STEP, TILE_COLUMNS)
#define RIGHT_ROWS SPAN_ROWS(RIGHT_STEP, TILE_COLUMNS)

typedef struct {
    real_t left[LEFT_SPANS][LEFT_ROWS];
    real_t right[RIGHT_SPANS][RIGHT_ROWS];
} prefetch_t;

/*
 * Whether there is a row. With CHEAP_ADDRESSES rows count from the first one of their step (see fetch_step), and all of
 * a step are there, but for the first step.
 */
#if CHEAP_ADDRESSES
#define IS_ROW(row, end) ((end) == TILE_DEPTH || (row) < (end))
#else
#define IS_ROW(row, end) row < end
#endif

/*
 * Where this work-item's units or columns lie, and what lies there in row i of those that it loads, which is `row` of all.
 * With SHARED_POINTERS its first row is a part of where they lie, and how far the others are after it is added to the
 * pointer.
 */
#if SHARED_POINTERS
#define PLACE_AT(type, at, step, extent) DISTANCE(type, (at) + SPAN_ROW(step, extent, 0) * (step))
#define READ_ROW(type, blob, at, step, extent, i, row) \
    READ_DISTANCE(type, blob + (SPAN_ROW(step, extent, i) - SPAN_ROW(step, extent, 0)) * (step), at)
#else
#define PLACE_AT(type, at, step, extent) DISTANCE(type, at)
#define READ_ROW(type, blob, at, step, extent, i, row) \
    READ_DISTANCE(type, blob, at + DISTANCE(type, row * step))
#endif

/* Rows from `first` on; those from `end` on count as 0. */
INLINE void fetch(prefetch_t *next, const int first, const int end, __global const left_t *left,
                  const int left_at[LEFT_SPANS], __global const right_t *right,
                  const int right_at[RIGHT_SPANS])
{
#pragma unroll
    for (int i = 0; i < LEFT_ROWS; i++) {
        const int row = first + SPAN_ROW(LEFT_STEP, TILE_UNITS, i);
#pragma unroll
        for (int s = 0; s < LEFT_SPANS; s++) {
            next->left[s][i] =
                IS_ROW(row, end) ? READ_ROW(left_t, left, left_at[s], LEFT_STEP, TILE_UNITS, i, row) : 0;
        }
    }
#pragma unroll
    for (int i = 0; i < RIGHT_ROWS; i++) {
        const int row = first + SPAN_ROW(RIGHT_STEP, TILE_COLUMNS, i);
#pragma unroll
        for (int s = 0; s < RIGHT_SPANS; s++) {
            next->right[s][i] = IS_ROW(row, end)
                                    ? READ_ROW(right_t, right, right_at[s], RIGHT_STEP, TILE_COLUMNS, i, row)
                                    : 0;
        }
    }
}

#if CHEAP_ADDRESSES
/*
 * As many rows of a step from `row` on. NOTE: AMD's GPUs add a work-item's 32 bits to a pointer as they load; on some of
 * Intel's a work-item adds 64 bits, which are made ahead of the loop if only the pointer moves on.
 */
INLINE void fetch_step(prefetch_t *next, const int row, const int rows, __global const left_t *left,
                       const int left_at[LEFT_SPANS], __global const right_t *right,
                       const int right_at[RIGHT_SPANS])
{
#ifdef __AMDGCN__
    int left_from[LEFT_SPANS];
    int right_from[RIGHT_SPANS];
#pragma unroll
    for (int s = 0; s < LEFT_SPANS; s++) {
        left_from[s] = left_at[s] + DISTANCE(left_t, row * LEFT_STEP);
    }
#pragma unroll
    for (int s = 0; s < RIGHT_SPANS; s++) {
        right_from[s] = right_at[s] + DISTANCE(right_t, row * RIGHT_STEP);
    }
    fetch(next, 0, rows, left, left_from, right, right_from);
#else
    fetch(next, 0, rows, left + (uint)(row * LEFT_STEP), left_at, right + (uint)(row * RIGHT_STEP), right_at);
#endif
}
#endif

INLINE void put(const prefetch_t *next, __local real_t *left, __local real_t *right)
{
#pragma unroll
    for (int s = 0; s < LEFT_SPANS; s++) {
#pragma unroll
        for (int i = 0; i < LEFT_ROWS; i++) {
            left[SPAN_ROW(LEFT_STEP, TILE_UNITS, i) * UNIT_PITCH + SPAN_INDEX(LEFT_STEP, TILE_UNITS, s)] =
                next->left[s][i];
        }
    }
#pragma unroll
    for (int s = 0; s < RIGHT_SPANS; s++) {
#pragma unroll
        for (int i = 0; i < RIGHT_ROWS; i++) {
            right[SPAN_ROW(RIGHT_STEP, TILE_COLUMNS, i) * COLUMN_PITCH
                  + SPAN_INDEX(RIGHT_STEP, TILE_COLUMNS, s)] = next->right[s][i];
        }
    }
}

/* The sums of the tile at (first_unit, first_column) over rows `row` to `end`. */
INLINE void accumulate(real_t sums[ITEM_UNITS][ITEM_COLUMNS], int row, const int end, const int units,
                       const int columns, const int first_unit, const int first_column,
                       __global const left_t *left, __global const right_t *right,
                       __local real_t left_tiles[2][TILE_DEPTH * UNIT_PITCH],
                       __local real_t right_tiles[2][TILE_DEPTH * COLUMN_PITCH])
{
    int left_at[LEFT_SPANS];
    int right_at[RIGHT_SPANS];
    /* Units and columns past the last one repeat it; their sums are not stored. */
#pragma unroll
    for (int s = 0; s < LEFT_SPANS; s++) {
        left_at[s] =
            PLACE_AT(left_t, LEFT_AT(min(first_unit + SPAN_INDEX(LEFT_STEP, TILE_UNITS, s), units - 1)),
                     LEFT_STEP, TILE_UNITS);
    }
#pragma unroll
    for (int s = 0; s < RIGHT_SPANS; s++) {
        right_at[s] = PLACE_AT(
            right_t, RIGHT_AT(min(first_column + SPAN_INDEX(RIGHT_STEP, TILE_COLUMNS, s), columns - 1)),
            RIGHT_STEP, TILE_COLUMNS);
    }
    clear(sums);
    prefetch_t next;
#if CHEAP_ADDRESSES
    const int rows = FIRST_ROWS(end - row);
    fetch_step(&next, row, rows, left, left_at, right, right_at);
    put(&next, left_tiles[0], right_tiles[0]);
    barrier(CLK_LOCAL_MEM_FENCE);
    DECLARE_TILES(left, left_tiles[0], left_tiles[1]);
    DECLARE_TILES(right, right_tiles[0], right_tiles[1]);
    for (row += rows; row < end; row += TILE_DEPTH) {
        fetch_step(&next, row, TILE_DEPTH, left, left_at, right, right_at);
        multiply(sums, left_now, right_now);
        put(&next, LATER(left), LATER(right));
        barrier(CLK_LOCAL_MEM_FENCE);
        SWAP_TILES(left);
        SWAP_TILES(right);
    }
    multiply(sums, left_now, right_now);
#else
    fetch(&next, row, end, left, left_at, right, right_at);
    put(&next, left_tiles[0], right_tiles[0]);
    barrier(CLK_LOCAL_MEM_FENCE);
    int tile = 0;
    for (row += TILE_DEPTH; row < end; row += TILE_DEPTH) {
        fetch(&next, row, end, left, left_at, right, right_at);
        multiply(sums, left_tiles[tile], right_tiles[tile]);
        tile = 1 - tile;
        put(&next, left_tiles[tile], right_tiles[tile]);
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    multiply(sums, left_tiles[tile], right_tiles[tile]);
#endif
}
