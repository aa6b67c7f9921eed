/*
 * How far a student is from its teacher at each position, which is added to what the loss of its labels has left there
 * (Hinton et al. 2015):
 *     loss = TEACHER_WEIGHT * T^2 * sum(q * log(q / p)),  delta = TEACHER_WEIGHT * T * (p - q)
 * with T = TEMPERATURE, p = softmax(logits / T), and q the teacher's. A position weighs as much as in the loss of its
 * labels (loss/classes.h).
 *
 * Blobs:
 *   OUTPUT        read    logits
 *   OUTPUT_DELTA  update
 * Arrays:
 *   LABELS          read    class numbers, int32: (COUNT, height, width)
 *   CLASS_WEIGHTS   read    (units)
 *   TEACHER         read    log(q): (COUNT, units, height, width)
 *   SAMPLE_WEIGHTS  read    (COUNT)
 *   SAMPLE_METRICS  update  (COUNT, PARTS, METRICS): the first number of a part is its loss
 * Scalars:
 *   DIVISOR  what the sum of the samples' losses is divided by: the sum of their weights
 * Macros:
 *   HAS_DELTA  0: only the metrics
 *   METRICS    numbers a part
 *   TEACHER_WEIGHT
 */
#include "blob.h"
#include "loss/logits.h"
#include "loss/temperature.h"
#include "loss/partners.h"
#include "loss/rows.h"
#include "loss/scale.h"

__kernel __attribute__((reqd_work_group_size(LOCAL_WIDTH, 1, 1))) void
loss_distillation(SHARED_BLOB(output), MUTABLE_BLOB(output_delta), READ_ARRAY(int, labels),
                  READ_ARRAY(real_t, class_weights), READ_ARRAY(real_t, teacher),
                  READ_ARRAY(real_t, sample_weights), WRITE_ARRAY(real_t, sample_metrics),
                  READ_ARRAY(real_t, partner_shares), READ_ARRAY(real_t, loss_scale), const float divisor)
{
    __local accumulator_t group[LOCAL_WIDTH];
    const int n = get_global_id(2);
    const real_t partner_share = ARRAY(partner_shares)[n];
    accumulator_t sum = 0;
    for (int row = FIRST_ROW; row < END_ROW; row += ROW_STEP) {
        /* NOTE: sums of rows first, so that a large output does not lose small terms. */
        accumulator_t row_sum = 0;
        for (int x = FIRST_COLUMN; x < OUTPUT_UNIT_WIDTH; x += ROW_ITEMS) {
            const int position = row * OUTPUT_UNIT_WIDTH + x;
            real_t weight = 0;
            for (int i = 0; i < (partner_share > 0 ? 2 : 1); i++) {
                const int owner = i ? PARTNER(n) : n;
                const int label = ARRAY(labels)[(size_t)owner * OUTPUT_UNIT_ELEMENTS + position];
                if (IS_CLASS(label)) {
                    weight += ARRAY(sample_weights)[owner] * ARRAY(class_weights)[label]
                              * (i ? partner_share : 1 - partner_share);
                }
            }
            if (weight == 0) {
                continue;
            }
            weight *= TEACHER_WEIGHT * TEMPERATURE / OUTPUT_UNIT_ELEMENTS;
            __global const output_t *logits = output + UNIT_ROW_INDEX(OUTPUT, n, 0, row, x);
            __global const real_t *wanted = ARRAY(teacher) + (size_t)n * BLOB_ELEMENTS(OUTPUT) + position;
#if HAS_DELTA
            __global output_delta_t *deltas = output_delta + UNIT_ROW_INDEX(OUTPUT_DELTA, n, 0, row, x);
#endif
            const real_t largest = largest_of(logits, group);
            const real_t log_sum = log_of_sum(logits, largest, group);
            accumulator_t distance = 0;
            EACH_CLASS(z)
            {
                const real_t log_p = AT_TEMPERATURE(READ_VALUE(logits, LOGIT(z)), largest) - log_sum;
                const real_t log_q = wanted[(size_t)z * OUTPUT_UNIT_ELEMENTS];
                const real_t q = exp(log_q);
                /* Classes masked by a logit of minus infinity must not make 0 * infinity. */
                distance += q == 0 ? 0 : q * (log_q - log_p);
#if HAS_DELTA
                WRITE_VALUE(deltas, DELTA(z),
                            READ_VALUE(deltas, DELTA(z)) + weight * (exp(log_p) - q) / DELTA_DIVISOR);
#endif
            }
            row_sum += weight * TEMPERATURE * CLASS_SUM(distance, group);
        }
        sum += row_sum;
    }
    sum = POSITION_SUM(sum, group);
    if (get_local_id(0) == 0) {
        ARRAY(sample_metrics)[(n * PARTS + PART) * METRICS] += sum;
    }
}
