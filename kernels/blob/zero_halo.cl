/*
 * Sets every halo cell of all units of a storage to 0; data and slack stay as they are.
 * Launched where memory that held another geometry, or plain arrays, becomes a blob.
 *
 * Blobs:
 *   OUTPUT update  the whole storage
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   GLOBAL_WIDTH   step along x
 *   GLOBAL_HEIGHT  step along y
 *   GLOBAL_UNITS   units
 * Global:
 *   width   columns of the memory
 *   height  rows of the memory, and one for the tail
 *   units   units * COUNT
 */
#include "blob.h"

__kernel void blob_zero_halo(MUTABLE_BLOB(output), const int count)
{
    const int plane = get_global_id(2);
    if (plane >= GLOBAL_UNITS * count) {
        return;
    }
    const int extent = OUTPUT_UNIT_MEMORY_HEIGHT * OUTPUT_UNIT_MEMORY_WIDTH + OUTPUT_UNIT_MEMORY_WIDTH_OFFSET;
    __global real_t *cells = output + (size_t)OUTPUT_UNIT_MEMORY_ELEMENTS * plane;
    for (int row = get_global_id(1); row <= OUTPUT_UNIT_MEMORY_HEIGHT; row += GLOBAL_HEIGHT) {
        const int y = row - OUTPUT_UNIT_MEMORY_HEIGHT_OFFSET;
        const bool has_data = y >= 0 && y < OUTPUT_UNIT_HEIGHT;
        for (int column = get_global_id(0); column < OUTPUT_UNIT_MEMORY_WIDTH; column += GLOBAL_WIDTH) {
            const int x = column - OUTPUT_UNIT_MEMORY_WIDTH_OFFSET;
            const int position = row * OUTPUT_UNIT_MEMORY_WIDTH + column;
            if (position < extent && !(has_data && x >= 0 && x < OUTPUT_UNIT_WIDTH)) {
                cells[position] = 0;
            }
        }
    }
}
