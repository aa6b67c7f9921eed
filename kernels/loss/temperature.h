/*
 * Logits at a temperature, from which softer probabilities follow: p = softmax(logits / TEMPERATURE).
 *
 * Macros:
 *   TEMPERATURE
 */
#define AT_TEMPERATURE(logit, largest) (((logit) - (largest)) / TEMPERATURE)

/* What log(p) is less than AT_TEMPERATURE. */
INLINE real_t log_of_sum(__global const output_t *logits, const real_t largest, __local accumulator_t *group)
{
    accumulator_t sum = 0;
    EACH_CLASS(z)
    {
        sum += exp(AT_TEMPERATURE(READ_VALUE(logits, LOGIT(z)), largest));
    }
    return log(CLASS_SUM(sum, group));
}
