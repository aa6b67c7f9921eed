/*
 * The losses of one class for each position, from logits. A kernel defines position_loss() before, which gives
 * the loss of a position whose label is a class, and puts its deltas times `scale`, by PUT_DELTA; and calls
 * class_losses(). The loss of a sample is the mean over its positions of their losses, each times the weight of its
 * class. Where the label is no class there is no loss, and the delta is 0. A sample that is mixed has its partner's
 * label too: everything of each label counts by its share, and with the weight of the sample whose label it is.
 *
 * Blobs:
 *   OUTPUT        read   logits
 *   OUTPUT_DELTA  write
 * Arrays:
 *   LABELS         read  class numbers, int32: (COUNT, height, width)
 *   CLASS_WEIGHTS  read  (units)
 */
#include "loss/partners.h"
#include "loss/parts.h"

INLINE void class_losses(__global const output_t *output, const int output_unit_offset,
                         __global output_delta_t *output_delta, const int output_delta_unit_offset,
                         __global const int *labels, __global const real_t *class_weights,
                         __global const real_t *partner_shares, __global const real_t *sample_weights,
                         __global real_t *sample_metrics, const real_t divisor, __local accumulator_t *group)
{
    const int n = get_global_id(2);
    const real_t partner_share = partner_shares[n];
    const int labels_of_sample = partner_share > 0 ? 2 : 1;
    accumulator_t sums[METRICS] = {0};
    for (int row = FIRST_ROW; row < END_ROW; row += ROW_STEP) {
        accumulator_t row_sums[METRICS] = {0};
        for (int x = FIRST_COLUMN; x < OUTPUT_UNIT_WIDTH; x += ROW_ITEMS) {
            __global const output_t *logits = output + UNIT_ROW_INDEX(OUTPUT, n, 0, row, x);
            __global output_delta_t *deltas = output_delta + UNIT_ROW_INDEX(OUTPUT_DELTA, n, 0, row, x);
            const real_t largest = largest_of(logits, group);
            bool has_class = false;
            for (int i = 0; i < labels_of_sample; i++) {
                const int owner = i ? PARTNER(n) : n;
                const int label = labels[((size_t)owner * ROWS + row) * OUTPUT_UNIT_WIDTH + x];
                if (!IS_CLASS(label)) {
                    continue;
                }
                const real_t share = (i ? partner_share : 1 - partner_share) / OUTPUT_UNIT_ELEMENTS;
                const real_t weight = sample_weights[owner] * class_weights[label] * share;
                int place;
                const accumulator_t sum = sum_and_place(logits, largest, label, &place, group);
                row_sums[LOSS] +=
                    weight
                    * position_loss(logits, largest, sum, label, deltas, weight / divisor, has_class, group);
                row_sums[WEIGHT] += weight;
                row_sums[RIGHT] += place < 1 ? share : 0;
                row_sums[AMONG_FIVE] += place < 5 ? share : 0;
                row_sums[COUNTED] += share;
                has_class = true;
            }
            if (!has_class) {
                CLEAR_DELTAS(deltas)
            }
        }
        ADD_ROW(sums, row_sums)
    }
    put_metrics(sums, sample_metrics, n, group);
}
