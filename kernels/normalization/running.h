/*
 * Batch normalization with running statistics: (value - running_mean) / sqrt(running_variance + EPSILON) * scale +
 * shift, for what takes these four arrays.
 */
typedef struct {
    number_t mean;
    number_t factor;
    number_t term;
} running_norm_t;

#define RUNNING_NORM(unit)                                                               \
    ((running_norm_t){UNIT_NUMBERS(ARRAY(running_mean), unit),                           \
                      UNIT_NUMBERS(ARRAY(scale), unit)                                   \
                          / sqrt(UNIT_NUMBERS(ARRAY(running_variance), unit) + EPSILON), \
                      UNIT_NUMBERS(ARRAY(shift), unit)})
#define NORMALIZE(value, norm) MULTIPLY_ADD((value) - (norm).mean, (norm).factor, (norm).term)
