/*
 * The sum of two blobs, cell by cell; may run in place: output = input + addend.
 *
 * Blobs:
 *   INPUT  read
 *   ADDEND read
 *   OUTPUT write
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   IN_PLACE       1: INPUT is OUTPUT
 *   GLOBAL_WIDTH   step along x
 *   GLOBAL_HEIGHT  step along y
 *   GLOBAL_UNITS   units
 * Global:
 *   width   columns
 *   height  rows
 *   units   units * COUNT
 */
#include "blob.h"

__kernel void join_add(READ_BLOB(input), READ_BLOB(addend), WRITE_BLOB(output), const int count)
{
    const int n = get_global_id(2) / GLOBAL_UNITS;
    const int z = get_global_id(2) % GLOBAL_UNITS;
    if (n >= count) {
        return;
    }
    for (int y = get_global_id(1); y < OUTPUT_UNIT_HEIGHT; y += GLOBAL_HEIGHT) {
        __global const real_t *terms = addend + BLOB_INDEX(ADDEND, n, z, y, 0);
        __global real_t *to = output + BLOB_INDEX(OUTPUT, n, z, y, 0);
        /* NOTE: one pointer in place, two restrict ones else, so that compilers vectorize both. */
#if IN_PLACE
        __global const real_t *from = to;
#else
        __global const real_t *from = input + BLOB_INDEX(INPUT, n, z, y, 0);
#endif
        for (int x = get_global_id(0); x < OUTPUT_UNIT_WIDTH; x += GLOBAL_WIDTH) {
            to[x] = from[x] + terms[x];
        }
    }
}
