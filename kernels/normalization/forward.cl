/*
 * Batch normalization, forward in training, last stage, cell by cell:
 * output = f((input - mean) / sqrt(variance + epsilon) * scale + shift).
 *
 * Blobs:
 *   INPUT  read
 *   OUTPUT write
 * Arrays:
 *   STATISTICS  read  (3, units): mean, what its rounding lost, 1 / sqrt(variance + epsilon)
 *   SCALE       read  (units)
 *   SHIFT       read  (units)
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   ACTIVATION     the function f, see activation/functions.h
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

__kernel void normalization_forward(READ_BLOB(input), WRITE_BLOB(output), READ_ARRAY(real_t, statistics),
                                    READ_ARRAY(real_t, scale), READ_ARRAY(real_t, shift), const int count)
{
    const int n = get_global_id(2) / GLOBAL_UNITS;
    if (n >= count) {
        return;
    }
    for (int z = get_global_id(2) % GLOBAL_UNITS; z < OUTPUT_UNIT_COUNT; z += GLOBAL_UNITS) {
        const accumulator_t mean = ARRAY(statistics)[z];
        const accumulator_t lost = ARRAY(statistics)[OUTPUT_UNIT_COUNT + z];
        const accumulator_t factor = ARRAY(statistics)[2 * OUTPUT_UNIT_COUNT + z] * ARRAY(scale)[z];
        const accumulator_t term = ARRAY(shift)[z];
        for (int y = get_global_id(1); y < OUTPUT_UNIT_HEIGHT; y += GLOBAL_HEIGHT) {
            __global const real_t *from = input + BLOB_INDEX(INPUT, n, z, y, 0);
            __global real_t *to = output + BLOB_INDEX(OUTPUT, n, z, y, 0);
            for (int x = get_global_id(0); x < OUTPUT_UNIT_WIDTH; x += GLOBAL_WIDTH) {
                const real_t value = MULTIPLY_ADD((from[x] - mean) - lost, factor, term);
                to[x] = ACTIVATE(value);
            }
        }
    }
}
