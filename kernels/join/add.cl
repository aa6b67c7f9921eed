/*
 * The sum of two blobs, cell by cell; may run in place: output = f(input + addend).
 *
 * Blobs, sizes as arguments:
 *   INPUT  read
 *   ADDEND read
 *   OUTPUT write
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   IN_PLACE      1: INPUT is OUTPUT
 * Tunables:
 *   CELLS loops 1, lanes 4 of 1 2 4 8: cells that a work-item takes at once
 * Global:
 *   width  work-items that share a plane
 *   units  units (some of them, if a work-item does several) * COUNT
 */
#include "blob.h"
#define PLANE OUTPUT
#include "cells.h"
#include "in_place.h"
#include "epilogue.h"

__kernel void join_add(READ_BLOB(input), READ_BLOB(addend), WRITE_BLOB(output) MORE_ARRAYS, const int count)
{
    const int n = SAMPLE;
    if (n >= count) {
        return;
    }
    FOR_PLANES
    {
        __global const addend_t *terms = addend + BLOB_INDEX(ADDEND, n, z, 0, 0);
        __global output_t *to = output + BLOB_INDEX(OUTPUT, n, z, 0, 0);
        __global const input_t *from = IN_PLACE_OF(to, input + BLOB_INDEX(INPUT, n, z, 0, 0));
        FOR_CELLS
        {
            number_t results[CELLS];
            EACH_CELL
            {
                const number_t sum = READ_VALUE(from, AT(INPUT)) + READ_VALUE(terms, AT(ADDEND));
                results[i] = FINISHED(sum, UNIT_OF(OUTPUT, z));
            }
            EACH_CELL
            {
                WRITE_VALUE(to, AT(OUTPUT), results[i]);
            }
        }
    }
}
