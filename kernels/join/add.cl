/*
 * The sum of two blobs, cell by cell; may run in place: output = f(input + addend).
 *
 * Blobs, sizes as arguments:
 *   INPUT  read
 *   ADDEND read
 *   OUTPUT write
 * Scalars:
 *   COUNT  samples in this batch
 *   GLOBAL_WIDTH  work-items that share a plane
 *   GLOBAL_UNITS  step along the units
 *   LOCAL_WIDTH   neighbours in a work-group
 * Macros:
 *   ACTIVATION    the function f, see activation/functions.h
 *   IN_PLACE      1: INPUT is OUTPUT
 * Tunables:
 *   CELLS cpu 1, gpu 4 of 1 2 4 8: cells that a work-item takes at once
 * Global:
 *   width  work-items that share a plane
 *   units  units (some of them, if a work-item does several) * COUNT
 */
#include "blob.h"
#define PLANE OUTPUT
#include "cells.h"
#include "activation/functions.h"

__kernel void join_add(READ_BLOB(input), READ_BLOB(addend), WRITE_BLOB(output), const int count,
                       const int global_width, const int global_units, const int local_width)
{
    const int n = get_global_id(2) / GLOBAL_UNITS;
    if (n >= count) {
        return;
    }
    for (int z = get_global_id(2) % GLOBAL_UNITS; z < OUTPUT_UNIT_COUNT; z += GLOBAL_UNITS) {
        __global const real_t *terms = addend + BLOB_INDEX(ADDEND, n, z, 0, 0);
        __global real_t *to = output + BLOB_INDEX(OUTPUT, n, z, 0, 0);
        /* NOTE: one pointer in place, two restrict ones else, so that compilers vectorize both. */
#if IN_PLACE
        __global const real_t *from = to;
#else
        __global const real_t *from = input + BLOB_INDEX(INPUT, n, z, 0, 0);
#endif
        FOR_CELLS
        {
            real_t results[CELLS];
            EACH_CELL
            {
                const real_t sum = from[AT(INPUT)] + terms[AT(ADDEND)];
                results[i] = ACTIVATE(sum);
            }
            EACH_CELL
            {
                to[AT(OUTPUT)] = results[i];
            }
        }
    }
}
