/*
 * What happens to the sums of a product that makes one phase of a convolution's backward pass to its input, for the kernels
 * whose header (tiled.h, tensor.h, cell_product.h) makes it. Positions are the cells (n, y, x) of the
 * phase; see forward_positions.h for ROW_POSITIONS.
 *
 * Of phases side by side, BESIDE_Y x BESIDE_X, a position is a block of as many cells, whose first one is PHASE_Y rows
 * and PHASE_X columns from where blocks begin; blocks may reach beyond the plane. Each cell of a block is a unit of the
 * product.
 */

#if BESIDE_Y * BESIDE_X > 1
#define IN_PLANE(y, x) ((y) >= 0 && (y) < INPUT_DELTA_UNIT_HEIGHT && (x) >= 0 && (x) < INPUT_DELTA_UNIT_WIDTH)
#else
#define IN_PLANE(y, x) true
#endif

#ifndef STAGED_NUMBER
#define STAGED_NUMBER(i, j) staged[STAGED_AT(i, j)]
#endif
/* The units of a group, as the result's blob has them. */
#define INPUT_UNITS (GROUP_INPUT_UNITS / CELL_UNITS)

/* Does something for each result of a pass: of row i of this work-item's column j, where the result lies at `at`. */
#define EACH_RESULT(pass, WHAT)                                                                    \
    _Pragma("unroll") for (int j = 0; j < STAGED_COLUMNS; j++)                                     \
    {                                                                                              \
        const int p = FIRST_POSITION_OF(tile) + STAGED_COLUMN(j);                                  \
        const int y = POSITION_Y(p);                                                               \
        const int x = POSITION_X(p);                                                               \
        __global SUM_TYPE(input_delta) *to =                                                       \
            SUM_AT(INPUT_DELTA, input_delta, count, p / POSITIONS, GROUP * INPUT_UNITS,            \
                   y * STRIDE_Y + PHASE_Y, x * STRIDE_X + PHASE_X);                                \
        _Pragma("unroll") for (int i = 0; i < STAGED_ROWS; i++)                                    \
        {                                                                                          \
            const int row = FIRST_UNIT_OF(tile) / CELL_UNITS + STAGED_UNIT(pass, i);               \
            const int unit = row / (BESIDE_Y * BESIDE_X);                                          \
            const int cell_y = row / BESIDE_X % BESIDE_Y;                                          \
            const int cell_x = row % BESIDE_X;                                                     \
            if (p < count * POSITIONS && IS_RESULT(y, x) && unit < INPUT_UNITS                     \
                && IN_PLANE(y * STRIDE_Y + PHASE_Y + cell_y, x * STRIDE_X + PHASE_X + cell_x)) {   \
                __global SUM_TYPE(input_delta) *at =                                               \
                    to + unit * SUM_PLANE(INPUT_DELTA) + cell_y * SUM_PITCH(INPUT_DELTA) + cell_x; \
                WHAT;                                                                              \
            }                                                                                      \
        }                                                                                          \
    }

/* Passes whose loads are under way at once: of cells they wait for memory, of numbers registers are scarce. */
#define LOADED_PASSES (CELL_UNITS > 1 ? 4 : 1)

/* input_delta = sums, or +=, or partials = sums. */
INLINE void store_sums(sums_t sums, WRITE_BLOB(input_delta), WRITE_ARRAY(real_t, partials),
                       __local real_t *staged, const int count, const int tile)
{
#if ACCUMULATE
    number_t olds[LOADED_PASSES][STAGED_COLUMNS][STAGED_ROWS];
#endif
#pragma unroll
    for (int pass = 0; pass < STAGED_PASSES; pass++) {
#if ACCUMULATE
        /* NOTE: no load may pass a store to the same blob: those of these passes are made before their stores. */
        if (pass % LOADED_PASSES == 0) {
#pragma unroll
            for (int ahead = 0; ahead < LOADED_PASSES && pass + ahead < STAGED_PASSES; ahead++) {
                EACH_RESULT(pass + ahead, olds[ahead][j][i] = OLD(at));
            }
        }
#endif
        stage(sums, pass, staged);
        EACH_RESULT(pass, SET_VALUE(PLUS_OLD(STAGED_NUMBER(i, j), olds[pass % LOADED_PASSES][j][i]), at));
    }
}
