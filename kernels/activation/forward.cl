/*
 * Activation, forward: output = f(input), cell by cell; may run in place.
 *
 * Blobs, sizes as arguments:
 *   INPUT  read
 *   OUTPUT write
 * Scalars:
 *   COUNT  samples in this batch
 *   GLOBAL_WIDTH  work-items that share a plane
 *   GLOBAL_UNITS  step along the units
 *   LOCAL_WIDTH   neighbours in a work-group
 * Macros:
 *   ACTIVATION    the function, see functions.h
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

__kernel void activation_forward(SHARED_BLOB(input), MUTABLE_BLOB(output), const int count,
                                 const int global_width, const int global_units, const int local_width)
{
    const int n = get_global_id(2) / GLOBAL_UNITS;
    if (n >= count) {
        return;
    }
    for (int z = get_global_id(2) % GLOBAL_UNITS; z < OUTPUT_UNIT_COUNT; z += GLOBAL_UNITS) {
        __global const real_t *from = input + BLOB_INDEX(INPUT, n, z, 0, 0);
        __global real_t *to = output + BLOB_INDEX(OUTPUT, n, z, 0, 0);
        FOR_CELLS
        {
            real_t results[CELLS];
            EACH_CELL
            {
                const real_t value = from[AT(INPUT)];
                results[i] = ACTIVATE(value);
            }
            EACH_CELL
            {
                to[AT(OUTPUT)] = results[i];
            }
        }
    }
}
