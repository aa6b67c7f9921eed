/*
 * The padded input of a strided convolution as STRIDE_Y x STRIDE_X dense planes, its phases: cell (y, x) of the padded
 * input is cell (y / STRIDE_Y, x / STRIDE_X) of phase (y % STRIDE_Y, x % STRIDE_X). There the tap at row r and column c
 * of the filter reads cells (r, c) and their neighbours: any stride becomes 1. Only the first PHASES_Y x PHASES_X are
 * kept, beyond which no tap reads, and of those PHASE_HEIGHT x PHASE_WIDTH cells.
 */
#define PHASE_ELEMENTS (PHASE_HEIGHT * PHASE_WIDTH)
#define PHASES_ELEMENTS (PHASES_Y * PHASES_X * PHASE_ELEMENTS)

/* The place of a cell of the padded input. */
#define PADDED_PLACE(y, x)                                                                        \
    (((y) % STRIDE_Y * PHASES_X + (x) % STRIDE_X) * PHASE_ELEMENTS + (y) / STRIDE_Y * PHASE_WIDTH \
     + (x) / STRIDE_X)

/* The place of a cell of the input itself, if a phase that is kept has it. */
#define PHASE_CELL(y, x) PADDED_PLACE((y) + PAD_TOP, (x) + PAD_LEFT)
#define IN_PHASES(y, x)                                                              \
    (((y) + PAD_TOP) % STRIDE_Y < PHASES_Y && ((x) + PAD_LEFT) % STRIDE_X < PHASES_X \
     && ((y) + PAD_TOP) / STRIDE_Y < PHASE_HEIGHT && ((x) + PAD_LEFT) / STRIDE_X < PHASE_WIDTH)
