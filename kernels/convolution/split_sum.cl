/*
 * The second stage of products in splits (convolution/splits.h), forward and backward data: result = epilogue(sum of
 * partials, in the order of the splits).
 *
 * Blobs:
 *   RESULT update
 * Arrays:
 *   PARTIALS read  (SPLITS, samples, units, height, width)
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   SPLITS
 *   ACCUMULATE  1: add to RESULT
 * Global:
 *   width  values of a sample
 *   units  COUNT
 */
#include "blob.h"
/* NOTE: forward, the result is the output; backward there is no epilogue. */
#define OUTPUT_UNIT_HEIGHT RESULT_UNIT_HEIGHT
#define OUTPUT_UNIT_WIDTH RESULT_UNIT_WIDTH
#include "convolution/epilogue.h"
#include "put.h"

__kernel void convolution_split_sum(WRITE_BLOB(result), EPILOGUE_BLOBS, READ_ARRAY(real_t, partials),
                                    EPILOGUE_ARRAYS, const int count)
{
    const int element = get_global_id(0);
    const int n = get_global_id(2);
    if (element >= BLOB_ELEMENTS(RESULT)) {
        return;
    }
    const int unit = element / RESULT_UNIT_ELEMENTS;
    const int y = element % RESULT_UNIT_ELEMENTS / RESULT_UNIT_WIDTH;
    const int x = element % RESULT_UNIT_WIDTH;
    real_t parts[SPLITS];
#pragma unroll
    for (int split = 0; split < SPLITS; split++) {
        parts[split] = ARRAY(partials)[((size_t)split * count + n) * BLOB_ELEMENTS(RESULT) + element];
    }
    real_t sum = 0;
#pragma unroll
    for (int split = 0; split < SPLITS; split++) {
        sum += parts[split];
    }
    const unit_terms_t terms = UNIT_TERMS(unit);
    const real_t value = CELL_EPILOGUE(UNIT_EPILOGUE(sum, terms), n, unit, y, x);
    PUT(ACTIVATE(value), result + BLOB_INDEX(RESULT, n, unit, y, x));
}
