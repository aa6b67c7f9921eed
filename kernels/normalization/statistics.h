/*
 * Statistics of a unit: its mean, what the mean's rounding lost, and the sum of squared deviations.
 */
typedef struct {
    accumulator_t mean;
    accumulator_t lost;
    accumulator_t squares;
} unit_moments_t;

/* Makes those of all its values what normalizes unit z, and adds them to the running statistics. */
#define STORE_STATISTICS(z, moments, values)                                              \
    do {                                                                                  \
        ARRAY(statistics)[z] = (moments).mean;                                            \
        ARRAY(statistics)[UNITS + (z)] = (moments).lost;                                  \
        ARRAY(statistics)[2 * UNITS + (z)] = INVERSE_DEVIATION(moments, values);          \
        const accumulator_t unbiased = (moments).squares / fmax((values) - 1, 1.0f);      \
        __global real_t *means_so_far = ARRAY(running_mean);                              \
        __global real_t *variances_so_far = ARRAY(running_variance);                      \
        means_so_far[z] = (1 - MOMENTUM) * means_so_far[z] + MOMENTUM * (moments).mean;   \
        variances_so_far[z] = (1 - MOMENTUM) * variances_so_far[z] + MOMENTUM * unbiased; \
    } while (0)
#define INVERSE_DEVIATION(moments, values) (1 / sqrt((moments).squares / (values) + EPSILON))
