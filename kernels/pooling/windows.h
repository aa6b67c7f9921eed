/*
 * What the pooling kernels share: where windows and data meet.
 *
 * Zero is not neutral for max, and every window holds at least one cell of data (the layer sees to
 * that), so all loops are clamped to the data and no halo is read. Clamped loops have no constant
 * length; the compiler gets one for the cells between *_BEGIN and *_END, where nothing needs
 * clamping, so that it can unroll the taps and vectorize along x.
 *
 * A window of output column x covers the input columns x * STRIDE_WIDTH - PAD_LEFT and following.
 */

/* Output columns whose windows lie within the data: from FULL_BEGIN to before FULL_END. */
#define FULL_BEGIN min((PAD_LEFT + STRIDE_WIDTH - 1) / STRIDE_WIDTH, OUTPUT_WIDTH)
#define FULL_END max(FULL_BEGIN, LAST_FULL + 1)
#define LAST_FULL                                                                                  \
    (INPUT_WIDTH + PAD_LEFT < WINDOW_WIDTH                                                         \
         ? -1                                                                                      \
         : (INPUT_WIDTH + PAD_LEFT - WINDOW_WIDTH) / STRIDE_WIDTH)

/*
 * Backward, input columns come in groups of STRIDE_WIDTH: column u of group q is input column
 * q * STRIDE_WIDTH - PAD_LEFT + u, and tap u + j * STRIDE_WIDTH of window q - j covers it.
 */
#define WINDOWS_PER_CELL ((WINDOW_WIDTH + STRIDE_WIDTH - 1) / STRIDE_WIDTH)
#define GROUP_BEGIN (PAD_LEFT / STRIDE_WIDTH)
#define GROUP_END ((INPUT_WIDTH - 1 + PAD_LEFT) / STRIDE_WIDTH + 1)
/* Groups that lie within the data, and all of whose windows do. */
#define INNER_BEGIN min(FULL_BEGIN + WINDOWS_PER_CELL - 1, GROUP_END)
#define INNER_END max(INNER_BEGIN, min(FULL_END, (INPUT_WIDTH + PAD_LEFT) / STRIDE_WIDTH))

/* The windows (output rows) that cover input row y: from FIRST_WINDOW to before END_WINDOW; there may be none. */
#define FIRST_WINDOW(y)                                                                            \
    ((y) + PAD_TOP < WINDOW_HEIGHT ? 0 : ((y) + PAD_TOP - WINDOW_HEIGHT) / STRIDE_HEIGHT + 1)
#define END_WINDOW(y) min(((y) + PAD_TOP) / STRIDE_HEIGHT + 1, OUTPUT_HEIGHT)

/* Where the loops over columns start: with one work-item for each row, their length is a constant. */
#define FIRST_COLUMN (GLOBAL_WIDTH == 1 ? 0 : get_global_id(0))
