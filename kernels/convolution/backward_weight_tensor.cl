/*
 * Convolution, backward, gradient of the weights, on tensor cores: gradient[o][k] = sum over samples and positions
 * of delta[o] * input at the shift of column k = (input unit, filter row, filter column). A work-group makes TILE_UNITS
 * x TILE_COLUMNS sums, a warp WARP_UNITS x WARP_COLUMNS of them. STAGES steps of 32 positions (cells (n, y, x) of the
 * delta, any stride) of all units and columns lie in local memory or are on their way there.
 * Splits of the positions go to a partial sum each; gradient/reduce.cl adds them in a fixed order.
 *
 * Blobs:
 *   INPUT        read   its halo is the padding
 *   OUTPUT_DELTA read
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
 *   STRIDE_Y
 *   STRIDE_X
 *   DILATION_Y
 *   DILATION_X
 *   PAD_TOP
 *   PAD_LEFT
 *   SPLITS
 *   TILE_UNITS      output units a work-group
 *   TILE_COLUMNS    columns a work-group
 *   TILE_DEPTH      positions a step: 32, one for each work-item of a warp
 *   WARP_UNITS      output units a warp
 *   WARP_COLUMNS    columns a warp
 *   STAGES          steps in local memory
 * Global:
 *   width   work-items a tile * tiles
 *   height  SPLITS
 *   units   groups
 */
#include "blob.h"
#include "convolution/warp_product.h"

#define COLUMNS (GROUP_INPUT_UNITS * FILTER_HEIGHT * FILTER_WIDTH)
#define UNIT_TILES ((GROUP_OUTPUT_UNITS + TILE_UNITS - 1) / TILE_UNITS)
/*
 * Planes of one pitch are read as they lie, flat: the delta is 0 between its rows. That spares copies whose neighbours
 * are not neighbours in memory, which take several times as long.
 */
#if STRIDE_Y * STRIDE_X == 1 && INPUT_UNIT_MEMORY_WIDTH == OUTPUT_DELTA_UNIT_MEMORY_WIDTH
#define ROW_POSITIONS OUTPUT_DELTA_UNIT_MEMORY_WIDTH
#else
#define ROW_POSITIONS OUTPUT_DELTA_UNIT_WIDTH
#endif
#define POSITIONS ((OUTPUT_DELTA_UNIT_HEIGHT - 1) * ROW_POSITIONS + OUTPUT_DELTA_UNIT_WIDTH)
#define STAGE_ELEMENTS ((TILE_UNITS + TILE_COLUMNS) * TILE_DEPTH)
#define LOCAL_ELEMENTS (STAGES * STAGE_ELEMENTS + TENSOR_EXCHANGE)
/* Where a position of a unit or column lies: odd rows have their halves swapped, to be in the other banks. */
#define LOCAL_AT(row, position) ((row) * TILE_DEPTH + ((position) ^ (row) % 2 * 16))

