/*
 * Activation, forward: output = f(input), cell by cell; may run in place.
 *
 * Blobs:
 *   INPUT  read
 *   OUTPUT write
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   ACTIVATION     the function, see functions.h
 *   GLOBAL_WIDTH   step along x
 *   GLOBAL_HEIGHT  step along y
 *   GLOBAL_UNITS   units
 * Global:
 *   width   columns
 *   height  rows
 *   units   units * COUNT
 */
#include "blob.h"
#include "activation/functions.h"

__kernel void activation_forward(SHARED_BLOB(input), MUTABLE_BLOB(output), const int count)
{
    const int n = get_global_id(2) / GLOBAL_UNITS;
    const int z = get_global_id(2) % GLOBAL_UNITS;
    if (n >= count) {
        return;
    }
    for (int y = get_global_id(1); y < OUTPUT_UNIT_HEIGHT; y += GLOBAL_HEIGHT) {
        __global const real_t *from = input + BLOB_INDEX(INPUT, n, z, y, 0);
        __global real_t *to = output + BLOB_INDEX(OUTPUT, n, z, y, 0);
        for (int x = get_global_id(0); x < OUTPUT_UNIT_WIDTH; x += GLOBAL_WIDTH) {
            const real_t value = from[x];
            to[x] = ACTIVATE(value);
        }
    }
}
