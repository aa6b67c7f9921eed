/*
 * Mean absolute error; the loss of a sample is the mean over its outputs:
 *     loss = |output - target|, whose slope is 0 where the two are equal
 */
#include "blob.h"

INLINE real_t loss_term(const real_t value, const real_t target, real_t *slope)
{
    const real_t difference = value - target;
    /* NOTE: sign() of NaN is 0. */
    *slope = isnan(difference) ? difference : sign(difference);
    return fabs(difference);
}

#include "loss/targets.h"

__kernel __attribute__((reqd_work_group_size(LOCAL_WIDTH, 1, 1))) void
loss_mean_absolute_error(SHARED_BLOB(output), MUTABLE_BLOB(output_delta), READ_ARRAY(real_t, labels),
                         READ_ARRAY(real_t, partner_shares), READ_ARRAY(real_t, sample_weights),
                         WRITE_ARRAY(real_t, sample_metrics), READ_ARRAY(real_t, loss_scale),
                         const float divisor)
{
    __local accumulator_t group[LOCAL_WIDTH];
    sample_loss(output, output_unit_offset, output_delta, output_delta_unit_offset, ARRAY(labels),
                ARRAY(partner_shares), ARRAY(sample_weights), ARRAY(sample_metrics), DELTA_DIVISOR, group);
}
