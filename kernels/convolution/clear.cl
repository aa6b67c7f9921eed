/*
 * Convolution, backward, delta of the input: all of it is 0, before products set what taps meet.
 *
 * Blobs, sizes as arguments:
 *   INPUT_DELTA write
 * Scalars:
 *   COUNT          samples in this batch
 *   GLOBAL_WIDTH   step along x
 *   GLOBAL_HEIGHT  step along y
 *   GLOBAL_UNITS   units
 * Global:
 *   width   columns
 *   height  rows
 *   units   units * COUNT
 */
#include "blob.h"

__kernel void convolution_clear(WRITE_BLOB(input_delta), const int count, const int global_width,
                                const int global_height, const int global_units)
{
    const int n = (int)get_global_id(2) / GLOBAL_UNITS;
    const int z = (int)get_global_id(2) % GLOBAL_UNITS;
    if (n >= count) {
        return;
    }
    for (int y = get_global_id(1); y < INPUT_DELTA_UNIT_HEIGHT; y += GLOBAL_HEIGHT) {
        __global input_delta_t *to = input_delta + BLOB_INDEX(INPUT_DELTA, n, z, y, 0);
        for (int x = get_global_id(0); x < INPUT_DELTA_UNIT_WIDTH; x += GLOBAL_WIDTH) {
            WRITE_VALUE(to, x, 0);
        }
    }
}
