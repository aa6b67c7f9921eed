/*
 * Softmax over the units at each position, backward; may run in place.
 *     input_delta[z] = y[z] * (output_delta[z] - sum over u of output_delta[u] * y[u])
 * VALUE is the layer's output y.
 *
 * Blobs, sizes as arguments:
 *   VALUE        read
 *   OUTPUT_DELTA read
 *   INPUT_DELTA  update
 * Scalars:
 *   COUNT  samples in this batch
 *   GLOBAL_WIDTH   step along x
 *   GLOBAL_HEIGHT  step along y
 *   GLOBAL_UNITS   1: a work-item loops over the units
 * Macros:
 *   ACCUMULATE     1: add to INPUT_DELTA
 * Global:
 *   width   columns
 *   height  rows
 *   units   COUNT
 */
#include "blob.h"
#include "put.h"

__kernel void activation_softmax_backward(SHARED_BLOB(value), SHARED_BLOB(output_delta),
                                          MUTABLE_BLOB(input_delta), const int count, const int global_width,
                                          const int global_height, const int global_units)
{
    const int n = (int)get_global_id(2) / GLOBAL_UNITS;
    if (n >= count) {
        return;
    }
    for (int y = get_global_id(1); y < UNIT_ROWS(VALUE); y += GLOBAL_HEIGHT) {
        for (int x = get_global_id(0); x < VALUE_UNIT_WIDTH; x += GLOBAL_WIDTH) {
            __global const value_t *values = value + UNIT_ROW_INDEX(VALUE, n, 0, y, x);
            __global const output_delta_t *from = output_delta + UNIT_ROW_INDEX(OUTPUT_DELTA, n, 0, y, x);
            __global input_delta_t *to = input_delta + UNIT_ROW_INDEX(INPUT_DELTA, n, 0, y, x);
            accumulator_t sum = 0;
            for (int z = 0; z < VALUE_UNIT_COUNT; z++) {
                const real_t delta = READ_VALUE(from, z * OUTPUT_DELTA_UNIT_MEMORY_ELEMENTS);
                sum = MULTIPLY_ADD(delta, READ_VALUE(values, z * VALUE_UNIT_MEMORY_ELEMENTS), sum);
            }
            for (int z = 0; z < VALUE_UNIT_COUNT; z++) {
                const real_t shifted = READ_VALUE(from, z * OUTPUT_DELTA_UNIT_MEMORY_ELEMENTS) - sum;
                const real_t result = READ_VALUE(values, z * VALUE_UNIT_MEMORY_ELEMENTS) * shifted;
                PUT(result, to + z * INPUT_DELTA_UNIT_MEMORY_ELEMENTS);
            }
        }
    }
}
