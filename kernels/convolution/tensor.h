/*
 * Convolutions as a product of matrices on tensor cores (tensor_core.h): packed weights (pack_weight_tensor.cl) times
 * the source at all positions of the batch. Rows and taps are those of tiled.h; positions may run along the rows of the
 * source, pads included (forward_positions.h).
 *
 * A work-group makes TILE_UNITS x TILE_COLUMNS sums, a warp WARP_UNITS x WARP_COLUMNS of them. STAGES steps of
 * TILE_DEPTH rows lie in local memory or are on their way there.
 *
 * The source's numbers are of the type source_t.
 *
 * Weights lie in the order of fragments, 16 units x 8 rows each, so that a work-item loads its part as one float4.
 * Sources lie as they come, a row of positions a source unit. To load four of them as one float4, fragment f of a warp
 * has every 4th of 32 columns: its column n is number f / 4 * 32 + n * 4 + f % 4.
 */
#include "convolution/group_tile.h"
#include "convolution/warp_product.h"

/* A pitch with which the rows of a fragment lie in different banks. */
#define COLUMN_PITCH (TILE_COLUMNS + 8)
#define STAGE_WEIGHTS (TILE_DEPTH * TILE_UNITS)
#define STAGE_ELEMENTS (STAGE_WEIGHTS + TILE_DEPTH * COLUMN_PITCH)
/* Positions that lie side by side in the source, from a whole quad on, come four at a time. */
#define SOURCE_RUN                                                                                  \
    (FILTER_HEIGHT * FILTER_WIDTH * STRIDE_Y * STRIDE_X == 1 && ROW_FIRST == 0 && COLUMN_FIRST == 0 \
             && ROW_POSITIONS == SOURCE_PITCH && POSITIONS % 4 == 0 && SOURCE_PLANE % 4 == 0        \
             && SOURCE_ORIGIN % 4 == 0                                                              \
         ? 4                                                                                        \
         : 1)
/* Source: every work-item copies SOURCE_COLUMNS runs of every SOURCE_STEP-th row. */
#define SOURCE_RUNS (TILE_COLUMNS / SOURCE_RUN)
#define SOURCE_STEP (ITEMS > SOURCE_RUNS ? ITEMS / SOURCE_RUNS : 1)
#define SOURCE_COLUMNS (SOURCE_RUNS > ITEMS ? SOURCE_RUNS / ITEMS : 1)
#define SOURCE_COLUMN(j) (((int)get_local_id(0) % SOURCE_RUNS + (j) * ITEMS) * SOURCE_RUN)
#define SOURCE_ROWS ((TILE_DEPTH + SOURCE_STEP - 1) / SOURCE_STEP)
#define QUADS (STAGE_WEIGHTS / 4)
#define QUAD_LOADS ((QUADS + ITEMS - 1) / ITEMS)
#define DEPTH_TILES (DEPTH_ROWS / TILE_DEPTH)
#define DEPTH_STEPS (TAPS_Y * TAPS_X * DEPTH_TILES)

/* Sums leave through local memory, 16 units a warp at a time. */
#define STAGED_UNITS (WARPS_Y * 16)
#define STAGED_PITCH (TILE_COLUMNS + 4)
#define LOCAL_ELEMENTS                                                                  \
    (TENSOR_EXCHANGE                                                                    \
     + (STAGES * STAGE_ELEMENTS > STAGED_UNITS * STAGED_PITCH ? STAGES * STAGE_ELEMENTS \
                                                              : STAGED_UNITS * STAGED_PITCH))

/* Where the packed weights of a tile begin. */
#define FIRST_FRAGMENT(group, unit) \
    ((size_t)(group) * FILTER_HEIGHT * FILTER_WIDTH * DEPTH_ROWS * UNIT_COLUMNS + (unit) * 8)

#if DEPTH_STEPS > 0
/* Begins to copy what this work-item brings of one step: its part of TILE_DEPTH rows. */
INLINE void copy_step(__local real_t *stage, const int step,
                      __global const source_t *const columns[SOURCE_COLUMNS], __global const real_t *packed)
{
    const int item = get_local_id(0);
    const int tap = step / DEPTH_TILES;
    const int depth = step % DEPTH_TILES * TILE_DEPTH;
    const int tap_y = tap / TAPS_X;
    const int tap_x = tap % TAPS_X;
    const int row =
        ((TAP_Y_FIRST + tap_y * TAP_Y_STEP) * FILTER_WIDTH + TAP_X_FIRST + tap_x * TAP_X_STEP) * DEPTH_ROWS
        + depth;
    packed += row * UNIT_COLUMNS;
    UNROLL
    for (int i = 0; i < QUAD_LOADS; i++) {
        const int quad = item + i * ITEMS;
        if (QUADS % ITEMS == 0 || quad < QUADS) {
            copy_quad(stage + quad * 4,
                      packed + (quad / (TILE_UNITS * 2) * UNIT_COLUMNS * 8 + quad % (TILE_UNITS * 2) * 4),
                      true);
        }
    }
    const int first = item / SOURCE_RUNS;
    const int shift = (depth + first) * SOURCE_PLANE + (ROW_FIRST + tap_y * ROW_STEP) * SOURCE_PITCH
                      + COLUMN_FIRST + tap_x * COLUMN_STEP;
    __local real_t *sources = stage + STAGE_WEIGHTS + first * COLUMN_PITCH;
    UNROLL
    for (int j = 0; j < SOURCE_COLUMNS; j++) {
        __global const source_t *from = columns[j] + shift;
        __local real_t *to = sources + SOURCE_COLUMN(j);
        UNROLL
        for (int i = 0; i < SOURCE_ROWS; i++) {
            const int row = i * SOURCE_STEP;
            if (TILE_DEPTH % SOURCE_STEP != 0 && first + row >= TILE_DEPTH) {
                break;
            }
            /* Rows after the last source unit are 0. */
            const bool is_there = DEPTH % TILE_DEPTH == 0 || depth + first + row < DEPTH;
            COPY_RUN(SOURCE_RUN, to + row * COLUMN_PITCH, from + row * SOURCE_PLANE, is_there);
        }
    }
}

