/*
 * Convolution, forward, for few positions: output = epilogue(sum over input units and taps of weight * input), bound by
 * reading each weight once, as it lies (after the 1-D convolution of seed 002). A work-group makes BLOCK_UNITS output
 * units at all positions of a sample; its work-items share the columns (input unit, tap). Neighbours load neighbouring
 * runs of LANES columns, AHEAD of them for each unit before the first is used: only many loads on their way at once
 * hide the latency of so short a launch.
 *
 * Blobs:
 *   INPUT  read   its halo is the padding
 *   OUTPUT write
 * Arrays:
 *   WEIGHT read   OIHW, I counted within a group
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
 *   LANES        columns in a run: divides the weights of an output unit, so that runs are aligned
 *   BLOCK_UNITS  output units a work-group
 *   LOCAL_WIDTH  work-items that share the columns, at least BLOCK_UNITS * positions
 * Global:
 *   width   LOCAL_WIDTH
 *   height  blocks of output units, group by group
 *   units   COUNT
 */
#include "blob.h"
#include "convolution/epilogue.h"

#if LANES == 4
typedef float4 vector_t;
#define LANE(vector, lane) \
    ((lane) == 0 ? (vector).s0 : (lane) == 1 ? (vector).s1 : (lane) == 2 ? (vector).s2 : (vector).s3)
#else
typedef real_t vector_t;
#define LANE(vector, lane) (vector)
#endif

#define TAPS (FILTER_HEIGHT * FILTER_WIDTH)
#define BLOCKS ((GROUP_OUTPUT_UNITS + BLOCK_UNITS - 1) / BLOCK_UNITS)
#define POSITIONS (OUTPUT_UNIT_HEIGHT * OUTPUT_UNIT_WIDTH)
#define COLUMNS (GROUP_INPUT_UNITS * TAPS)
#define RUNS (COLUMNS / LANES)
#define ITEM_RUNS ((RUNS + LOCAL_WIDTH - 1) / LOCAL_WIDTH)
/* NOTE: as many as registers hold; a few more than a whole number of rounds would be loaded for nothing. */
#define AHEAD (ITEM_RUNS <= 6 ? ITEM_RUNS : 4)
#define VALUES (BLOCK_UNITS * POSITIONS)
/* The sums of a value are added in PARTS parts. */
#define PARTS (LOCAL_WIDTH / VALUES)

__kernel void convolution_forward_dot(READ_BLOB(input), WRITE_BLOB(output), EPILOGUE_BLOBS,
                                      READ_ARRAY(real_t, weight), EPILOGUE_ARRAYS, const int count)
{
    __local real_t shared[VALUES][LOCAL_WIDTH];
    __local real_t parts[VALUES][PARTS];
    const int item = get_local_id(0);
    const int n = get_global_id(2);
    const int group = get_global_id(1) / BLOCKS;
    const int first = get_global_id(1) % BLOCKS * BLOCK_UNITS;
    real_t sums[BLOCK_UNITS][POSITIONS];
    __global const vector_t *factors[BLOCK_UNITS];
#pragma unroll
    for (int u = 0; u < BLOCK_UNITS; u++) {
        /* Units past the last one repeat it; their sums are not stored. */
        const int unit = group * GROUP_OUTPUT_UNITS + min(first + u, GROUP_OUTPUT_UNITS - 1);
        factors[u] = (__global const vector_t *)(ARRAY(weight) + unit * COLUMNS);
#pragma unroll
        for (int p = 0; p < POSITIONS; p++) {
            sums[u][p] = 0;
        }
    }
    __global const real_t *from =
        input + BLOB_INDEX(INPUT, n, group * GROUP_INPUT_UNITS, -PAD_TOP, -PAD_LEFT);
    for (int start = item; start < RUNS; start += AHEAD * LOCAL_WIDTH) {
        vector_t ahead[AHEAD][BLOCK_UNITS];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
#pragma unroll
            for (int u = 0; u < BLOCK_UNITS; u++) {
                ahead[i][u] = factors[u][min(start + i * LOCAL_WIDTH, RUNS - 1)];
            }
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const int run = start + i * LOCAL_WIDTH;
            if (run >= RUNS) {
                break;
            }
#pragma unroll
            for (int lane = 0; lane < LANES; lane++) {
                const int column = run * LANES + lane;
                const int tap = column % TAPS;
                __global const real_t *values = from + column / TAPS * INPUT_UNIT_MEMORY_ELEMENTS
                                                + tap / FILTER_WIDTH * (DILATION_Y * INPUT_UNIT_MEMORY_WIDTH)
                                                + tap % FILTER_WIDTH * DILATION_X;
#pragma unroll
                for (int p = 0; p < POSITIONS; p++) {
                    const real_t value = values[p / OUTPUT_UNIT_WIDTH * (STRIDE_Y * INPUT_UNIT_MEMORY_WIDTH)
                                                + p % OUTPUT_UNIT_WIDTH * STRIDE_X];
#pragma unroll
                    for (int u = 0; u < BLOCK_UNITS; u++) {
                        sums[u][p] = MULTIPLY_ADD(LANE(ahead[i][u], lane), value, sums[u][p]);
                    }
                }
            }
        }
    }

    /* All values at once: first each part, then the parts. */
#pragma unroll
    for (int u = 0; u < BLOCK_UNITS; u++) {
#pragma unroll
        for (int p = 0; p < POSITIONS; p++) {
            shared[u * POSITIONS + p][item] = sums[u][p];
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (item < VALUES * PARTS) {
        real_t sum = 0;
        for (int i = item % PARTS; i < LOCAL_WIDTH; i += PARTS) {
            sum += shared[item / PARTS][i];
        }
        parts[item / PARTS][item % PARTS] = sum;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    const int unit = group * GROUP_OUTPUT_UNITS + first + item / POSITIONS;
    const int p = item % POSITIONS;
    if (item < VALUES && first + item / POSITIONS < GROUP_OUTPUT_UNITS) {
        real_t sum = 0;
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            sum += parts[item][part];
        }
        const int y = p / OUTPUT_UNIT_WIDTH;
        const int x = p % OUTPUT_UNIT_WIDTH;
        const unit_terms_t terms = UNIT_TERMS(unit);
        const real_t value = CELL_EPILOGUE(UNIT_EPILOGUE(sum, terms), n, unit, y, x);
        output[BLOB_INDEX(OUTPUT, n, unit, y, x)] = ACTIVATE(value);
    }
}
