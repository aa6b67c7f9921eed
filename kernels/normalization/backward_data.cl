/*
 * Batch normalization, backward, last stage, cell by cell; may run in place. With M = COUNT * height * width,
 * deviation = sqrt(variance + epsilon) and normalized = (input - mean) / deviation:
 * input_delta = scale / deviation * (delta - shift_gradient / M - normalized * scale_gradient / M).
 *
 * Blobs:
 *   INPUT        read
 *   OUTPUT_DELTA read
 *   INPUT_DELTA  update
 * Arrays:
 *   STATISTICS      read  (3, units): mean, what its rounding lost, 1 / deviation
 *   SCALE           read  (units)
 *   SCALE_GRADIENT  read  (units)
 *   SHIFT_GRADIENT  read  (units)
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   ACCUMULATE     1: add to INPUT_DELTA
 *   IN_PLACE       1: OUTPUT_DELTA is INPUT_DELTA
 *   GLOBAL_WIDTH   step along x
 *   GLOBAL_HEIGHT  step along y
 *   GLOBAL_UNITS   step along the units
 * Global:
 *   width   columns
 *   height  rows
 *   units   units (some of them, if a work-item does several) * COUNT
 */
#include "blob.h"
#include "put.h"

__kernel void normalization_backward_data(READ_BLOB(input), READ_BLOB(output_delta), WRITE_BLOB(input_delta),
                                          READ_ARRAY(real_t, statistics), READ_ARRAY(real_t, scale),
                                          READ_ARRAY(real_t, scale_gradient),
                                          READ_ARRAY(real_t, shift_gradient), const int count)
{
    const int n = get_global_id(2) / GLOBAL_UNITS;
    if (n >= count) {
        return;
    }
    const accumulator_t values = (accumulator_t)count * INPUT_UNIT_ELEMENTS;
    for (int z = get_global_id(2) % GLOBAL_UNITS; z < INPUT_UNIT_COUNT; z += GLOBAL_UNITS) {
        const accumulator_t mean = ARRAY(statistics)[z];
        const accumulator_t lost = ARRAY(statistics)[INPUT_UNIT_COUNT + z];
        const accumulator_t inverse = ARRAY(statistics)[2 * INPUT_UNIT_COUNT + z];
        const accumulator_t factor = inverse * ARRAY(scale)[z];
        const accumulator_t delta_mean = ARRAY(shift_gradient)[z] / values;
        const accumulator_t slope = inverse * (ARRAY(scale_gradient)[z] / values);
        for (int y = get_global_id(1); y < INPUT_UNIT_HEIGHT; y += GLOBAL_HEIGHT) {
            __global const real_t *cells = input + BLOB_INDEX(INPUT, n, z, y, 0);
            __global real_t *to = input_delta + BLOB_INDEX(INPUT_DELTA, n, z, y, 0);
            /* NOTE: one pointer in place, two restrict ones else, so that compilers vectorize both. */
#if IN_PLACE
            __global const real_t *from = to;
#else
            __global const real_t *from = output_delta + BLOB_INDEX(OUTPUT_DELTA, n, z, y, 0);
#endif
            for (int x = get_global_id(0); x < INPUT_UNIT_WIDTH; x += GLOBAL_WIDTH) {
                const real_t centred = (cells[x] - mean) - lost;
                const real_t result = factor * MULTIPLY_ADD(-slope, centred, from[x] - delta_mean);
                PUT(result, to + x);
            }
        }
    }
}
