/*
 * The padded input of a strided convolution as STRIDE_Y x STRIDE_X dense planes, its phases: cell (y, x) of the padded
 * input is cell (y / STRIDE_Y, x / STRIDE_X) of phase (y % STRIDE_Y, x % STRIDE_X). What a tap reads for neighbouring
 * cells of the output then are neighbours: any stride becomes 1. Only PHASES_Y x PHASES_X phases are kept, the first
 * ones, beyond which no tap reads.
 */

/* Where a row and a column of the padded input lie among the phases of a unit, whose planes are PLANE apart. */
#define PHASE_ROW(y, PLANE, PITCH) ((y) % STRIDE_Y * PHASES_X * (PLANE) + (y) / STRIDE_Y * (PITCH))
#define PHASE_COLUMN(x, PLANE) ((x) % STRIDE_X * (PLANE) + (x) / STRIDE_X)
