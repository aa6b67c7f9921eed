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

INLINE real_t loss_term(const real_t value, const real_t target, real_t *slope)
{
    const real_t difference = value - target;
    *slope = 2 * difference;
    return difference * difference;
}

#include "loss/targets.h"

__kernel void loss_mean_squared_error(SHARED_BLOB(output), MUTABLE_BLOB(output_delta),
                                      READ_ARRAY(real_t, labels), WRITE_ARRAY(real_t, sample_metrics),
                                      const int count)
{
    const int n = get_global_id(2);
    if (n >= count) {
        return;
    }
    sample_loss(output, output_unit_offset, output_delta, output_delta_unit_offset, ARRAY(labels),
                ARRAY(sample_metrics), n, count);
}
