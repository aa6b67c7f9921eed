/*
 * Products in splits of their rows, where there are fewer tiles than a device has room for: each split leaves its sums
 * in PARTIALS, and convolution/split_sum.cl adds them in a fixed order and does what is left.
 *
 * Arrays:
 *   PARTIALS write  (SPLITS, samples, units, height, width) of the result's numbers, if SPLITS is not 1
 * Macros:
 *   SPLITS  1: the product makes the result itself
 */
#if SPLITS == 1
#define FIRST_STEP 0
#define END_STEP DEPTH_STEPS
/*
 * Where the sum of cell (n, unit, y, x) of a blob goes, how far after it those of the next unit and row do, and of which
 * type they are.
 */
#define SUM_AT(ROLE, blob, count, n, unit, y, x) ((blob) + BLOB_INDEX(ROLE, n, unit, y, x))
#define SUM_PLANE(ROLE) ROLE##_UNIT_MEMORY_ELEMENTS
#define SUM_PITCH(ROLE) ROLE##_UNIT_MEMORY_WIDTH
#define SUM_TYPE(blob) blob##_t
#else
#define SPLIT ((int)GLOBAL_ID_OF_GROUP(2))
#define FIRST_STEP (DEPTH_STEPS * SPLIT / SPLITS)
#define END_STEP (DEPTH_STEPS * (SPLIT + 1) / SPLITS)
#define SUM_AT(ROLE, blob, count, n, unit, y, x)                                             \
    ((__global number_t *)ARRAY(partials)                                                    \
     + (((size_t)SPLIT * (count) + (n)) * ROLE##_UNIT_COUNT + (unit)) * ROLE##_UNIT_ELEMENTS \
     + (y) * ROLE##_UNIT_WIDTH + (x))
#define SUM_PLANE(ROLE) ROLE##_UNIT_ELEMENTS
#define SUM_PITCH(ROLE) ROLE##_UNIT_WIDTH
#define SUM_TYPE(blob) number_t
#endif
