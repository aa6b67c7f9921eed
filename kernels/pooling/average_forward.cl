/*
 * Average pooling, forward: output = (sum of the inputs in the window) / divisor.
 *
 * Blobs:
 *   INPUT  read
 *   OUTPUT write
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
 *   GLOBAL_WIDTH   step along x
 *   GLOBAL_HEIGHT  step along y
 *   GLOBAL_UNITS   units
 * Global:
 *   width   output columns
 *   height  output rows
 *   units   units * COUNT
 */
#include "blob.h"

/* The mean of a window at (top, left), whose taps are data from (first_v, first_u) to before (end_v, end_u). */
inline real_t pool_window(__global const real_t *input, const int top, const int left, const int first_v,
                          const int end_v, const int first_u, const int end_u, int *winner)
{
    const int start = top * INPUT_UNIT_MEMORY_WIDTH + left;
    accumulator_t sum = 0;
    #pragma unroll
    for (int v = first_v; v < end_v; ++v) {
        #pragma unroll
        for (int u = first_u; u < end_u; ++u) {
            sum += input[start + v * INPUT_UNIT_MEMORY_WIDTH + u];
        }
    }
    return sum / (COUNT_INCLUDE_PAD ? WINDOW_HEIGHT * WINDOW_WIDTH : (end_v - first_v) * (end_u - first_u));
}

#include "pooling/forward.h"

__kernel void pooling_average_forward(READ_BLOB(input), WRITE_BLOB(output), const int count)
{
    const int n = get_global_id(2) / GLOBAL_UNITS;
    const int z = get_global_id(2) % GLOBAL_UNITS;
    if (n >= count) {
        return;
    }
    pool_plane(input + BLOB_INDEX(INPUT, n, z, 0, 0), output + BLOB_INDEX(OUTPUT, n, z, 0, 0), 0);
}
