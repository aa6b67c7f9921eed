/*
 * Average pooling, forward: output = epilogue((sum of the inputs in the window) / divisor).
 *
 * Blobs:
 *   INPUT  read
 *   OUTPUT write
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
 *   LANES          windows in a vector
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

#define DIVISOR(rows, columns) (COUNT_INCLUDE_PAD ? WINDOW_HEIGHT * WINDOW_WIDTH : (rows) * (columns))

/* The mean of a window at ``from``; its taps (first_v, first_u) to before (end_v, end_u) are data. */
INLINE number_t pool_window(__global const input_t *from, const int first_v, const int end_v,
                            const int first_u, const int end_u, number_index_t *winner)
{
    number_t sum = 0;
    for (int v = first_v; v < end_v; ++v) {
        for (int u = first_u; u < end_u; ++u) {
            sum += READ_VALUE(from, v * INPUT_UNIT_MEMORY_WIDTH + u);
        }
    }
    return sum / (real_t)DIVISOR(end_v - first_v, end_u - first_u);
}

/* The same for LANES windows side by side, the first at ``from``, with data in all columns. */
INLINE vector_t pool_vector(__global const input_t *from, const int first_v, const int end_v,
                            index_vector_t *winner)
{
    vector_t sum = 0;
    for (int v = first_v; v < end_v; ++v) {
        for (int u = 0; u < WINDOW_WIDTH; ++u) {
            sum += VECTOR_LOAD_STRIDED(from + v * INPUT_UNIT_MEMORY_WIDTH + u);
        }
    }
    return sum / (real_t)DIVISOR(end_v - first_v, WINDOW_WIDTH);
}

#include "pooling/forward.h"

__kernel void pooling_average_forward(READ_BLOB(input), WRITE_BLOB(output) MORE_ARRAYS, const int count)
{
    const int n = (int)get_global_id(2) / GLOBAL_UNITS;
    const int z = (int)get_global_id(2) % GLOBAL_UNITS;
    if (n >= count) {
        return;
    }
    pool_plane(input + BLOB_INDEX(INPUT, n, z, 0, 0), output + BLOB_INDEX(OUTPUT, n, z, 0, 0), 0,
               z MORE_ARGUMENTS);
}
