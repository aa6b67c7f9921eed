/*
 * Average pooling, backward: input_delta = sum of output_delta / divisor over the windows that
 * cover this input.
 *
 * Blobs:
 *   OUTPUT_DELTA read
 *   INPUT_DELTA  update
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   WINDOW_HEIGHT  rows of the window
 *   WINDOW_WIDTH   columns of the window
 *   STRIDE_Y       rows from window to window
 *   STRIDE_X       columns from window to window
 *   PAD_TOP        rows of the first window above the data
 *   PAD_LEFT       columns of the first window left of the data
 *   COUNT_INCLUDE_PAD  1: the divisor is the window's area; 0: its taps that are data
 *   ACCUMULATE     1: add to INPUT_DELTA
 *   LANES          groups in a vector
 *   GROUP_BEGIN    the first group of STRIDE_X input columns with data in it
 *   GROUP_END      after the last such group
 *   INNER_BEGIN    the first group of data alone that needs no clamping
 *   INNER_END      after the last such group; there are none, or at least LANES
 *   GLOBAL_WIDTH   step along x
 *   GLOBAL_HEIGHT  step along y
 *   GLOBAL_UNITS   units
 * Tunables:
 *   MAXIMUM_LANES  loops 16, lanes 1 of 1 2 4 8 16: most lanes
 * Global:
 *   width   groups of STRIDE_X input columns
 *   height  input rows
 *   units   units * COUNT
 */
#include "blob.h"
#include "vector.h"
#include "pooling/winners.h"

#define DIVISOR(area) (real_t)(COUNT_INCLUDE_PAD ? WINDOW_HEIGHT * WINDOW_WIDTH : (area))

/* What a window with data in ``area`` taps passes to each of them. */
INLINE number_t window_share(__global const output_delta_t *delta, __global const winner_t *winner,
                             const int tap, const int area)
{
    return VALUE_OF(delta) / DIVISOR(area);
}

/* The same for LANES windows side by side. */
INLINE vector_t vector_share(__global const output_delta_t *delta, __global const winner_t *winner,
                             const int tap, const int area)
{
    return VECTOR_LOAD(delta) / DIVISOR(area);
}

#include "pooling/backward.h"

__kernel void pooling_average_backward(READ_BLOB(output_delta), WRITE_BLOB(input_delta), const int count)
{
    const int n = (int)get_global_id(2) / GLOBAL_UNITS;
    const int z = (int)get_global_id(2) % GLOBAL_UNITS;
    if (n >= count) {
        return;
    }
    pool_back_plane(output_delta + BLOB_INDEX(OUTPUT_DELTA, n, z, 0, 0), 0,
                    input_delta + BLOB_INDEX(INPUT_DELTA, n, z, 0, 0));
}
