/*
 * Convolution, backward, gradient of the weights, of units that are apart, on blobs of cells (cellwise.h): of each tap the
 * sum over samples and positions of delta * input. A work-group makes those of a row of the filters of a cell's units.
 * Splits of the samples' rows go to a partial sum each; gradient/reduce.cl adds them in a fixed order.
 *
 * Blobs, sizes as arguments:
 *   OUTPUT_DELTA read   data alone
 *   INPUT        read   its halo is the padding
 * Arrays:
 *   PARTIALS write  (SPLITS, OIHW)
 * Scalars:
 *   COUNT  samples in this batch
 *   RUNS   of a row
 *   SPLITS
 * Macros:
 *   FILTER_HEIGHT
 *   FILTER_WIDTH
 *   STRIDE_Y
 *   STRIDE_X
 *   DILATION_Y
 *   DILATION_X
 *   PAD_TOP
 *   PAD_LEFT
 *   RUN          cells side by side
 *   LOCAL_WIDTH  work-items of a group
 * Global:
 *   width   LOCAL_WIDTH
 *   height  rows of a filter * SPLITS
 *   units   units
 */
#include "blob.h"
#define GROUP_SUM_TYPE number_t
#include "group_sum.h"

__kernel void convolution_backward_weight_cellwise(READ_BLOB(output_delta), READ_BLOB(input),
                                                   WRITE_ARRAY(real_t, partials), const int count,
                                                   const int runs, const int splits)
{
    __local number_t group[LOCAL_WIDTH];
    const int z = get_global_id(2);
    const int v = (int)get_global_id(1) % FILTER_HEIGHT;
    const int split = (int)get_global_id(1) / FILTER_HEIGHT;
    const int rows = count * OUTPUT_DELTA_UNIT_HEIGHT;
    const int first = (int)((long)rows * split / SPLITS);
    const int last = (int)((long)rows * (split + 1) / SPLITS);
    number_t sums[FILTER_WIDTH];
#pragma unroll
    for (int u = 0; u < FILTER_WIDTH; u++) {
        sums[u] = 0;
    }
    for (int item = get_local_id(0); item < (last - first) * RUNS; item += LOCAL_WIDTH) {
        const int row = first + item / RUNS;
        const int x = item % RUNS * RUN;
        const int n = row / OUTPUT_DELTA_UNIT_HEIGHT;
        const int y = row - n * OUTPUT_DELTA_UNIT_HEIGHT;
        __global const output_delta_t *deltas = output_delta + BLOB_INDEX(OUTPUT_DELTA, n, z, y, x);
        __global const input_t *from =
            input + BLOB_INDEX(INPUT, n, z, y * STRIDE_Y - PAD_TOP + v * DILATION_Y, x * STRIDE_X - PAD_LEFT);
        /* NOTE: cells that several taps read are loaded once, and none but those of the row's results. */
        number_t deltas_of_run[RUN];
#pragma unroll
        for (int i = 0; i < RUN; i++) {
            deltas_of_run[i] = x + i < OUTPUT_DELTA_UNIT_WIDTH ? READ_VALUE(deltas, i) : (number_t)(0);
        }
        const int cells = (OUTPUT_DELTA_UNIT_WIDTH - 1 - x) * STRIDE_X + (FILTER_WIDTH - 1) * DILATION_X + 1;
#pragma unroll
        for (int j = 0; j <= (RUN - 1) * STRIDE_X + (FILTER_WIDTH - 1) * DILATION_X; j++) {
            const number_t cell = j < cells ? READ_VALUE(from, j) : (number_t)(0);
#pragma unroll
            for (int u = 0; u < FILTER_WIDTH; u++) {
                const int i = (j - u * DILATION_X) / STRIDE_X;
                if (j - u * DILATION_X == i * STRIDE_X && i >= 0 && i < RUN) {
                    sums[u] += deltas_of_run[i] * cell;
                }
            }
        }
    }
    __global real_t *results =
        ARRAY(partials)
        + ((size_t)split * OUTPUT_DELTA_UNIT_COUNT + z) * CELL_UNITS * (FILTER_HEIGHT * FILTER_WIDTH)
        + v * FILTER_WIDTH;
#pragma unroll
    for (int u = 0; u < FILTER_WIDTH; u++) {
        const number_t sum = GROUP_SUM(sums[u], group);
        if (get_local_id(0) == 0) {
            EACH_UNIT(sum, results[unit * (FILTER_HEIGHT * FILTER_WIDTH) + u] = unit_number);
        }
    }
}
