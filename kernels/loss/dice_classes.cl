/*
 * The Dice loss of each class of a sample, and its slope, with probabilities p and targets t of 0 or 1:
 *     loss = v * (1 - (2 * sum(p * t) + s) / (sum(p) + sum(t) + s)),  dloss / dp = SLOPE_OWN * t + SLOPE
 * where v is the class's weight by the sum of all of them, and s is SMOOTHING. Positions whose label is no class
 * take no part.
 *
 * Blobs:
 *   OUTPUT  read  logits
 * Arrays:
 *   LABELS         read   class numbers, int32: (COUNT, height, width)
 *   CLASS_WEIGHTS  read   (units)
 *   SOFTMAX_SUMS   read   see loss/softmax_sums
 *   CLASS_TERMS    write  (COUNT, units, 3): loss, SLOPE_OWN, SLOPE
 * Macros:
 *   SMOOTHING
 * Global:
 *   units  COUNT * units
 */
#include "blob.h"
#include "loss/logits.h"
#include "loss/rows.h"

__kernel __attribute__((reqd_work_group_size(LOCAL_WIDTH, 1, 1))) void
loss_dice_classes(SHARED_BLOB(output), READ_ARRAY(int, labels), READ_ARRAY(real_t, class_weights),
                  READ_ARRAY(real_t, softmax_sums), WRITE_ARRAY(real_t, class_terms))
{
    __local accumulator_t group[LOCAL_WIDTH];
    const int n = get_global_id(2) / OUTPUT_UNIT_COUNT;
    const int z = get_global_id(2) % OUTPUT_UNIT_COUNT;
    accumulator_t common = 0;
    accumulator_t all = 0;
    for (int row = FIRST_ROW; row < END_ROW; row += ROW_STEP) {
        const size_t first = ((size_t)n * ROWS + row) * OUTPUT_UNIT_WIDTH;
        __global const output_t *logits = output + UNIT_ROW_INDEX(OUTPUT, n, z, row, 0);
        /* NOTE: sums of rows first, so that a large output does not lose small terms. */
        accumulator_t row_common = 0;
        accumulator_t row_all = 0;
        for (int x = FIRST_COLUMN; x < OUTPUT_UNIT_WIDTH; x += ROW_ITEMS) {
            __global const real_t *sums = ARRAY(softmax_sums) + 2 * (first + x);
            const int label = ARRAY(labels)[first + x];
            const real_t probability =
                IS_CLASS(label) ? exp(READ_VALUE(logits, x) - sums[0]) / sums[1] : 0.0f;
            row_common += label == z ? probability : 0;
            row_all += probability + (label == z ? 1 : 0);
        }
        common += row_common;
        all += row_all;
    }
    common = GROUP_SUM(common, group);
    all = GROUP_SUM(all, group);
    if (get_local_id(0) == 0) {
        accumulator_t weights = 0;
        for (int i = 0; i < OUTPUT_UNIT_COUNT; i++) {
            weights += ARRAY(class_weights)[i];
        }
        const accumulator_t share = ARRAY(class_weights)[z] / weights;
        const accumulator_t numerator = 2 * common + SMOOTHING;
        const accumulator_t denominator = all + SMOOTHING;
        __global real_t *terms = ARRAY(class_terms) + 3 * ((size_t)n * OUTPUT_UNIT_COUNT + z);
        terms[0] = share * (denominator - numerator) / denominator;
        terms[1] = -2 * share / denominator;
        terms[2] = share * numerator / (denominator * denominator);
    }
}
