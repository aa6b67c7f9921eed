/*
 * Softmax cross-entropy from logits, at each position: loss = -sum(target * log(softmax)), delta = softmax - target.
 * The target is 1 - s + s/C for the label and s/C for the others (s: LABEL_SMOOTHING, C: units).
 *
 * Macros:
 *   LABEL_SMOOTHING
 */
#include "blob.h"
#include "loss/logits.h"

INLINE accumulator_t position_loss(__global const output_t *logits, const real_t largest,
                                   const accumulator_t sum, const int label, __global output_delta_t *deltas,
                                   const real_t scale, const bool adds, __local accumulator_t *group)
{
    const real_t own = READ_VALUE(logits, LOGIT(label)) - largest;
    accumulator_t loss = log(sum) - (1 - LABEL_SMOOTHING) * own;
    /* Without smoothing, classes masked by a logit of minus infinity must not make 0 * infinity. */
    if (LABEL_SMOOTHING > 0) {
        accumulator_t total = 0;
        EACH_CLASS(z)
        {
            total += READ_VALUE(logits, LOGIT(z)) - largest;
        }
        loss -= LABEL_SMOOTHING / OUTPUT_UNIT_COUNT * CLASS_SUM(total, group);
    }
#if HAS_DELTA
    EACH_CLASS(z)
    {
        const real_t probability = exp(READ_VALUE(logits, LOGIT(z)) - largest) / sum;
        const real_t target = (z == label ? 1 - LABEL_SMOOTHING : 0.0f) + LABEL_SMOOTHING / OUTPUT_UNIT_COUNT;
        PUT_DELTA(z, (probability - target) * scale)
    }
#endif
    return loss;
}

#include "loss/classes.h"

__kernel __attribute__((reqd_work_group_size(LOCAL_WIDTH, 1, 1))) void
loss_cross_entropy(SHARED_BLOB(output), MUTABLE_BLOB(output_delta), READ_ARRAY(int, labels),
                   READ_ARRAY(real_t, class_weights), READ_ARRAY(real_t, partner_shares),
                   READ_ARRAY(real_t, sample_weights), WRITE_ARRAY(real_t, sample_metrics),
                   READ_ARRAY(real_t, loss_scale), const float divisor)
{
    __local accumulator_t group[LOCAL_WIDTH];
    class_losses(output, output_unit_offset, output_delta, output_delta_unit_offset, ARRAY(labels),
                 ARRAY(class_weights), ARRAY(partner_shares), ARRAY(sample_weights), ARRAY(sample_metrics),
                 DELTA_DIVISOR, group);
}
