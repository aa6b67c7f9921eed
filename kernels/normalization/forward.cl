/*
 * Batch normalization, forward in training, last stage, cell by cell:
 * output = epilogue((input - mean) / sqrt(variance + epsilon) * scale + shift).
 *
 * Blobs, sizes as arguments everywhere:
 *   INPUT    read
 *   RESIDUAL read   if HAS_RESIDUAL
 *   OUTPUT   write
 * Arrays:
 *   STATISTICS  read  (3, units): mean, what its rounding lost, 1 / sqrt(variance + epsilon)
 *   SCALE       read  (units)
 *   SHIFT       read  (units)
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
#include "normalization/normalized.h"
#include "joined.h"

__kernel void normalization_forward(READ_BLOB(input), READ_BLOB(residual), WRITE_BLOB(output),
                                    READ_ARRAY(real_t, statistics), READ_ARRAY(scale_t, scale),
                                    READ_ARRAY(shift_t, shift) MORE_ARRAYS, const int count)
{
    const int n = SAMPLE;
    if (n >= count) {
        return;
    }
    FOR_PLANES
    {
        LOAD_STATISTICS(z);
        __global const input_t *from = input + BLOB_INDEX(INPUT, n, z, 0, 0);
        __global const residual_t *terms = residual + RESIDUAL_INDEX(n, z, 0, 0);
        __global output_t *to = output + BLOB_INDEX(OUTPUT, n, z, 0, 0);
        FOR_CELLS
        {
            NORMALIZE_CELLS(UNIT_OF(OUTPUT, z));
        }
    }
}
