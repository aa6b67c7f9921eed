/*
 * Sets every halo cell of all units of a storage to 0; data and slack stay as they are.
 * Launched where memory that held a blob of another geometry becomes this one.
 *
 * Blobs, sizes as arguments:
 *   OUTPUT update  the whole storage
 * Scalars:
 *   COUNT  samples in this batch
 *   GLOBAL_WIDTH  step along the halo cells of a plane
 *   GLOBAL_UNITS  planes in the memory of a sample
 * Moves:
 *   clearing halos
 * Global:
 *   width  halo cells
 *   units  planes * COUNT
 */
#include "blob.h"

/* A plane's halo is what leads the data, a gap between every two rows of data, and what trails. */
#define LEADING \
    (OUTPUT_UNIT_MEMORY_HEIGHT_OFFSET * OUTPUT_UNIT_MEMORY_WIDTH + OUTPUT_UNIT_MEMORY_WIDTH_OFFSET)
#define GAP (OUTPUT_UNIT_MEMORY_WIDTH - OUTPUT_UNIT_WIDTH)
#define GAPS ((OUTPUT_UNIT_HEIGHT - 1) * GAP)
#define DATA_END (LEADING + (OUTPUT_UNIT_HEIGHT - 1) * OUTPUT_UNIT_MEMORY_WIDTH + OUTPUT_UNIT_WIDTH)

__kernel void blob_zero_halo(MUTABLE_BLOB(output), const int count, const int global_width,
                             const int global_units)
{
    const int plane = get_global_id(2);
    if (plane >= GLOBAL_UNITS * count) {
        return;
    }
    __global output_t *cells = output + (size_t)OUTPUT_PLANE_MEMORY_ELEMENTS * plane;
#ifdef GENERAL_BLOBS
    /* Planes before and after the data are halo alone. */
    if ((uint)(plane % OUTPUT_UNIT_MEMORY_DEPTH - OUTPUT_UNIT_MEMORY_DEPTH_OFFSET) >= OUTPUT_UNIT_DEPTH) {
        for (int i = get_global_id(0); i < OUTPUT_PLANE_EXTENT; i += GLOBAL_WIDTH) {
            WRITE_VALUE(cells, i, 0);
        }
        return;
    }
#endif
    for (int i = get_global_id(0); i < LEADING; i += GLOBAL_WIDTH) {
        WRITE_VALUE(cells, i, 0);
    }
    for (int i = get_global_id(0); i < GAPS; i += GLOBAL_WIDTH) {
        WRITE_VALUE(cells, LEADING + i / GAP * OUTPUT_UNIT_MEMORY_WIDTH + OUTPUT_UNIT_WIDTH + i % GAP, 0);
    }
    for (int i = DATA_END + get_global_id(0); i < OUTPUT_PLANE_EXTENT; i += GLOBAL_WIDTH) {
        WRITE_VALUE(cells, i, 0);
    }
}
