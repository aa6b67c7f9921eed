/*
 * The gradient of a bias per position: gradient[z][y][x] = sum over samples of delta[z][y][x].
 *
 * Blobs, sizes as arguments:
 *   OUTPUT_DELTA read data alone
 * Arrays:
 *   GRADIENT write  (units[, depth], height, width)
 * Scalars:
 *   COUNT  samples in this batch
 *   GLOBAL_WIDTH   step along x
 *   GLOBAL_HEIGHT  step along y
 *   GLOBAL_UNITS   planes of a sample
 * Global:
 *   width   columns
 *   height  rows
 *   units   planes
 */
#include "blob.h"

__kernel void gradient_position_bias(READ_BLOB(output_delta), WRITE_ARRAY(real_t, gradient), const int count,
                                     const int global_width, const int global_height, const int global_units)
{
    const int z = get_global_id(2);
    if (z >= GLOBAL_UNITS) {
        return;
    }
    for (int y = get_global_id(1); y < OUTPUT_DELTA_UNIT_HEIGHT; y += GLOBAL_HEIGHT) {
        for (int x = get_global_id(0); x < OUTPUT_DELTA_UNIT_WIDTH; x += GLOBAL_WIDTH) {
            accumulator_t sum = 0;
            for (int n = 0; n < count; n++) {
                sum += READ_VALUE(output_delta, BLOB_INDEX(OUTPUT_DELTA, n, z, y, x));
            }
            ARRAY(gradient)[(z * OUTPUT_DELTA_UNIT_HEIGHT + y) * OUTPUT_DELTA_UNIT_WIDTH + x] = sum;
        }
    }
}
