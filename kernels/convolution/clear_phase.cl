/*
 * Convolution, backward, delta of the input: cells (i * STRIDE_Y + PHASE_Y, j * STRIDE_X + PHASE_X), which no tap meets,
 * are 0.
 *
 * Blobs, sizes as arguments:
 *   INPUT_DELTA write
 * Scalars:
 *   COUNT          samples in this batch
 *   STRIDE_Y
 *   STRIDE_X
 *   PHASE_Y
 *   PHASE_X
 *   GLOBAL_WIDTH   step along x
 *   GLOBAL_HEIGHT  step along y
 *   GLOBAL_UNITS   units
 * Global:
 *   width   columns of the phase
 *   height  its rows
 *   units   units * COUNT
 */
#include "blob.h"

__kernel void convolution_clear_phase(WRITE_BLOB(input_delta), const int count, const int stride_y,
                                      const int stride_x, const int phase_y, const int phase_x,
                                      const int global_width, const int global_height, const int global_units)
{
    const int n = (int)get_global_id(2) / GLOBAL_UNITS;
    const int z = (int)get_global_id(2) % GLOBAL_UNITS;
    if (n >= count) {
        return;
    }
    for (int y = get_global_id(1) * STRIDE_Y + PHASE_Y; y < INPUT_DELTA_UNIT_HEIGHT;
         y += GLOBAL_HEIGHT * STRIDE_Y) {
        __global input_delta_t *to = input_delta + BLOB_INDEX(INPUT_DELTA, n, z, y, 0);
        for (int x = get_global_id(0) * STRIDE_X + PHASE_X; x < INPUT_DELTA_UNIT_WIDTH;
             x += GLOBAL_WIDTH * STRIDE_X) {
            WRITE_VALUE(to, x, 0);
        }
    }
}
