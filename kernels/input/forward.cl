/*
 * Puts densely packed samples into a blob, normalised: output = (sample - mean) / deviation, both per unit.
 *
 * Blobs:
 *   OUTPUT write
 * Arrays:
 *   SAMPLES    read  (COUNT, units, height, width), no padding
 *   MEAN       read  a unit
 *   DEVIATION  read  a unit
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   GLOBAL_WIDTH   step along x
 *   GLOBAL_HEIGHT  step along y
 *   GLOBAL_UNITS   units
 * Global:
 *   width   columns
 *   height  rows
 *   units   units * COUNT
 */
#include "blob.h"

__kernel void input_forward(WRITE_BLOB(output), READ_ARRAY(real_t, samples), READ_ARRAY(real_t, mean),
                            READ_ARRAY(real_t, deviation), const int count)
{
    const int n = get_global_id(2) / GLOBAL_UNITS;
    const int z = get_global_id(2) % GLOBAL_UNITS;
    if (n >= count) {
        return;
    }
    const real_t shift = ARRAY(mean)[z];
    const real_t scale = 1 / ARRAY(deviation)[z];
    __global const real_t *from = ARRAY(samples) + (size_t)OUTPUT_UNIT_ELEMENTS * get_global_id(2);
    __global real_t *to = output + BLOB_INDEX(OUTPUT, n, z, 0, 0);
    for (int y = get_global_id(1); y < OUTPUT_UNIT_HEIGHT; y += GLOBAL_HEIGHT) {
        for (int x = get_global_id(0); x < OUTPUT_UNIT_WIDTH; x += GLOBAL_WIDTH) {
            to[y * OUTPUT_UNIT_MEMORY_WIDTH + x] = (from[y * OUTPUT_UNIT_WIDTH + x] - shift) * scale;
        }
    }
}