#define FRAGMENT_STEPS (TILE_DEPTH / 8)

typedef struct {
    float4 weights[UNIT_FRAGMENTS];
    real_t sources[COLUMN_FRAGMENTS][2];
} fragments_t;

INLINE void load_fragments(fragments_t *fragments, __local const real_t *stage, const int k)
{
    __local const real_t *weights = stage + (WARP_Y * UNIT_FRAGMENTS * 32 + LANE) * 4 + k * 8 * TILE_UNITS;
    __local const real_t *sources =
        stage + STAGE_WEIGHTS + (k * 8 + LANE_COLUMN) * COLUMN_PITCH + WARP_X * WARP_COLUMNS + LANE_ROW * 4;
    UNROLL
    for (int u = 0; u < UNIT_FRAGMENTS; u++) {
        fragments->weights[u] = *(__local const float4 *)(weights + u * 128);
    }
    UNROLL
    for (int c = 0; c < COLUMN_FRAGMENTS; c += 4) {
        UNROLL
        for (int i = 0; i < 2; i++) {
            const float4 values = *(__local const float4 *)(sources + i * 4 * COLUMN_PITCH + c * 8);
            fragments->sources[c][i] = values.s0;
            fragments->sources[c + 1][i] = values.s1;
            fragments->sources[c + 2][i] = values.s2;
            fragments->sources[c + 3][i] = values.s3;
        }
    }
}

INLINE void multiply(sums_t sums, const fragments_t *fragments, __local real_t *exchange)
{
    UNROLL
    for (int c = 0; c < COLUMN_FRAGMENTS; c++) {
        const real_t right[2] = {round_tf32(fragments->sources[c][0]), round_tf32(fragments->sources[c][1])};
        UNROLL
        for (int u = 0; u < UNIT_FRAGMENTS; u++) {
            multiply_fragments(sums[u][c], fragments->weights[u], right, exchange);
        }
    }
}

#endif

/* sums = sum over all rows of the split of packed weight * source. */
INLINE void accumulate_tiles(sums_t sums, __global const source_t *const columns[SOURCE_COLUMNS],
                             __global const real_t *packed, __local real_t *memory)
{
    clear(sums);
#if DEPTH_STEPS > 0
#define COPY_STEP(stage, step) copy_step(stage, first + (step), columns, packed)
#define LOAD(part, stage, k) load_fragments(&fragments[part], stage, k)
#define MULTIPLY(part) multiply(sums, &fragments[part], memory + LOCAL_ELEMENTS - TENSOR_EXCHANGE)
    const int first = FIRST_STEP;
    const int steps = END_STEP - first;
    fragments_t fragments[2];
    PIPELINE(steps, memory, COPY_STEP, LOAD, MULTIPLY);
#endif
}

/*
 * Sums in local memory: unit STAGED_UNIT(pass, i) of column STAGED_COLUMN(j) is staged[STAGED_AT(i, j)], for i <
 * STAGED_ROWS and j < STAGED_COLUMNS.
 */
#define STAGED_PASSES UNIT_FRAGMENTS
#define STAGED_STEP (ITEMS > TILE_COLUMNS ? ITEMS / TILE_COLUMNS : 1)
#define STAGED_COLUMNS (TILE_COLUMNS > ITEMS ? TILE_COLUMNS / ITEMS : 1)
#define STAGED_COLUMN(j) ((int)get_local_id(0) % TILE_COLUMNS + (j) * ITEMS)
#define STAGED_ROWS (STAGED_UNITS / STAGED_STEP)
#define STAGED_ROW(i) (get_local_id(0) / TILE_COLUMNS + (i) * STAGED_STEP)
#define STAGED_UNIT(pass, i) (STAGED_ROW(i) / 16 * WARP_UNITS + (pass) * 16 + STAGED_ROW(i) % 16)
#define STAGED_AT(i, j) (STAGED_ROW(i) * STAGED_PITCH + STAGED_COLUMN(j))

INLINE void stage(sums_t sums, const int pass, __local real_t *staged)
{
    barrier(CLK_LOCAL_MEM_FENCE);
    UNROLL
    for (int c = 0; c < COLUMN_FRAGMENTS; c += 4) {
        UNROLL
        for (int i = 0; i < 4; i++) {
            *(__local float4 *)(staged + (WARP_Y * 16 + LANE_ROW + i / 2 * 8) * STAGED_PITCH
                                + WARP_X * WARP_COLUMNS + c * 8 + LANE_COLUMN * 8 + i % 2 * 4) =
                (float4)(sums[pass][c][i], sums[pass][c + 1][i], sums[pass][c + 2][i], sums[pass][c + 3][i]);
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
}
