/*
 * Puts samples of any storage type into a blob, normalised: output = (sample - mean) / deviation, both per unit. It says
 * whether one is not finite, for hosts that take longer to look at samples than a device does.
 *
 * Blobs:
 *   OUTPUT write
 * Arrays:
 *   SAMPLES    read  (any number, units[, depth], height, width) of SAMPLE_TYPE, no padding
 *   ROWS       read  COUNT int32: which of SAMPLES
 *   MEAN       read  a unit
 *   DEVIATION  read  a unit
 *   NOT_FINITE update 1 int32: 1 if a sample is not finite
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   SAMPLE_TYPE    float or half, or an integer type of one or two bytes
 *   HALF_SAMPLES   1: SAMPLE_TYPE is half, which every device can load, but not every one compute with
 *   GLOBAL_WIDTH   step along x
 *   GLOBAL_HEIGHT  step along y
 *   GLOBAL_UNITS   planes of a sample
 * Global:
 *   width   columns
 *   height  rows
 *   units   planes * COUNT
 */
#include "blob.h"
#include "input/samples.h"

__kernel void input_forward(WRITE_BLOB(output), READ_ARRAY(SAMPLE_TYPE, samples), READ_ARRAY(int, rows),
                            READ_ARRAY(mean_t, mean), READ_ARRAY(deviation_t, deviation),
                            WRITE_ARRAY(int, not_finite), const int count)
{
    const int n = (int)get_global_id(2) / GLOBAL_UNITS;
    const int z = (int)get_global_id(2) % GLOBAL_UNITS;
    if (n >= count) {
        return;
    }
    const real_t shift = READ_VALUE(ARRAY(mean), UNIT_OF(OUTPUT, z));
    const real_t scale = 1 / READ_VALUE(ARRAY(deviation), UNIT_OF(OUTPUT, z));
    __global const SAMPLE_TYPE *from =
        ARRAY(samples) + (size_t)OUTPUT_PLANE_ELEMENTS * ((size_t)ARRAY(rows)[n] * GLOBAL_UNITS + z);
    __global output_t *to = output + BLOB_INDEX(OUTPUT, n, z, 0, 0);
    for (int y = get_global_id(1); y < OUTPUT_UNIT_HEIGHT; y += GLOBAL_HEIGHT) {
        for (int x = get_global_id(0); x < OUTPUT_UNIT_WIDTH; x += GLOBAL_WIDTH) {
            const real_t sample = SAMPLE(from, y * OUTPUT_UNIT_WIDTH + x);
            if (!isfinite(sample)) {
                *ARRAY(not_finite) = 1;
            }
            WRITE_VALUE(to, y * OUTPUT_UNIT_MEMORY_WIDTH + x, (sample - shift) * scale);
        }
    }
}
