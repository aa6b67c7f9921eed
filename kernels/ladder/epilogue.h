/*
 * What a rung does to a sum before it is stored: bias by BIAS_MODE (0 none, 1 one a unit, 2 one a position), with
 * STORE_PREACTIVATION a copy for a backward pass that needs it, and the activation.
 */
#define OUTPUT_ELEMENT(unit, y, x) (((unit) * OUTPUT_UNIT_HEIGHT + (y)) * OUTPUT_UNIT_WIDTH + (x))

#if BIAS_MODE == 1
#define BIASED(sum, unit, y, x) ((sum) + ARRAY(bias)[unit])
#elif BIAS_MODE == 2
#define BIASED(sum, unit, y, x) ((sum) + ARRAY(bias)[OUTPUT_ELEMENT(unit, y, x)])
#else
#define BIASED(sum, unit, y, x) (sum)
#endif

#if STORE_PREACTIVATION
#define KEEP_PREACTIVATION(value, n, unit, y, x) \
    (ARRAY(preactivation)[(size_t)BLOB_ELEMENTS(OUTPUT) * (n) + OUTPUT_ELEMENT(unit, y, x)] = (value))
#else
#define KEEP_PREACTIVATION(value, n, unit, y, x)
#endif

#define STORE_OUTPUT(sum, n, unit, y, x)                                         \
    do {                                                                         \
        const real_t before_activation = BIASED(sum, unit, y, x);                \
        KEEP_PREACTIVATION(before_activation, n, unit, y, x);                    \
        output[BLOB_INDEX(OUTPUT, n, unit, y, x)] = ACTIVATE(before_activation); \
    } while (0)
