/*
 * Activation, backward: input_delta = output_delta * f'(x), cell by cell; may run in place.
 * VALUE is the layer's output or its input, whichever f' is computed from.
 *
 * Blobs:
 *   VALUE        read
 *   OUTPUT_DELTA read
 *   INPUT_DELTA  update
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   ACTIVATION     the function, see functions.h
 *   ACCUMULATE     1: add to INPUT_DELTA
 *   GLOBAL_WIDTH   step along x
 *   GLOBAL_HEIGHT  step along y
 *   GLOBAL_UNITS   units
 * Global:
 *   width   columns
 *   height  rows
 *   units   units * COUNT
 */
#include "blob.h"
#include "put.h"
#include "activation/functions.h"

__kernel void activation_backward(SHARED_BLOB(value), SHARED_BLOB(output_delta), MUTABLE_BLOB(input_delta),
                                  const int count)
{
    const int n = get_global_id(2) / GLOBAL_UNITS;
    const int z = get_global_id(2) % GLOBAL_UNITS;
    if (n >= count) {
        return;
    }
    for (int y = get_global_id(1); y < VALUE_UNIT_HEIGHT; y += GLOBAL_HEIGHT) {
        __global const real_t *values = value + BLOB_INDEX(VALUE, n, z, y, 0);
        __global const real_t *from = output_delta + BLOB_INDEX(OUTPUT_DELTA, n, z, y, 0);
        __global real_t *to = input_delta + BLOB_INDEX(INPUT_DELTA, n, z, y, 0);
        for (int x = get_global_id(0); x < VALUE_UNIT_WIDTH; x += GLOBAL_WIDTH) {
            const real_t result = from[x] * ACTIVATION_SLOPE(values[x], values[x]);
            PUT(result, to + x);
        }
    }
}
