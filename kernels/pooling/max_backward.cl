/*
 * Max pooling, backward: input_delta = sum of the output_delta of the windows in which this input won.
 *
 * Blobs:
 *   OUTPUT_DELTA read
 *   INPUT_DELTA  update
 * Arrays:
 *   WINNERS read  tap v * WINDOW_WIDTH + u of each window: (COUNT, units, height, width), no padding
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   WINDOW_HEIGHT  rows of the window
 *   WINDOW_WIDTH   columns of the window
 *   STRIDE_HEIGHT  rows from window to window
 *   STRIDE_WIDTH   columns from window to window
 *   PAD_TOP        rows of the first window above the data
 *   PAD_LEFT       columns of the first window left of the data
 *   ACCUMULATE     1: add to INPUT_DELTA
 *   GLOBAL_WIDTH   step along x
 *   GLOBAL_HEIGHT  step along y
 *   GLOBAL_UNITS   units
 * Global:
 *   width   groups of STRIDE_WIDTH input columns
 *   height  input rows
 *   units   units * COUNT
 */
#include "blob.h"

/* What a window in column x passes to its tap (v, u). */
inline real_t window_share(__global const real_t *delta, __global const int *winners, const int x, const int v,
                           const int u, const int area)
{
    const real_t share = delta[x];
    return winners[x] == v * WINDOW_WIDTH + u ? share : 0;
}

#include "pooling/backward.h"

__kernel void pooling_max_backward(READ_BLOB(output_delta), WRITE_BLOB(input_delta), READ_ARRAY(int, winners),
                                   const int count)
{
    const int n = get_global_id(2) / GLOBAL_UNITS;
    const int z = get_global_id(2) % GLOBAL_UNITS;
    if (n >= count) {
        return;
    }
    pool_back_plane(output_delta + BLOB_INDEX(OUTPUT_DELTA, n, z, 0, 0),
                    ARRAY(winners) + (size_t)OUTPUT_DELTA_UNIT_ELEMENTS * get_global_id(2),
                    input_delta + BLOB_INDEX(INPUT_DELTA, n, z, 0, 0));
}
