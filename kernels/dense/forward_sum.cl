/*
 * Dense (perceptron), forward, second stage: output[n][o] = f(bias[o] + the partial sums of dense/forward_tiled.cl).
 *
 * Blobs:
 *   OUTPUT write  height and width 1
 * Arrays:
 *   PARTIALS read  (SPLITS, samples, units)
 *   BIAS     read  a unit, if HAS_BIAS
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   SPLITS
 *   HAS_BIAS
 *   ACTIVATION  applied to what is stored
 * Global:
 *   width  output units
 *   units  COUNT
 */
#include "blob.h"
#include "activation/functions.h"

__kernel void dense_forward_sum(WRITE_BLOB(output), READ_ARRAY(real_t, partials), READ_ARRAY(real_t, bias),
                                const int count)
{
    const int o = get_global_id(0);
    const int n = get_global_id(2);
    if (o >= OUTPUT_UNIT_COUNT || n >= count) {
        return;
    }
    real_t sum = 0;
    for (int split = 0; split < SPLITS; split++) {
        sum += ARRAY(partials)[((size_t)split * count + n) * OUTPUT_UNIT_COUNT + o];
    }
#if HAS_BIAS
    sum += ARRAY(bias)[o];
#endif
    output[BLOB_INDEX(OUTPUT, n, o, 0, 0)] = ACTIVATE(sum);
}
