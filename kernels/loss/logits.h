/* The logits of a position: one for each unit. */
#define LOGIT(z) ((z) * OUTPUT_UNIT_MEMORY_ELEMENTS)
#define DELTA(z) ((z) * OUTPUT_DELTA_UNIT_MEMORY_ELEMENTS)
#define IS_CLASS(label) ((uint)(label) < OUTPUT_UNIT_COUNT)

/*
 * What a position's logits have in common: the softmax of one of them is exp(logit - largest) / sum. All that
 * follows sees logits minus the largest, so that a common offset costs no digits.
 */
typedef struct {
    real_t largest;
    accumulator_t sum;
} softmax_t;

INLINE softmax_t softmax_of(__global const real_t *logits)
{
    softmax_t softmax = {logits[0], 0};
    for (int z = 1; z < OUTPUT_UNIT_COUNT; z++) {
        softmax.largest = fmax(softmax.largest, logits[LOGIT(z)]);
    }
    for (int z = 0; z < OUTPUT_UNIT_COUNT; z++) {
        softmax.sum += exp(logits[LOGIT(z)] - softmax.largest);
    }
    return softmax;
}

/* How many classes come before the label's: those of larger logits, and of equal ones the first. */
INLINE int place_of(__global const real_t *logits, const softmax_t softmax, const int label)
{
    const real_t own = logits[LOGIT(label)];
    int better = 0;
    for (int z = 0; z < OUTPUT_UNIT_COUNT; z++) {
        const real_t logit = logits[LOGIT(z)];
        better += logit > own || (logit == own && z < label);
    }
    /* NOTE: a NaN compares false, so a position whose logits are NaN must not count as right. */
    return isnan(own) || isnan(softmax.sum) ? OUTPUT_UNIT_COUNT + 5 : better;
}

/* For a position without a class. */
#define CLEAR_DELTAS(deltas)                                   \
    for (int z = 0; HAS_DELTA && z < OUTPUT_UNIT_COUNT; z++) { \
        deltas[DELTA(z)] = 0;                                  \
    }
