/*
 * What the kernels of batch normalization in training have in common. STATISTICS is (3, units): mean, what its
 * rounding lost, 1 / sqrt(variance + epsilon).
 *
 * LOAD_STATISTICS declares those of plane z's unit, with which
 * CENTRED is a cell minus the mean, NORMALIZED what the layer made of it.
 */
#define LOAD_STATISTICS(z)                                                                       \
    const accumulator_t mean = ARRAY(statistics)[UNIT_OF(INPUT, z)];                             \
    const accumulator_t lost = ARRAY(statistics)[INPUT_UNIT_COUNT + (UNIT_OF(INPUT, z))];        \
    const accumulator_t inverse = ARRAY(statistics)[2 * INPUT_UNIT_COUNT + (UNIT_OF(INPUT, z))]; \
    const accumulator_t factor = inverse * READ_VALUE(ARRAY(scale), UNIT_OF(INPUT, z));          \
    const accumulator_t term = READ_VALUE(ARRAY(shift), UNIT_OF(INPUT, z))
#define CENTRED(cell) (((cell) - mean) - lost)
#define NORMALIZED(centred) MULTIPLY_ADD(centred, factor, term)

/* dL/d normalized, from dL/d f(normalized): f's slope follows from the value that forward had. */
#define THROUGH_SLOPE(delta, normalized) ((delta) * SLOPE(normalized))
