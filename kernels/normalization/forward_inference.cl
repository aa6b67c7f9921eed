/*
 * Batch normalization, forward in inference, cell by cell; may run in place:
 * output = f((input - running_mean) / sqrt(running_variance + epsilon) * scale + shift).
 *
 * Blobs:
 *   INPUT  read
 *   OUTPUT write
 * Arrays:
 *   RUNNING_MEAN      read  (units)
 *   RUNNING_VARIANCE  read  (units)
 *   SCALE             read  (units)
 *   SHIFT             read  (units)
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   ACTIVATION     the function f, see activation/functions.h
 *   EPSILON        added to the variance
 *   IN_PLACE       1: INPUT is OUTPUT
 *   GLOBAL_WIDTH   step along x
 *   GLOBAL_HEIGHT  step along y
 *   GLOBAL_UNITS   step along the units
 * Global:
 *   width   columns
 *   height  rows
 *   units   units (some of them, if a work-item does several) * COUNT
 */
#include "blob.h"
#include "activation/functions.h"
#include "normalization/running.h"

__kernel void normalization_forward_inference(READ_BLOB(input), WRITE_BLOB(output),
                                              READ_ARRAY(real_t, running_mean),
                                              READ_ARRAY(real_t, running_variance), READ_ARRAY(real_t, scale),
                                              READ_ARRAY(real_t, shift), const int count)
{
    const int n = get_global_id(2) / GLOBAL_UNITS;
    if (n >= count) {
        return;
    }
    for (int z = get_global_id(2) % GLOBAL_UNITS; z < OUTPUT_UNIT_COUNT; z += GLOBAL_UNITS) {
        const running_norm_t norm = RUNNING_NORM(z);
        for (int y = get_global_id(1); y < OUTPUT_UNIT_HEIGHT; y += GLOBAL_HEIGHT) {
            __global real_t *to = output + BLOB_INDEX(OUTPUT, n, z, y, 0);
            /* NOTE: one pointer in place, two restrict ones else, so that compilers vectorize both. */
#if IN_PLACE
            __global const real_t *from = to;
#else
            __global const real_t *from = input + BLOB_INDEX(INPUT, n, z, y, 0);
#endif
            for (int x = get_global_id(0); x < OUTPUT_UNIT_WIDTH; x += GLOBAL_WIDTH) {
                const real_t value = NORMALIZE(from[x], norm);
                to[x] = ACTIVATE(value);
            }
        }
    }
}
