/*
 * Patches of a blob of cells for minimal filtering (convolution/winograd.h) on processors:
 * transformed[point][element of the source][patch] = (B^T source B)[point], patches of all samples side by side. Positions
 * outside the data are 0.
 *
 * Blobs:
 *   SOURCE read data alone
 * Arrays:
 *   TRANSFORMED write  (POINTS, elements, PATCHES, CELL_UNITS), points PATCHES_PITCH apart
 * Scalars:
 *   COUNT  samples in this launch
 *   FIRST  the first one
 * Macros:
 *   SAMPLE_PATCHES  patches of a sample
 *   ROW_PATCHES     side by side
 *   FIRST_Y         the first patch's first position
 *   FIRST_X
 *   PATCHES         patches of all samples, or more
 *   PATCHES_PITCH
 *   CELLS           results of a patch on a side, 2 or 4
 *   TAPS            of a filter on a side
 * Moves:
 *   Winograd patches
 * Global:
 *   width   elements of the source
 *   height  rows of patches
 *   units   COUNT
 */
#define LANES CELL_UNITS
#include "blob.h"
#include "vector.h"
#include "convolution/winograd.h"

__kernel void convolution_winograd_units(READ_BLOB(source), WRITE_ARRAY(real_t, transformed), const int count,
                                         const int first)
{
    const int z = get_global_id(0);
    const int n = get_global_id(2);
    const int y = FIRST_Y + (int)get_global_id(1) * CELLS;
    const int patch = n * SAMPLE_PATCHES + (int)get_global_id(1) * ROW_PATCHES;
    __global real_t *to = ARRAY(transformed) + (z * PATCHES + patch) * CELL_UNITS;
    for (int x = FIRST_X; x < FIRST_X + ROW_PATCHES * CELLS; x += CELLS) {
        __global const source_t *from = source + BLOB_INDEX(SOURCE, first + n, z, y, x);
        vector_t cells[PATCH * PATCH];
#pragma unroll
        for (int i = 0; i < PATCH; i++) {
            const bool row_there = y + i >= 0 && y + i < SOURCE_UNIT_HEIGHT;
#pragma unroll
            for (int j = 0; j < PATCH; j++) {
                cells[i * PATCH + j] = 0;
                if (row_there && x + j >= 0 && x + j < SOURCE_UNIT_WIDTH) {
                    cells[i * PATCH + j] = READ_VALUE(from, i * SOURCE_UNIT_MEMORY_WIDTH + j);
                }
            }
        }
        vector_t points[POINTS];
        TRANSFORM_SOURCE(points, cells);
#pragma unroll
        for (int point = 0; point < POINTS; point++) {
            VECTOR_STORE(points[point], to + point * PATCHES_PITCH);
        }
        to += CELL_UNITS;
    }
}
