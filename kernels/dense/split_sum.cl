/*
 * Dense (perceptron), the second stage of products in splits, forward and backward data:
 * result[n][k] = f(bias[k] + sum of the partials, in the order of the splits).
 *
 * Blobs, sizes as arguments:
 *   RESULT update
 * Arrays:
 *   PARTIALS read  (SPLITS, samples, elements)
 *   BIAS     read  an element, if HAS_BIAS
 * Scalars:
 *   COUNT  samples in this batch
 *   SPLITS
 *   HAS_BIAS
 * Macros:
 *   ACCUMULATE  1: add to RESULT
 * Global:
 *   width  elements
 *   units  COUNT
 */
#include "blob.h"
#include "epilogue.h"
#include "put.h"

#define ELEMENTS BLOB_ELEMENTS(RESULT)

__kernel void dense_split_sum(WRITE_BLOB(result), READ_ARRAY(real_t, partials),
                              READ_ARRAY(bias_t, bias) MORE_ARRAYS, const int count, const int splits,
                              const int has_bias)
{
    const int k = get_global_id(0);
    const int n = get_global_id(2);
    if (k >= ELEMENTS || n >= count) {
        return;
    }
    real_t sum = 0;
    for (int split = 0; split < SPLITS; split++) {
        sum += ARRAY(partials)[((size_t)split * count + n) * ELEMENTS + k];
    }
    if (HAS_BIAS) {
        sum += READ_VALUE(ARRAY(bias), k);
    }
    PUT(FINISHED(sum, k), result + BLOB_INDEX(RESULT, n, 0, 0, 0) + BLOB_ELEMENT_OFFSET(RESULT, k));
}
