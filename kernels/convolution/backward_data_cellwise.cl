/*
 * Convolution, backward, delta of the input, of units that are apart, on blobs of cells (cellwise.h): input_delta = sum over
 * taps of weight * output_delta, where the stride divides the way from a cell to its tap's.
 *
 * Blobs, sizes as arguments:
 *   INPUT_DELTA  update
 *   OUTPUT_DELTA read
 * Arrays:
 *   WEIGHT read   OIHW, with one I
 * Scalars:
 *   COUNT  samples in this batch
 *   RUNS   of a row
 * Macros:
 *   FILTER_HEIGHT
 *   FILTER_WIDTH
 *   STRIDE_Y
 *   STRIDE_X
 *   DILATION_Y
 *   DILATION_X
 *   PAD_TOP
 *   PAD_LEFT
 *   ACCUMULATE   1: add to INPUT_DELTA
 *   RUN          cells side by side, a multiple of STRIDE_X
 *   LOCAL_WIDTH  work-items of a group
 * Global:
 *   width  runs of a plane
 *   units  units * COUNT
 */
#include "blob.h"
#include "put.h"
#include "convolution/cellwise.h"

__kernel void convolution_backward_data_cellwise(WRITE_BLOB(input_delta), READ_BLOB(output_delta),
                                                 READ_ARRAY(weight_t, weight), const int count,
                                                 const int runs)
{
    __local number_t filters[TAPS];
    const int n = QUOTIENT((int)get_global_id(2), INPUT_DELTA, UNIT_COUNT);
    const int z = (int)get_global_id(2) - n * INPUT_DELTA_UNIT_COUNT;
    load_filters(filters, weight_array, weight_offset, z);
    const int y = (int)get_global_id(0) / RUNS;
    const int x = (int)get_global_id(0) % RUNS * RUN;
    if (n >= count || y >= INPUT_DELTA_UNIT_HEIGHT) {
        return;
    }
    number_t sums[RUN];
#pragma unroll
    for (int i = 0; i < RUN; i++) {
        sums[i] = 0;
    }
#pragma unroll
    for (int v = 0; v < FILTER_HEIGHT; v++) {
        const int down = y + PAD_TOP - v * DILATION_Y;
        if (down % STRIDE_Y == 0) {
            __global const output_delta_t *row =
                output_delta + BLOB_INDEX(OUTPUT_DELTA, n, z, down / STRIDE_Y, x / STRIDE_X);
#pragma unroll
            for (int u = 0; u < FILTER_WIDTH; u++) {
                const number_t factor = filters[v * FILTER_WIDTH + u];
#pragma unroll
                for (int i = 0; i < RUN; i++) {
                    if ((i + PAD_LEFT - u * DILATION_X) % STRIDE_X == 0) {
                        sums[i] += factor * READ_VALUE(row, (i + PAD_LEFT - u * DILATION_X) / STRIDE_X);
                    }
                }
            }
        }
    }
    __global input_delta_t *to = input_delta + BLOB_INDEX(INPUT_DELTA, n, z, y, x);
    number_t olds[RUN];
#pragma unroll
    for (int i = 0; i < RUN; i++) {
        olds[i] = OLD(to + i);
    }
#pragma unroll
    for (int i = 0; i < RUN; i++) {
        if (x + i < INPUT_DELTA_UNIT_WIDTH) {
            WRITE_VALUE(to, i, PLUS_OLD(sums[i], olds[i]));
        }
    }
}