/* A 1x1 convolution of planes without padding reads positions that lie side by side, from whole quads on: four at once. */
#define IS_FLAT(ROLE)                                                                                       \
    (ROLE##_UNIT_MEMORY_WIDTH == ROLE##_UNIT_WIDTH && ROLE##_UNIT_ELEMENTS % 4 == 0                         \
     && ROLE##_UNIT_MEMORY_ELEMENTS % 4 == 0                                                                \
     && (ROLE##_UNIT_MEMORY_HEIGHT_OFFSET * ROLE##_UNIT_MEMORY_WIDTH + ROLE##_UNIT_MEMORY_WIDTH_OFFSET) % 4 \
            == 0)
#define RUN                                                                                   \
    (FILTER_HEIGHT * FILTER_WIDTH * STRIDE_Y * STRIDE_X == 1 && PAD_TOP == 0 && PAD_LEFT == 0 \
             && IS_FLAT(INPUT) && IS_FLAT(OUTPUT_DELTA)                                       \
         ? 4                                                                                  \
         : 1)
/* A work-item copies one run of every ROW_STEP-th unit and column. */
#define ROW_RUNS (TILE_DEPTH / RUN)
#define ROW_STEP (ITEMS / ROW_RUNS)
/* The shifts of one work-item's columns lie side by side: it loads them at once, since no load may pass a copy. */
#define COLUMN_LOADS (TILE_COLUMNS / ROW_STEP)

/* Begins to copy TILE_DEPTH positions. */
INLINE void copy_step(__local real_t *stage, const int first, const int positions, READ_BLOB(output_delta),
                      READ_BLOB(input), __local const int *shifts, const int first_unit, const int group)
{
    /* Positions past the last one, and units, are 0. */
    const int position = first + (int)get_local_id(0) % ROW_RUNS * RUN;
    const bool is_there = position < positions;
    const int p = min(position, positions - RUN);
    const int n = p / POSITIONS;
    const int y = p % POSITIONS / ROW_POSITIONS;
    const int x = p % POSITIONS % ROW_POSITIONS;
    const int row = (int)get_local_id(0) / ROW_RUNS;
    const int unit = first_unit + row;
    __global const output_delta_t *deltas =
        output_delta + BLOB_INDEX(OUTPUT_DELTA, n, group * GROUP_OUTPUT_UNITS + unit, y, x);
    __global const input_t *inputs = input + BLOB_INDEX(INPUT, n, 0, y * STRIDE_Y, x * STRIDE_X);
    __local real_t *to = stage + LOCAL_AT(row, position - first);
    UNROLL
    for (int i = 0; i < TILE_UNITS; i += ROW_STEP) {
        const bool is_unit = GROUP_OUTPUT_UNITS % TILE_UNITS == 0 || unit + i < GROUP_OUTPUT_UNITS;
        COPY_RUN(RUN, to + i * TILE_DEPTH, deltas + i * OUTPUT_DELTA_UNIT_MEMORY_ELEMENTS,
                 is_there && is_unit);
    }
    to += TILE_UNITS * TILE_DEPTH;
    int own[COLUMN_LOADS];
    UNROLL
    for (int i = 0; i < COLUMN_LOADS; i += 4) {
        vstore4(*(__local const int4 *)(shifts + row * COLUMN_LOADS + i), 0, own + i);
    }
    UNROLL
    for (int i = 0; i < COLUMN_LOADS; i++) {
        COPY_RUN(RUN, to + i * ROW_STEP * TILE_DEPTH, inputs + own[i], is_there);
    }
}

/* A step is two steps of fragments, 16 positions each. */
#define FRAGMENT_STEPS 2

typedef struct {
    float4 units[UNIT_FRAGMENTS][2];
    float4 columns[COLUMN_FRAGMENTS];
} fragments_t;

INLINE void load_fragments(fragments_t *fragments, __local const real_t *stage, const int k)
{
    const int position = k * 16 + LANE_COLUMN * 4;
    UNROLL
    for (int u = 0; u < UNIT_FRAGMENTS; u++) {
        const int row = WARP_Y * WARP_UNITS + u * 16 + LANE_ROW;
        fragments->units[u][0] = *(__local const float4 *)(stage + LOCAL_AT(row, position));
        fragments->units[u][1] = *(__local const float4 *)(stage + LOCAL_AT(row + 8, position));
    }
    UNROLL
    for (int c = 0; c < COLUMN_FRAGMENTS; c++) {
        const int row = TILE_UNITS + WARP_X * WARP_COLUMNS + c * 8 + LANE_ROW;
        fragments->columns[c] = *(__local const float4 *)(stage + LOCAL_AT(row, position));
    }
}

INLINE float4 rounded(const float a, const float b, const float c, const float d)
{
    return (float4)(round_tf32(a), round_tf32(b), round_tf32(c), round_tf32(d));
}

INLINE void multiply(sums_t sums, const fragments_t *fragments, __local real_t *exchange)
{
    float4 columns[COLUMN_FRAGMENTS];
    UNROLL
    for (int c = 0; c < COLUMN_FRAGMENTS; c++) {
        const float4 values = fragments->columns[c];
        columns[c] = rounded(values.s0, values.s1, values.s2, values.s3);
    }
    UNROLL
    for (int u = 0; u < UNIT_FRAGMENTS; u++) {
        /* Of its four positions a work-item gives the first two to one product, the others to the next. */
        const float4 low = fragments->units[u][0];
        const float4 high = fragments->units[u][1];
        const float4 left[2] = {rounded(low.s0, high.s0, low.s1, high.s1),
                                rounded(low.s2, high.s2, low.s3, high.s3)};
        UNROLL
        for (int c = 0; c < COLUMN_FRAGMENTS; c++) {
            const real_t right[2][2] = {{columns[c].s0, columns[c].s1}, {columns[c].s2, columns[c].s3}};
            multiply_fragments(sums[u][c], left[0], right[0], exchange);
            multiply_fragments(sums[u][c], left[1], right[1], exchange);
        }
    }
}

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void
convolution_backward_weight_tensor(READ_BLOB(input), READ_BLOB(output_delta), WRITE_ARRAY(real_t, partials),
                                   const int count)
{
    __local real_t memory[LOCAL_ELEMENTS] __attribute__((aligned(128)));
    __local int shifts[TILE_COLUMNS] __attribute__((aligned(16)));
    const int first_unit = get_group_id(0) % UNIT_TILES * TILE_UNITS;
    const int first_column = get_group_id(0) / UNIT_TILES * TILE_COLUMNS;
    const int split = get_global_id(1);
    const int group = get_global_id(2);

    for (int i = get_local_id(0); i < TILE_COLUMNS; i += ITEMS) {
        /* Columns past the last one repeat it; their sums are not stored. */
        const int k = min(first_column + i / COLUMN_LOADS + i % COLUMN_LOADS * ROW_STEP, COLUMNS - 1);
        shifts[i] =
            (group * GROUP_INPUT_UNITS + k / (FILTER_HEIGHT * FILTER_WIDTH)) * INPUT_UNIT_MEMORY_ELEMENTS
            + (k / FILTER_WIDTH % FILTER_HEIGHT * DILATION_Y - PAD_TOP) * INPUT_UNIT_MEMORY_WIDTH
            + k % FILTER_WIDTH * DILATION_X - PAD_LEFT;
    }
    barrier(CLK_LOCAL_MEM_FENCE);

    const int positions = count * POSITIONS;
    const int all_steps = (positions + TILE_DEPTH - 1) / TILE_DEPTH;
    const int first_step = (int)((long)all_steps * split / SPLITS);
    const int steps = (int)((long)all_steps * (split + 1) / SPLITS) - first_step;
    sums_t sums;
    clear(sums);
#define COPY_STEP(stage, step)                                                                              \
    copy_step(stage, (first_step + (step)) * TILE_DEPTH, positions, output_delta, output_delta_unit_offset, \
              input, input_unit_offset, shifts, first_unit, group)
#define LOAD(part, stage, k) load_fragments(&fragments[part], stage, k)
#define MULTIPLY(part) multiply(sums, &fragments[part], memory + STAGES * STAGE_ELEMENTS)
    fragments_t fragments[2];
    PIPELINE(steps, memory, COPY_STEP, LOAD, MULTIPLY);

    __global real_t *results =
        ARRAY(partials) + ((size_t)split * GROUPS + group) * GROUP_OUTPUT_UNITS * COLUMNS;
    UNROLL
    for (int u = 0; u < UNIT_FRAGMENTS; u++) {
        UNROLL
        for (int c = 0; c < COLUMN_FRAGMENTS; c++) {
            UNROLL
            for (int i = 0; i < 4; i++) {
                const int unit = first_unit + WARP_Y * WARP_UNITS + u * 16 + LANE_ROW + i / 2 * 8;
                const int column = first_column + WARP_X * WARP_COLUMNS + c * 8 + LANE_COLUMN * 2 + i % 2;
                if (unit < GROUP_OUTPUT_UNITS && column < COLUMNS) {
                    results[unit * COLUMNS + column] = sums[u][c][i];
                }
            }
        }
    }
}
