/*
 * Mean squared error; the loss of a sample is the mean over its outputs:
 *     loss = (output - target)^2,  delta = 2 * (output - target) / (outputs * COUNT)
 *
 * Blobs:
 *   OUTPUT       read
 *   OUTPUT_DELTA write
 * Arrays:
 *   LABELS          read   targets, float32: (COUNT, units, height, width)
 *   SAMPLE_METRICS  write  (COUNT, 3): loss, and two zeros: there are no classes to be right about
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   HAS_DELTA  0: only the metrics
 * Global:
 *   units  COUNT
 */
#include "blob.h"

#define ELEMENTS (OUTPUT_UNIT_COUNT * OUTPUT_UNIT_HEIGHT * OUTPUT_UNIT_WIDTH)

__kernel void loss_mean_squared_error(SHARED_BLOB(output), MUTABLE_BLOB(output_delta),
                                      READ_ARRAY(real_t, labels), WRITE_ARRAY(real_t, sample_metrics),
                                      const int count)
{
    const int n = get_global_id(2);
    if (n >= count) {
        return;
    }
    __global const real_t *targets = ARRAY(labels) + (size_t)n * ELEMENTS;
    const real_t scale = 1.0f / ELEMENTS;
    accumulator_t sum = 0;
    for (int z = 0; z < OUTPUT_UNIT_COUNT; z++) {
        for (int y = 0; y < OUTPUT_UNIT_HEIGHT; y++) {
            __global const real_t *values = output + BLOB_INDEX(OUTPUT, n, z, y, 0);
#if HAS_DELTA
            __global real_t *deltas = output_delta + BLOB_INDEX(OUTPUT_DELTA, n, z, y, 0);
#endif
            /* NOTE: sums of rows first, so that a large output does not lose small terms. */
            accumulator_t row_sum = 0;
            for (int x = 0; x < OUTPUT_UNIT_WIDTH; x++) {
                const real_t difference = values[x] - targets[x];
                row_sum = MULTIPLY_ADD(difference, difference, row_sum);
#if HAS_DELTA
                deltas[x] = 2 * difference * scale / count;
#endif
            }
            sum += row_sum;
            targets += OUTPUT_UNIT_WIDTH;
        }
    }
    __global real_t *metrics = ARRAY(sample_metrics) + 3 * n;
    metrics[0] = sum * scale;
    metrics[1] = 0;
    metrics[2] = 0;
}
