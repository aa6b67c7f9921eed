/*
 * Activation, backward: input_delta = output_delta * f'(x), cell by cell; may run in place.
 * VALUE is the layer's output or its input, whichever f' is computed from.
 *
 * Blobs, sizes as arguments:
 *   VALUE        read
 *   OUTPUT_DELTA read
 *   INPUT_DELTA  update
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   ACCUMULATE    1: add to INPUT_DELTA
 *   SLOPE         f' of VALUE (blobnet/launch/elementwise.py)
 * Tunables:
 *   CELLS loops 1, lanes 4 of 1 2 4 8: cells that a work-item takes at once
 * Global:
 *   width  work-items that share a plane
 *   units  units (some of them, if a work-item does several) * COUNT
 */
#include "blob.h"
#define PLANE VALUE
#include "cells.h"
#include "put.h"

__kernel void activation_backward(SHARED_BLOB(value), SHARED_BLOB(output_delta), MUTABLE_BLOB(input_delta),
                                  const int count)
{
    const int n = SAMPLE;
    if (n >= count) {
        return;
    }
    FOR_PLANES
    {
        __global const value_t *values = value + BLOB_INDEX(VALUE, n, z, 0, 0);
        __global const output_delta_t *from = output_delta + BLOB_INDEX(OUTPUT_DELTA, n, z, 0, 0);
        __global input_delta_t *to = input_delta + BLOB_INDEX(INPUT_DELTA, n, z, 0, 0);
        FOR_CELLS
        {
            number_t results[CELLS];
            EACH_CELL
            {
                const number_t known = READ_VALUE(values, AT(VALUE));
                const number_t delta = READ_VALUE(from, AT(OUTPUT_DELTA)) * SLOPE(known);
                results[i] = PLUS_OLD(delta, OLD(to + AT(INPUT_DELTA)));
            }
            EACH_CELL
            {
                WRITE_VALUE(to, AT(INPUT_DELTA), results[i]);
            }
        }
    }
}
