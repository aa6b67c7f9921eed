/*
 * Max pooling, forward, in training: output = epilogue(the largest input in the window).
 * Also keeps which tap that was.
 *
 * Blobs:
 *   INPUT  read
 *   OUTPUT write
 * Arrays:
 *   WINNERS write  each window's tap v * WINDOW_WIDTH + u: (COUNT, units, height, width), of WINNER_BYTES
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   WINDOW_HEIGHT  rows of the window
 *   WINDOW_WIDTH   columns of the window
 *   STRIDE_Y       rows from window to window
 *   STRIDE_X       columns from window to window
 *   PAD_TOP        rows of the first window above the data
 *   PAD_LEFT       columns of the first window left of the data
 *   LANES          windows in a vector
 *   WINNER_BYTES   1, 2 or 4: of the number of a tap
 *   MORE_ARGUMENTS what MORE_ARRAYS are called, to hand them on
 *   FULL_BEGIN     the first output column whose window lies within the data
 *   FULL_END       after the last such column; there are none, or at least LANES
 *   GLOBAL_WIDTH   step along x
 *   GLOBAL_HEIGHT  step along y
 *   GLOBAL_UNITS   units
 * Tunables:
 *   MAXIMUM_LANES  loops 16, lanes 1 of 1 2 4 8 16: most lanes
 * Global:
 *   width   output columns
 *   height  output rows
 *   units   units * COUNT
 */
#include "blob.h"
#define STRIDED_TYPE input_t
#include "vector.h"
#include "pooling/maximum.h"
#include "pooling/forward.h"

__kernel void pooling_max_forward_training(READ_BLOB(input), WRITE_BLOB(output),
                                           WRITE_ARRAY(int, winners) MORE_ARRAYS, const int count)
{
    const int n = (int)get_global_id(2) / GLOBAL_UNITS;
    const int z = (int)get_global_id(2) % GLOBAL_UNITS;
    if (n >= count) {
        return;
    }
    pool_plane(input + BLOB_INDEX(INPUT, n, z, 0, 0), output + BLOB_INDEX(OUTPUT, n, z, 0, 0),
               (__global winner_t *)ARRAY(winners) + (size_t)OUTPUT_UNIT_ELEMENTS * get_global_id(2),
               z MORE_ARGUMENTS);
}
