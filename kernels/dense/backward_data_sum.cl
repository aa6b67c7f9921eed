/*
 * Dense, backward, delta of the input, second stage: input_delta[n][k] = the partial sums of
 * dense/backward_data_tiled.cl.
 *
 * Blobs:
 *   INPUT_DELTA update  without padding
 * Arrays:
 *   PARTIALS read  (SPLITS, samples, elements)
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   SPLITS
 *   ACCUMULATE  1: add to INPUT_DELTA
 * Global:
 *   width  elements
 *   units  COUNT
 */
#include "blob.h"
#include "put.h"

#define ELEMENTS BLOB_ELEMENTS(INPUT_DELTA)

__kernel void dense_backward_data_sum(WRITE_BLOB(input_delta), READ_ARRAY(real_t, partials), const int count)
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
    PUT(sum, input_delta + BLOB_INDEX(INPUT_DELTA, n, 0, 0, k));
}
