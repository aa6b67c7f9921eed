/*
 * Binary cross-entropy from logits x with targets t, from 0 to 1; the loss of a sample is the mean over its outputs:
 *     loss = max(x, 0) - x * t + log(1 + exp(-|x|)),  delta = (sigmoid(x) - t) / (outputs * COUNT)
 * sigmoid(x) is tail = exp(-|x|) / (1 + exp(-|x|)) left of 0 and 1 - tail right of it: nothing overflows or cancels.
 *
 * Blobs:
 *   OUTPUT       read    logits
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

INLINE real_t loss_term(const real_t logit, const real_t target, real_t *slope)
{
    const real_t power = exp(-fabs(logit));
    const real_t tail = power / (1 + power);
    *slope = logit < 0 ? tail - target : (1 - target) - tail;
    return fmax(logit, 0.0f) - logit * target + log1p(power);
}

#include "loss/targets.h"

__kernel void loss_binary_cross_entropy(SHARED_BLOB(output), MUTABLE_BLOB(output_delta),
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
