/*
 * Batch normalization with running statistics, backward, cell by cell; may run in place:
 * input_delta = output_delta * scale / sqrt(running_variance + epsilon).
 *
 * Blobs, sizes as arguments:
 *   OUTPUT_DELTA read
 *   INPUT_DELTA  update
 * Arrays:
 *   RUNNING_VARIANCE  read  (units)
 *   SCALE             read  (units)
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   EPSILON     added to the variance
 *   ACCUMULATE  1: add to INPUT_DELTA
 *   IN_PLACE    1: OUTPUT_DELTA is INPUT_DELTA
 * Tunables:
 *   CELLS loops 1, lanes 4 of 1 2 4 8: cells that a work-item takes at once
 * Global:
 *   width  work-items that share a plane
 *   units  units (some of them, if a work-item does several) * COUNT
 */
#include "blob.h"
#define PLANE INPUT_DELTA
#include "cells.h"
#include "in_place.h"
#include "put.h"

__kernel void normalization_backward_inference(READ_BLOB(output_delta), WRITE_BLOB(input_delta),
                                               READ_ARRAY(running_variance_t, running_variance),
                                               READ_ARRAY(scale_t, scale), const int count)
{
    const int n = SAMPLE;
    if (n >= count) {
        return;
    }
    FOR_PLANES
    {
        const number_t factor =
            UNIT_NUMBERS(ARRAY(scale), UNIT_OF(INPUT_DELTA, z))
            / sqrt(UNIT_NUMBERS(ARRAY(running_variance), UNIT_OF(INPUT_DELTA, z)) + EPSILON);
        __global input_delta_t *to = input_delta + BLOB_INDEX(INPUT_DELTA, n, z, 0, 0);
        __global const output_delta_t *from =
            IN_PLACE_OF(to, output_delta + BLOB_INDEX(OUTPUT_DELTA, n, z, 0, 0));
        FOR_CELLS
        {
            number_t results[CELLS];
            EACH_CELL
            {
                results[i] = PLUS_OLD(factor * READ_VALUE(from, AT(OUTPUT_DELTA)), OLD(to + AT(INPUT_DELTA)));
            }
            EACH_CELL
            {
                WRITE_VALUE(to, AT(INPUT_DELTA), results[i]);
            }
        }
    }
}
