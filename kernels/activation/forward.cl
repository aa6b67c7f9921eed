/*
 * Activation, forward: output = f(input), cell by cell, as FINISHED says; may run in place.
 *
 * Blobs, sizes as arguments:
 *   INPUT  read
 *   OUTPUT write
 * Scalars:
 *   COUNT  samples in this batch
 * Tunables:
 *   CELLS loops 1, lanes 4 of 1 2 4 8: cells that a work-item takes at once
 * Global:
 *   width  work-items that share a plane
 *   units  units (some of them, if a work-item does several) * COUNT
 */
#include "blob.h"
#define PLANE OUTPUT
#include "cells.h"
#include "epilogue.h"

__kernel void activation_forward(SHARED_BLOB(input), MUTABLE_BLOB(output) MORE_ARRAYS, const int count)
{
    const int n = SAMPLE;
    if (n >= count) {
        return;
    }
    FOR_PLANES
    {
        __global const input_t *from = input + BLOB_INDEX(INPUT, n, z, 0, 0);
        __global output_t *to = output + BLOB_INDEX(OUTPUT, n, z, 0, 0);
        FOR_CELLS
        {
            number_t results[CELLS];
            EACH_CELL
            {
                const number_t value = READ_VALUE(from, AT(INPUT));
                results[i] = FINISHED(value, UNIT_OF(OUTPUT, z));
            }
            EACH_CELL
            {
                WRITE_VALUE(to, AT(OUTPUT), results[i]);
            }
        }
    }
}
