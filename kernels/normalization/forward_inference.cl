/*
 * Batch normalization, forward in inference, cell by cell; may run in place:
 * output = f((input - running_mean) / sqrt(running_variance + epsilon) * scale + shift + residual).
 *
 * Blobs, sizes as arguments:
 *   INPUT    read
 *   RESIDUAL read   with HAS_RESIDUAL
 *   OUTPUT   write
 * Arrays:
 *   RUNNING_MEAN      read  (units)
 *   RUNNING_VARIANCE  read  (units)
 *   SCALE             read  (units)
 *   SHIFT             read  (units)
 * Scalars:
 *   COUNT  samples in this batch
 *   GLOBAL_WIDTH  work-items that share a plane
 *   GLOBAL_UNITS  step along the units
 *   LOCAL_WIDTH   neighbours in a work-group
 * Macros:
 *   HAS_RESIDUAL  1: add RESIDUAL
 *   ACTIVATION    the function f, see activation/functions.h
 *   EPSILON       added to the variance
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
#include "normalization/residual.h"
#include "normalization/running.h"

__kernel void normalization_forward_inference(READ_BLOB(input), READ_BLOB(residual), WRITE_BLOB(output),
                                              READ_ARRAY(real_t, running_mean),
                                              READ_ARRAY(real_t, running_variance), READ_ARRAY(real_t, scale),
                                              READ_ARRAY(real_t, shift), const int count,
                                              const int global_width, const int global_units,
                                              const int local_width)
{
    const int n = get_global_id(2) / GLOBAL_UNITS;
    if (n >= count) {
        return;
    }
    for (int z = get_global_id(2) % GLOBAL_UNITS; z < OUTPUT_UNIT_COUNT; z += GLOBAL_UNITS) {
        const running_norm_t norm = RUNNING_NORM(z);
        __global const real_t *terms = residual + BLOB_INDEX(RESIDUAL, n, z, 0, 0);
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
                const real_t value = PLUS_RESIDUAL(NORMALIZE(from[AT(INPUT)], norm), terms[AT(RESIDUAL)]);
                results[i] = ACTIVATE(value);
            }
            EACH_CELL
            {
                to[AT(OUTPUT)] = results[i];
            }
        }
    }
}
