/*
 * What a work-group leaves of its part of a sample: sums that loss/accumulate adds up. With weights, each loss is
 * multiplied by its own, and the mean is that of a batch over its weights.
 *
 * Arrays:
 *   SAMPLE_WEIGHTS  read   (COUNT)
 *   SAMPLE_METRICS  write  (COUNT, PARTS, METRICS)
 * Scalars:
 *   DIVISOR  what the sum of the samples' losses is divided by: the sum of their weights
 * Macros:
 *   HAS_DELTA  0: only the metrics
 *   METRICS    numbers a part
 */
#include "loss/rows.h"
#include "loss/scale.h"

/* What the numbers of a part are. */
#define LOSS 0
#define WEIGHT 1
#define RIGHT 2
#define AMONG_FIVE 3
#define COUNTED 4

/* NOTE: sums of rows first, so that a large output does not lose small terms. */
#define ADD_ROW(sums, row_sums)         \
    for (int i = 0; i < METRICS; i++) { \
        sums[i] += row_sums[i];         \
    }

/* Every work-item calls it. */
INLINE void put_metrics(const accumulator_t *sums, __global real_t *sample_metrics, const int n,
                        __local accumulator_t *group)
{
    for (int i = 0; i < METRICS; i++) {
        const accumulator_t sum = POSITION_SUM(sums[i], group);
        if (get_local_id(0) == 0) {
            sample_metrics[(n * PARTS + PART) * METRICS + i] = sum;
        }
    }
}
