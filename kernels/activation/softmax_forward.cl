/*
 * Softmax over the units at each position, forward; may run in place.
 *     output[z] = exp(input[z] - m) / sum over u of exp(input[u] - m),  m = maximum over u of input[u]
 *
 * Blobs, sizes as arguments:
 *   INPUT  read
 *   OUTPUT update  the powers first, then their quotients
 * Scalars:
 *   COUNT  samples in this batch
 *   GLOBAL_WIDTH   step along x
 *   GLOBAL_HEIGHT  step along y
 *   GLOBAL_UNITS   1: a work-item loops over the units
 * Global:
 *   width   columns
 *   height  rows
 *   units   COUNT
 */
#include "blob.h"

__kernel void activation_softmax_forward(SHARED_BLOB(input), MUTABLE_BLOB(output), const int count,
                                         const int global_width, const int global_height,
                                         const int global_units)
{
    const int n = (int)get_global_id(2) / GLOBAL_UNITS;
    if (n >= count) {
        return;
    }
    for (int y = get_global_id(1); y < UNIT_ROWS(OUTPUT); y += GLOBAL_HEIGHT) {
        for (int x = get_global_id(0); x < OUTPUT_UNIT_WIDTH; x += GLOBAL_WIDTH) {
            __global const input_t *from = input + UNIT_ROW_INDEX(INPUT, n, 0, y, x);
            __global output_t *to = output + UNIT_ROW_INDEX(OUTPUT, n, 0, y, x);
            real_t largest = READ_VALUE(from, 0);
            for (int z = 1; z < OUTPUT_UNIT_COUNT; z++) {
                largest = fmax(largest, READ_VALUE(from, z * INPUT_UNIT_MEMORY_ELEMENTS));
            }
            accumulator_t sum = 0;
            for (int z = 0; z < OUTPUT_UNIT_COUNT; z++) {
                const real_t power = exp(READ_VALUE(from, z * INPUT_UNIT_MEMORY_ELEMENTS) - largest);
                WRITE_VALUE(to, z * OUTPUT_UNIT_MEMORY_ELEMENTS, power);
                sum += power;
            }
            const real_t scale = 1 / sum;
            for (int z = 0; z < OUTPUT_UNIT_COUNT; z++) {
                SCALE_VALUE(to, z * OUTPUT_UNIT_MEMORY_ELEMENTS, scale);
            }
        }
    }
}
