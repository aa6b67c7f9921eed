/*
 * Puts the same values into every sample of a blob.
 *
 * Blobs:
 *   OUTPUT write
 * Arrays:
 *   VALUE  read  (units[, depth], height, width)
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   GLOBAL_WIDTH   step along x
 *   GLOBAL_HEIGHT  step along y
 *   GLOBAL_UNITS   planes of a sample
 * Global:
 *   width   columns
 *   height  rows
 *   units   planes * COUNT
 */
#include "blob.h"

__kernel void input_constant(WRITE_BLOB(output), READ_ARRAY(value_t, value), const int count)
{
    const int n = (int)get_global_id(2) / GLOBAL_UNITS;
    const int z = (int)get_global_id(2) % GLOBAL_UNITS;
    if (n >= count) {
        return;
    }
    __global const value_t *from = ARRAY(value) + z * OUTPUT_PLANE_ELEMENTS;
    __global output_t *to = output + BLOB_INDEX(OUTPUT, n, z, 0, 0);
    for (int y = get_global_id(1); y < OUTPUT_UNIT_HEIGHT; y += GLOBAL_HEIGHT) {
        for (int x = get_global_id(0); x < OUTPUT_UNIT_WIDTH; x += GLOBAL_WIDTH) {
            WRITE_VALUE(to, y * OUTPUT_UNIT_MEMORY_WIDTH + x, READ_VALUE(from, y * OUTPUT_UNIT_WIDTH + x));
        }
    }
}
