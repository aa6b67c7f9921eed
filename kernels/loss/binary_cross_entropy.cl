/*
 * Binary cross-entropy from logits x with targets t, from 0 to 1; the loss of a sample is the mean over its outputs:
 *     loss = max(x, 0) - x * t + log(1 + exp(-|x|)),  slope = sigmoid(x) - t
 * sigmoid(x) is tail = exp(-|x|) / (1 + exp(-|x|)) left of 0 and 1 - tail right of it: nothing overflows or cancels.
 *
 * Macros:
 *   LABEL_SMOOTHING  s: a target t becomes t * (1 - s) + s / 2
 */
#include "blob.h"

INLINE real_t loss_term(const real_t logit, const real_t label, real_t *slope)
{
    const real_t target = label * (1 - LABEL_SMOOTHING) + LABEL_SMOOTHING / 2;
    const real_t power = exp(-fabs(logit));
    const real_t tail = power / (1 + power);
    *slope = logit < 0 ? tail - target : (1 - target) - tail;
    return fmax(logit, 0.0f) - logit * target + log1p(power);
}

#include "loss/targets.h"

__kernel __attribute__((reqd_work_group_size(LOCAL_WIDTH, 1, 1))) void
loss_binary_cross_entropy(SHARED_BLOB(output), MUTABLE_BLOB(output_delta), READ_ARRAY(real_t, labels),
                          READ_ARRAY(real_t, partner_shares), READ_ARRAY(real_t, sample_weights),
                          WRITE_ARRAY(real_t, sample_metrics), READ_ARRAY(real_t, loss_scale),
                          const float divisor)
{
    __local accumulator_t group[LOCAL_WIDTH];
    sample_loss(output, output_unit_offset, output_delta, output_delta_unit_offset, ARRAY(labels),
                ARRAY(partner_shares), ARRAY(sample_weights), ARRAY(sample_metrics), DELTA_DIVISOR, group);
}
