/*
 * Convolution, forward, of units that are apart, on blobs of cells (cellwise.h): output = epilogue(sum over taps of weight
 * * input).
 *
 * Blobs, sizes as arguments:
 *   OUTPUT write
 *   INPUT  read   its halo is the padding
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
 *   RUN          cells side by side
 *   LOCAL_WIDTH  work-items of a group
 * Global:
 *   width  runs of a plane
 *   units  units * COUNT
 */
#include "blob.h"
#include "convolution/epilogue.h"
#include "convolution/cellwise.h"

__kernel void convolution_forward_cellwise(WRITE_BLOB(output), READ_BLOB(input), EPILOGUE_BLOBS,
                                           READ_ARRAY(weight_t, weight), EPILOGUE_ARRAYS, const int count,
                                           const int runs)
{
    __local number_t filters[TAPS];
    const int n = QUOTIENT((int)get_global_id(2), OUTPUT, UNIT_COUNT);
    const int z = (int)get_global_id(2) - n * OUTPUT_UNIT_COUNT;
    load_filters(filters, weight_array, weight_offset, z);
    const int y = (int)get_global_id(0) / RUNS;
    const int x = (int)get_global_id(0) % RUNS * RUN;
    if (n >= count || y >= OUTPUT_UNIT_HEIGHT) {
        return;
    }
    number_t sums[RUN];
#pragma unroll
    for (int i = 0; i < RUN; i++) {
        sums[i] = 0;
    }
#pragma unroll
    for (int v = 0; v < FILTER_HEIGHT; v++) {
        __global const input_t *row =
            input + BLOB_INDEX(INPUT, n, z, y * STRIDE_Y - PAD_TOP + v * DILATION_Y, x * STRIDE_X - PAD_LEFT);
#pragma unroll
        for (int u = 0; u < FILTER_WIDTH; u++) {
            const number_t factor = filters[v * FILTER_WIDTH + u];
#pragma unroll
            for (int i = 0; i < RUN; i++) {
                sums[i] += factor * READ_VALUE(row, i * STRIDE_X + u * DILATION_X);
            }
        }
    }
    const number_t bias = UNIT_BIAS(z);
    __global output_t *to = output + BLOB_INDEX(OUTPUT, n, z, y, x);
#pragma unroll
    for (int i = 0; i < RUN; i++) {
        if (x + i < OUTPUT_UNIT_WIDTH) {
            const number_t value = CELL_EPILOGUE(BIASED(sums[i], bias, z), n, z, y, x + i);
            WRITE_VALUE(to, i, FINISHED(value, z));
        }
    }
}
