/*
 * Batch normalization, forward in inference, cell by cell; may run in place:
 * output = f((input - running_mean) / sqrt(running_variance + epsilon) * scale + shift + residual).
 *
 * Blobs, sizes as arguments everywhere:
 *   INPUT    read
 *   RESIDUAL read   if HAS_RESIDUAL
 *   OUTPUT   write
 * Arrays:
 *   RUNNING_MEAN      read  (units)
 *   RUNNING_VARIANCE  read  (units)
 *   SCALE             read  (units)
 *   SHIFT             read  (units)
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   EPSILON       added to the variance
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
#include "joined.h"
#include "normalization/running.h"

__kernel void normalization_forward_inference(READ_BLOB(input), READ_BLOB(residual), WRITE_BLOB(output),
                                              READ_ARRAY(running_mean_t, running_mean),
                                              READ_ARRAY(running_variance_t, running_variance),
                                              READ_ARRAY(scale_t, scale),
                                              READ_ARRAY(shift_t, shift) MORE_ARRAYS, const int count)
{
    const int n = SAMPLE;
    if (n >= count) {
        return;
    }
    FOR_PLANES
    {
        const running_norm_t norm = RUNNING_NORM(UNIT_OF(OUTPUT, z));
        __global const residual_t *terms = residual + RESIDUAL_INDEX(n, z, 0, 0);
        __global output_t *to = output + BLOB_INDEX(OUTPUT, n, z, 0, 0);
        __global const input_t *from = IN_PLACE_OF(to, input + BLOB_INDEX(INPUT, n, z, 0, 0));
        FOR_CELLS
        {
            number_t results[CELLS];
            EACH_CELL
            {
                const number_t normalized = NORMALIZE(READ_VALUE(from, AT(INPUT)), norm);
                const number_t value = WITH_RESIDUAL(BIASED(normalized, 0, UNIT_OF(OUTPUT, z)),
                                                     READ_VALUE(terms, AT_RESIDUAL), UNIT_OF(OUTPUT, z));
                results[i] = FINISHED(value, UNIT_OF(OUTPUT, z));
            }
            EACH_CELL
            {
                WRITE_VALUE(to, AT(OUTPUT), results[i]);
            }
        }
    }
}
