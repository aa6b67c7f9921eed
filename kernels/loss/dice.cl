/*
 * The Dice loss of a sample, from the losses of its classes (loss/dice_classes): their sum, in the metrics of its
 * first part, and the deltas of each position, p_z * (g_z - sum(p * g)) with g = dloss / dp.
 *
 * Blobs:
 *   OUTPUT        read   logits
 *   OUTPUT_DELTA  write
 * Arrays:
 *   LABELS       read  class numbers, int32: (COUNT, height, width)
 *   CLASS_TERMS  read  (COUNT, units, 3): loss, SLOPE_OWN, SLOPE
 */
#include "blob.h"
#include "loss/logits.h"
#include "loss/parts.h"

__kernel __attribute__((reqd_work_group_size(LOCAL_WIDTH, 1, 1))) void
loss_dice(SHARED_BLOB(output), MUTABLE_BLOB(output_delta), READ_ARRAY(int, labels),
          READ_ARRAY(real_t, class_terms), READ_ARRAY(real_t, sample_weights),
          WRITE_ARRAY(real_t, sample_metrics), READ_ARRAY(real_t, loss_scale), const float divisor)
{
    __local accumulator_t group[LOCAL_WIDTH];
    const int n = get_global_id(2);
    const real_t share = 1.0f / OUTPUT_UNIT_ELEMENTS;
    const real_t weight = ARRAY(sample_weights)[n];
    __global const real_t *terms = ARRAY(class_terms) + (size_t)n * 3 * OUTPUT_UNIT_COUNT;
    accumulator_t sums[METRICS] = {0};
    if (PART == 0 && get_local_id(0) == 0) {
        for (int z = 0; z < OUTPUT_UNIT_COUNT; z++) {
            sums[LOSS] += weight * terms[3 * z];
        }
        sums[WEIGHT] = weight;
    }
    for (int row = FIRST_ROW; row < END_ROW; row += ROW_STEP) {
        accumulator_t row_sums[METRICS] = {0};
        for (int x = FIRST_COLUMN; x < OUTPUT_UNIT_WIDTH; x += ROW_ITEMS) {
            const int label = ARRAY(labels)[((size_t)n * ROWS + row) * OUTPUT_UNIT_WIDTH + x];
            __global output_delta_t *deltas = output_delta + UNIT_ROW_INDEX(OUTPUT_DELTA, n, 0, row, x);
            if (!IS_CLASS(label)) {
                CLEAR_DELTAS(deltas)
                continue;
            }
            __global const output_t *logits = output + UNIT_ROW_INDEX(OUTPUT, n, 0, row, x);
            const real_t largest = largest_of(logits, group);
            int place;
            const accumulator_t sum = sum_and_place(logits, largest, label, &place, group);
            row_sums[RIGHT] += place < 1 ? share : 0;
            row_sums[AMONG_FIVE] += place < 5 ? share : 0;
            row_sums[COUNTED] += share;
#if HAS_DELTA
            accumulator_t mean = 0;
            EACH_CLASS(z)
            {
                const real_t slope = terms[3 * z + 2] + (z == label ? terms[3 * z + 1] : 0);
                mean += exp(READ_VALUE(logits, LOGIT(z)) - largest) * slope;
            }
            mean = CLASS_SUM(mean, group) / sum;
            EACH_CLASS(z)
            {
                const real_t probability = exp(READ_VALUE(logits, LOGIT(z)) - largest) / sum;
                const real_t slope = terms[3 * z + 2] + (z == label ? terms[3 * z + 1] : 0);
                WRITE_VALUE(deltas, DELTA(z), probability * (slope - mean) * weight / DELTA_DIVISOR);
            }
#endif
        }
        ADD_ROW(sums, row_sums)
    }
    put_metrics(sums, ARRAY(sample_metrics), n, group);
}
