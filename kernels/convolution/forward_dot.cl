/*
 * Convolution, forward, for one position: output = epilogue(sum over input units and taps of weight * input), bound by
 * reading each weight once, as it lies. A work-group makes BLOCK_UNITS output units of a sample; its work-items share
 * the columns (input unit, tap). Neighbours load neighbouring runs of LANES columns, AHEAD of them for each unit before
 * the first is used: only many loads on their way at once hide the latency of so short a launch.
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
 *   DILATION_Y
 *   DILATION_X
 *   PAD_TOP
 *   PAD_LEFT
 *   LANES        columns in a run: divides the weights of an output unit, so that runs are aligned
 *   BLOCK_UNITS  output units a work-group
 *   LOCAL_WIDTH  work-items that share the columns, a multiple of 32
 * Global:
 *   width   LOCAL_WIDTH x blocks of output units, group by group
 *   height  1
 *   units   COUNT
 */
#include "blob.h"
#include "convolution/epilogue.h"
#include "convolution/dot.h"
#include "vector.h"

#if LANES == 4
#define LANE_OF(vector, lane) \
    ((lane) == 0 ? (vector).s0 : (lane) == 1 ? (vector).s1 : (lane) == 2 ? (vector).s2 : (vector).s3)
#else
#define LANE_OF(vector, lane) (vector)
#endif

#define TAPS (FILTER_HEIGHT * FILTER_WIDTH)
#define COLUMNS (GROUP_INPUT_UNITS * TAPS)
#define RUNS (COLUMNS / LANES)
#define ITEM_RUNS ((RUNS + LOCAL_WIDTH - 1) / LOCAL_WIDTH)
/* NOTE: as many as registers hold; a few more than a whole number of rounds would be loaded for nothing. */
#define AHEAD (ITEM_RUNS <= 6 ? ITEM_RUNS : 4)

__kernel void convolution_forward_dot(READ_BLOB(input), WRITE_BLOB(output), EPILOGUE_BLOBS,
                                      READ_ARRAY(weight_t, weight), EPILOGUE_ARRAYS, const int count)
{
    __local real_t room[SUMS * LOCAL_WIDTH];
    __local real_t parts[SUMS][WARPS];
    const int item = get_local_id(0);
    const int n = get_global_id(2);
    const int group = (int)get_group_id(0) / BLOCKS;
    const int first = (int)get_group_id(0) % BLOCKS * BLOCK_UNITS;
    __global const weight_t *factors[BLOCK_UNITS];
#pragma unroll
    for (int u = 0; u < BLOCK_UNITS; u++) {
        /* Units past the last one repeat it; their sums are not stored. */
        const int unit = group * GROUP_OUTPUT_UNITS + min(first + u, GROUP_OUTPUT_UNITS - 1);
        factors[u] = ARRAY(weight) + unit * COLUMNS;
    }
    __global const input_t *from =
        input + BLOB_INDEX(INPUT, n, group * GROUP_INPUT_UNITS, -PAD_TOP, -PAD_LEFT);
    real_t sums[SUMS];
    clear_sums(sums);
    for (int start = item; start < RUNS; start += AHEAD * LOCAL_WIDTH) {
        vector_t ahead[AHEAD][BLOCK_UNITS];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
#pragma unroll
            for (int u = 0; u < BLOCK_UNITS; u++) {
                ahead[i][u] =
                    VECTOR_LOAD_ALIGNED(factors[u] + min(start + i * LOCAL_WIDTH, RUNS - 1) * LANES);
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
                const real_t value =
                    READ_VALUE(from, column / TAPS * INPUT_UNIT_MEMORY_ELEMENTS
                                         + tap / FILTER_WIDTH * (DILATION_Y * INPUT_UNIT_MEMORY_WIDTH)
                                         + tap % FILTER_WIDTH * DILATION_X);
#pragma unroll
                for (int u = 0; u < BLOCK_UNITS; u++) {
                    sums[u] = MULTIPLY_ADD(LANE_OF(ahead[i][u], lane), value, sums[u]);
                }
            }
        }
    }
    store_sums(sums, n, group, first, room, parts, output, output_unit_offset, EPILOGUE_ARGUMENTS);
}
