/*
 * What the kernels of batch normalization in training have in common. STATISTICS is (3, units): mean, what its
 * rounding lost, 1 / sqrt(variance + epsilon).
 *
 * LOAD_STATISTICS declares those of plane z's unit, with which
 * CENTRED is a cell minus the mean, NORMALIZED what the layer made of it.
 *
 * NORMALIZE_CELLS and MAKE_DELTAS are what forward and backward do to the cells of a step of cells.h, which the planes
 * `from`, `terms` and `cells` have, and `to` gets.
 */
#define LOAD_STATISTICS(z)                                                                              \
    const number_t mean = UNIT_NUMBERS(ARRAY(statistics), UNIT_OF(INPUT, z));                           \
    const number_t lost = UNIT_NUMBERS(ARRAY(statistics), INPUT_UNIT_COUNT + (UNIT_OF(INPUT, z)));      \
    const number_t inverse = UNIT_NUMBERS(ARRAY(statistics), 2 * INPUT_UNIT_COUNT + UNIT_OF(INPUT, z)); \
    const number_t factor = inverse * UNIT_NUMBERS(ARRAY(scale), UNIT_OF(INPUT, z));                    \
    const number_t term = UNIT_NUMBERS(ARRAY(shift), UNIT_OF(INPUT, z))
#define CENTRED(cell) (((cell) - mean) - lost)
#define NORMALIZED(centred) MULTIPLY_ADD(centred, factor, term)

/* dL/d normalized, from dL/d f(normalized): f's slope follows from the value that forward had. */
#define THROUGH_SLOPE(delta, normalized) ((delta) * SLOPE(normalized))

/* output = epilogue(normalized), for what includes joined.h; `unit` is that of the plane. */
#define NORMALIZE_CELLS(unit)                                                                 \
    number_t results[CELLS];                                                                  \
    EACH_CELL                                                                                 \
    {                                                                                         \
        const number_t normalized = NORMALIZED(CENTRED(READ_VALUE(from, AT(INPUT))));         \
        const number_t value =                                                                \
            WITH_RESIDUAL(BIASED(normalized, 0, unit), READ_VALUE(terms, AT_RESIDUAL), unit); \
        results[i] = FINISHED(value, unit);                                                   \
    }                                                                                         \
    EACH_CELL                                                                                 \
    {                                                                                         \
        WRITE_VALUE(to, AT(OUTPUT), results[i]);                                              \
    }

/*
 * input_delta = factor * (delta - delta_mean - slope * centred), for what includes put.h. NOTE: only loads first: with the
 * sums among them it takes NVIDIA's compiler 15 % longer.
 */
#define MAKE_DELTAS(delta_mean, slope)                                                         \
    number_t centred[CELLS];                                                                   \
    number_t deltas[CELLS];                                                                    \
    number_t olds[CELLS];                                                                      \
    EACH_CELL                                                                                  \
    {                                                                                          \
        centred[i] = CENTRED(READ_VALUE(cells, AT(INPUT)));                                    \
        deltas[i] = READ_VALUE(from, AT(OUTPUT_DELTA));                                        \
        olds[i] = OLD(to + AT(INPUT_DELTA));                                                   \
    }                                                                                          \
    EACH_CELL                                                                                  \
    {                                                                                          \
        const number_t normalized = NORMALIZED(centred[i]);                                    \
        const number_t delta = THROUGH_SLOPE(deltas[i], normalized);                           \
        const number_t result = factor * MULTIPLY_ADD(-slope, centred[i], delta - delta_mean); \
        WRITE_VALUE(to, AT(INPUT_DELTA), PLUS_OLD(result, olds[i]));                           \
    }
