/*
 * The losses of one class for each position, from logits. A kernel defines position_loss() before, which gives
 * the loss of a position whose label is a class, and writes its deltas times `scale`; and calls class_losses().
 * The loss of a sample is the mean over its positions of their losses, each times the weight of its class. Where
 * the label is no class there is no loss, and the delta is 0.
 *
 * Blobs:
 *   OUTPUT        read   logits
 *   OUTPUT_DELTA  write
 * Arrays:
 *   LABELS         read  class numbers, int32: (COUNT, height, width)
 *   CLASS_WEIGHTS  read  (units)
 */
#include "loss/parts.h"

INLINE void class_losses(__global const real_t *output, const int output_unit_offset,
                         __global real_t *output_delta, const int output_delta_unit_offset,
                         __global const int *labels, __global const real_t *class_weights,
                         __global const real_t *sample_weights, __global real_t *sample_metrics,
                         const real_t divisor, __local accumulator_t *group)
{
    const int n = get_global_id(2);
    const real_t share = 1.0f / OUTPUT_UNIT_ELEMENTS;
    accumulator_t sums[METRICS] = {0};
    for (int row = FIRST_ROW; row < END_ROW; row += ROW_STEP) {
        accumulator_t row_sums[METRICS] = {0};
        for (int x = FIRST_COLUMN; x < OUTPUT_UNIT_WIDTH; x += ROW_ITEMS) {
            const int label = labels[((size_t)n * ROWS + row) * OUTPUT_UNIT_WIDTH + x];
            __global real_t *deltas = output_delta + BLOB_INDEX(OUTPUT_DELTA, n, 0, row, x);
            if (!IS_CLASS(label)) {
                CLEAR_DELTAS(deltas)
                continue;
            }
            __global const real_t *logits = output + BLOB_INDEX(OUTPUT, n, 0, row, x);
            const real_t largest = largest_of(logits);
            int place;
            const accumulator_t sum = sum_and_place(logits, largest, label, &place);
            const real_t weight = sample_weights[n] * class_weights[label] * share;
            row_sums[LOSS] += weight * position_loss(logits, largest, sum, label, deltas, weight / divisor);
            row_sums[WEIGHT] += weight;
            row_sums[RIGHT] += place < 1 ? share : 0;
            row_sums[AMONG_FIVE] += place < 5 ? share : 0;
            row_sums[COUNTED] += share;
        }
        ADD_ROW(sums, row_sums)
    }
    put_metrics(sums, sample_metrics, n, group);
}
