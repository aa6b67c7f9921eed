/*
 * Batch normalization with running statistics: (value - running_mean) / sqrt(running_variance + EPSILON) * scale +
 * shift, for what takes these four arrays.
 */
typedef struct {
    accumulator_t mean;
    accumulator_t factor;
    accumulator_t term;
} running_norm_t;

#define RUNNING_NORM(unit)                                                             \
    ((running_norm_t){READ_VALUE(ARRAY(running_mean), unit),                           \
                      READ_VALUE(ARRAY(scale), unit)                                   \
                          / sqrt(READ_VALUE(ARRAY(running_variance), unit) + EPSILON), \
                      READ_VALUE(ARRAY(shift), unit)})
#define NORMALIZE(value, norm) MULTIPLY_ADD((value) - (norm).mean, (norm).factor, (norm).term)
