/*
 * Average pooling, backward: input_delta = sum over the windows that cover this input of output_delta / divisor.
 *
 * Blobs:
 *   OUTPUT_DELTA read
 *   INPUT_DELTA  update
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   WINDOW_HEIGHT  rows of the window
 *   WINDOW_WIDTH   columns of the window
 *   STRIDE_HEIGHT  rows from window to window
 *   STRIDE_WIDTH   columns from window to window
 *   PAD_TOP        rows of the first window above the data
 *   PAD_LEFT       columns of the first window left of the data
 *   COUNT_INCLUDE_PAD  1: the divisor is the window's area; 0: the number of its taps that are data
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

/* What a window in column x, with data in ``area`` taps, passes to each of them. */
inline real_t window_share(__global const real_t *delta, __global const int *winners, const int x, const int v,
                           const int u, const int area)
{
    return delta[x] / (COUNT_INCLUDE_PAD ? WINDOW_HEIGHT * WINDOW_WIDTH : area);
}

#include "pooling/backward.h"

__kernel void pooling_average_backward(READ_BLOB(output_delta), WRITE_BLOB(input_delta), const int count)
{
    const int n = get_global_id(2) / GLOBAL_UNITS;
    const int z = get_global_id(2) % GLOBAL_UNITS;
    if (n >= count) {
        return;
    }
    pool_back_plane(output_delta + BLOB_INDEX(OUTPUT_DELTA, n, z, 0, 0), 0,
                    input_delta + BLOB_INDEX(INPUT_DELTA, n, z, 0, 0));
}
