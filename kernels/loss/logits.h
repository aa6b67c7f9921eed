/* The logits of a position: one for each unit. */
#include "loss/shared_classes.h"

#define LOGIT(z) ((z) * OUTPUT_UNIT_MEMORY_ELEMENTS)
#define DELTA(z) ((z) * OUTPUT_DELTA_UNIT_MEMORY_ELEMENTS)
#define IS_CLASS(label) ((uint)(label) < OUTPUT_UNIT_COUNT)

/*
 * What makes a position's logits probabilities, exp(logit - largest) / sum. All that follows sees logits minus the
 * largest, so that a common offset costs no digits.
 * NOTE: not a struct of both, which Oclgrind 21.10 does not take.
 */
INLINE real_t largest_of(__global const output_t *logits, __local accumulator_t *group)
{
    real_t largest = READ_VALUE(logits, 0);
    EACH_CLASS(z)
    {
        largest = fmax(largest, READ_VALUE(logits, LOGIT(z)));
    }
    return CLASS_MAXIMUM(largest, group);
}

/* The sum; and how many classes come before the label's: those of larger logits, and of equal ones the first. */
INLINE accumulator_t sum_and_place(__global const output_t *logits, const real_t largest, const int label,
                                   int *place, __local accumulator_t *group)
{
    const real_t own = READ_VALUE(logits, LOGIT(label));
    accumulator_t sum = 0;
    int better = 0;
    EACH_CLASS(z)
    {
        const real_t logit = READ_VALUE(logits, LOGIT(z));
        sum += exp(logit - largest);
        better += logit > own || (logit == own && z < label);
    }
    sum = CLASS_SUM(sum, group);
    better = CLASS_SUM(better, group);
    /* NOTE: a NaN compares false, so a position whose logits are NaN must not count as right. */
    *place = isnan(own) || isnan(sum) ? OUTPUT_UNIT_COUNT + 5 : better;
    return sum;
}

/* For a position without a class. */
#define CLEAR_DELTAS(deltas)                  \
    if (HAS_DELTA) {                          \
        EACH_CLASS(z)                         \
        {                                     \
            WRITE_VALUE(deltas, DELTA(z), 0); \
        }                                     \
    }

/* For position_loss(): the delta of class z, which the first label of a position writes, and another one adds to. */
#define PUT_DELTA(z, value) \
    WRITE_VALUE(deltas, DELTA(z), adds ? READ_VALUE(deltas, DELTA(z)) + (value) : (value));
