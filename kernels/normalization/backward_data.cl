/*
 * Batch normalization, backward, last stage, cell by cell; may run in place. With M = WHOLE * height * width,
 * deviation = sqrt(variance + epsilon), normalized = (input - mean) / deviation and
 * delta = output_delta * f'(normalized * scale + shift):
 * input_delta = scale / deviation * (delta - shift_gradient / M - normalized * scale_gradient / M).
 *
 * Blobs, sizes as arguments:
 *   INPUT        read
 *   OUTPUT_DELTA read
 *   INPUT_DELTA  update
 * Arrays:
 *   STATISTICS      read  (3, units): mean, what its rounding lost, 1 / deviation
 *   SCALE           read  (units)
 *   SHIFT           read  (units)
 *   SCALE_GRADIENT  read  (units)
 *   SHIFT_GRADIENT  read  (units)
 * Scalars:
 *   COUNT  samples in this batch
 *   WHOLE  those that were normalized together: of all shards, or COUNT
 * Macros:
 *   ACCUMULATE    1: add to INPUT_DELTA
 *   IN_PLACE      1: OUTPUT_DELTA is INPUT_DELTA
 *   SLOPE         f' of what the norm gave (blobnet/launch/elementwise.py)
 * Tunables:
 *   CELLS loops 1, lanes 8 of 1 2 4 8: cells that a work-item takes at once
 * Global:
 *   width  work-items that share a plane
 *   units  units (some of them, if a work-item does several) * COUNT
 */
#include "blob.h"
#define PLANE INPUT
#include "cells.h"
#include "in_place.h"
#include "put.h"
#include "normalization/normalized.h"

__kernel void normalization_backward_data(READ_BLOB(input), READ_BLOB(output_delta), WRITE_BLOB(input_delta),
                                          READ_ARRAY(real_t, statistics), READ_ARRAY(scale_t, scale),
                                          READ_ARRAY(shift_t, shift), READ_ARRAY(real_t, scale_gradient),
                                          READ_ARRAY(real_t, shift_gradient), const int count,
                                          const int whole)
{
    const int n = SAMPLE;
    if (n >= count) {
        return;
    }
    const accumulator_t values = (accumulator_t)whole * INPUT_UNIT_ELEMENTS;
    FOR_PLANES
    {
        LOAD_STATISTICS(z);
        const number_t delta_mean = UNIT_NUMBERS(ARRAY(shift_gradient), UNIT_OF(INPUT, z)) / values;
        const number_t slope = inverse * (UNIT_NUMBERS(ARRAY(scale_gradient), UNIT_OF(INPUT, z)) / values);
        __global const input_t *cells = input + BLOB_INDEX(INPUT, n, z, 0, 0);
        __global input_delta_t *to = input_delta + BLOB_INDEX(INPUT_DELTA, n, z, 0, 0);
        __global const output_delta_t *from =
            IN_PLACE_OF(to, output_delta + BLOB_INDEX(OUTPUT_DELTA, n, z, 0, 0));
        FOR_CELLS
        {
            MAKE_DELTAS(delta_mean, slope);
        }
    }
}
