/*
 * The second stage of products in splits (convolution/splits.h), forward and backward data: result = epilogue(sum of
 * partials, in the order of the splits).
 *
 * Blobs, sizes as arguments:
 *   RESULT update
 * Arrays:
 *   PARTIALS read  (SPLITS, samples, units, height, width)
 * Scalars:
 *   COUNT  samples in this batch
 *   SPLITS
 * Macros:
 *   ACCUMULATE    1: add to RESULT
 *   LOCAL_WIDTH   neighbours in a work-group
 * Tunables:
 *   CELLS loops 1, lanes 4 of 1 2 4 8: cells that a work-item takes at once
 * Global:
 *   width  work-items that share a plane
 *   units  units * COUNT
 */
#include "blob.h"
/* NOTE: forward, the result is the output; backward there is no epilogue. */
#define OUTPUT_UNIT_HEIGHT RESULT_UNIT_HEIGHT
#define OUTPUT_UNIT_WIDTH RESULT_UNIT_WIDTH
#include "convolution/epilogue.h"
#include "put.h"

__kernel void convolution_split_sum(WRITE_BLOB(result), EPILOGUE_BLOBS, READ_ARRAY(real_t, partials),
                                    EPILOGUE_ARRAYS, const int count, const int splits)
{
    const int n = QUOTIENT((int)get_global_id(2), RESULT, UNIT_COUNT);
    const int unit = (int)get_global_id(2) - n * RESULT_UNIT_COUNT;
    if (n >= count) {
        return;
    }
    const number_t bias = UNIT_BIAS(unit);
    __global const number_t *plane = (__global const number_t *)ARRAY(partials)
                                     + ((size_t)n * RESULT_UNIT_COUNT + unit) * RESULT_UNIT_ELEMENTS;
    const int first = (int)get_group_id(0) * LOCAL_WIDTH * CELLS + (int)get_local_id(0);
    if (first < RESULT_UNIT_ELEMENTS) {
        number_t sums[CELLS];
#pragma unroll
        for (int split = 0; split < SPLITS; split++) {
            __global const number_t *from = plane + (size_t)split * count * BLOB_ELEMENTS(RESULT);
#pragma unroll
            for (int i = 0; i < CELLS; i++) {
                /* Cells past the last one repeat it; their sums are not stored. */
                const number_t part = from[min(first + i * LOCAL_WIDTH, RESULT_UNIT_ELEMENTS - 1)];
                sums[i] = split == 0 ? part : sums[i] + part;
            }
        }
#pragma unroll
        for (int i = 0; i < CELLS; i++) {
            const int cell = first + i * LOCAL_WIDTH;
            if (cell < RESULT_UNIT_ELEMENTS) {
                const int y = QUOTIENT(cell, RESULT, UNIT_WIDTH);
                const int x = REMAINDER(cell, RESULT, UNIT_WIDTH);
                const number_t value = CELL_EPILOGUE(BIASED(sums[i], bias, unit), n, unit, y, x);
                PUT(FINISHED(value, unit), result + BLOB_INDEX(RESULT, n, unit, y, x));
            }
        }
    }
}
