/*
 * Statistics of a unit: its mean, what the mean's rounding lost, and the sum of squared deviations.
 */
typedef struct {
    number_t mean;
    number_t lost;
    number_t squares;
} unit_moments_t;

/* Makes those of all its values what normalizes unit z, and adds them to the running statistics. */
#define STORE_STATISTICS(z, moments, values)                                                      \
    do {                                                                                          \
        SET_UNIT_NUMBERS((moments).mean, ARRAY(statistics), z);                                   \
        SET_UNIT_NUMBERS((moments).lost, ARRAY(statistics), UNITS + (z));                         \
        SET_UNIT_NUMBERS(INVERSE_DEVIATION(moments, values), ARRAY(statistics), 2 * UNITS + (z)); \
        const number_t unbiased = (moments).squares / fmax((values) - 1, 1.0f);                   \
        ADD_TO_RUNNING(ARRAY(running_mean), z, (moments).mean);                                   \
        ADD_TO_RUNNING(ARRAY(running_variance), z, unbiased);                                     \
    } while (0)
#define ADD_TO_RUNNING(array, z, value) \
    SET_UNIT_NUMBERS((1 - MOMENTUM) * UNIT_NUMBERS(array, z) + MOMENTUM * (value), array, z)
#define INVERSE_DEVIATION(moments, values) (1 / sqrt((moments).squares / (values) + EPSILON))
