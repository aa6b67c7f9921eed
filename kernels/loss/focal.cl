/*
 * The focal loss from logits, at each position: loss = -sum(t * (1 - p)^GAMMA * log(p)) with p = softmax and the
 * targets t of the cross-entropy, and
 *     delta_z = t_z * f_z - p_z * sum(t * f),  f = (1 - p)^GAMMA * (GAMMA * p * log(p) / (1 - p) - 1)
 *
 * Macros:
 *   GAMMA            at least 0; with 0 it is the cross-entropy
 *   LABEL_SMOOTHING
 */
#include "blob.h"
#include "loss/logits.h"

/* The term of a class without its target, and f above; `others` is 1 - p. */
INLINE accumulator_t focal_term(const real_t shifted, const accumulator_t sum, const real_t others,
                                real_t *slope)
{
    const real_t probability = exp(shifted) / sum;
    /* NOTE: near 1, the logarithm of p has more digits than p itself shows. */
    const real_t logarithm = others < 0.5f ? log1p(-others) : shifted - log(sum);
    /* log(p) / (1 - p) tends to -1 where p tends to 1, and p * log(p) to 0 where p tends to 0. */
    const real_t quotient = others > 0 ? logarithm / others : -1.0f;
    const real_t factor = pow(others, (real_t)GAMMA);
    *slope = factor * (probability > 0 ? GAMMA * probability * quotient - 1 : -1.0f);
    return -factor * logarithm;
}

INLINE accumulator_t position_loss(__global const output_t *logits, const real_t largest,
                                   const accumulator_t sum, const int label, __global output_delta_t *deltas,
                                   const real_t scale, const bool adds, __local accumulator_t *group)
{
    accumulator_t others = 0;
    EACH_CLASS(z)
    {
        others += z == label ? 0 : exp(READ_VALUE(logits, LOGIT(z)) - largest);
    }
    others = CLASS_SUM(others, group) / sum;
    const real_t target = 1 - LABEL_SMOOTHING + LABEL_SMOOTHING / OUTPUT_UNIT_COUNT;
    const real_t smoothed = LABEL_SMOOTHING / OUTPUT_UNIT_COUNT;
    real_t own_slope;
    const accumulator_t own_loss =
        target * focal_term(READ_VALUE(logits, LOGIT(label)) - largest, sum, others, &own_slope);
    const real_t own = target * own_slope;
    accumulator_t rest_loss = 0;
    accumulator_t rest = 0;
    if (LABEL_SMOOTHING > 0) {
        EACH_CLASS(z)
        {
            if (z != label) {
                real_t slope;
                const real_t shifted = READ_VALUE(logits, LOGIT(z)) - largest;
                rest_loss += smoothed * focal_term(shifted, sum, 1 - exp(shifted) / sum, &slope);
                rest += smoothed * slope;
            }
        }
        rest_loss = CLASS_SUM(rest_loss, group);
        rest = CLASS_SUM(rest, group);
    }
#if HAS_DELTA
    EACH_CLASS(z)
    {
        const real_t shifted = READ_VALUE(logits, LOGIT(z)) - largest;
        const real_t probability = exp(shifted) / sum;
        real_t delta = -probability * (own + rest);
        if (z == label) {
            delta = own * others - probability * rest;
        } else if (LABEL_SMOOTHING > 0) {
            real_t slope;
            focal_term(shifted, sum, 1 - probability, &slope);
            delta += smoothed * slope;
        }
        PUT_DELTA(z, delta * scale)
    }
#endif
    return own_loss + rest_loss;
}

#include "loss/classes.h"

__kernel __attribute__((reqd_work_group_size(LOCAL_WIDTH, 1, 1))) void
loss_focal(SHARED_BLOB(output), MUTABLE_BLOB(output_delta), READ_ARRAY(int, labels),
           READ_ARRAY(real_t, class_weights), READ_ARRAY(real_t, partner_shares),
           READ_ARRAY(real_t, sample_weights), WRITE_ARRAY(real_t, sample_metrics),
           READ_ARRAY(real_t, loss_scale), const float divisor)
{
    __local accumulator_t group[LOCAL_WIDTH];
    class_losses(output, output_unit_offset, output_delta, output_delta_unit_offset, ARRAY(labels),
                 ARRAY(class_weights), ARRAY(partner_shares), ARRAY(sample_weights), ARRAY(sample_metrics),
                 DELTA_DIVISOR, group);
}
