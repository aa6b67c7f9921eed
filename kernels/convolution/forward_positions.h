/*
 * What happens to the sums of a forward convolution's product, for the kernels whose header (tiled.h, tensor.h,
 * cell_product.h) makes it. Positions are cells (n, y, x) of the output; with ROW_POSITIONS above its width
 * there are some after each row, so that neighbours in a plane of the input are neighbours. Their sums are not stored.
 */

/*
 * What a pass adds to its sums is loaded ahead of the barriers: of all passes at once, where registers suffice.
 * NOTE: AMD's compiler takes 280 of 256 for that, since it also has a pair for the address of each value.
 */
#ifdef __AMDGCN__
#define TERMS_AHEAD 0
#else
#define TERMS_AHEAD 1
#endif
#ifndef STAGED_NUMBER
#define STAGED_NUMBER(i, j) staged[STAGED_AT(i, j)]
#endif
/* clang-format off */
#define LOAD_TERMS(pass)                                                                            \
    _Pragma("unroll")                                                                               \
    for (int j = 0; j < STAGED_COLUMNS; j++) {                                                      \
        const int p = min((int)(FIRST_POSITION_OF(tile) + STAGED_COLUMN(j)), count * POSITIONS - 1);\
        const int y = min(POSITION_Y(p), OUTPUT_UNIT_HEIGHT - 1);                                   \
        const int x = min(POSITION_X(p), OUTPUT_UNIT_WIDTH - 1);                                    \
        _Pragma("unroll")                                                                           \
        for (int i = 0; i < STAGED_ROWS; i++) {                                                     \
            terms[pass][j][i] = CELL_TERM(p / POSITIONS, EXISTING(pass, i), y, x);                  \
        }                                                                                           \
    }
/* clang-format on */

/* output = epilogue(sums), or partials = sums. */
INLINE void store_sums(sums_t sums, WRITE_BLOB(output), EPILOGUE_BLOBS, EPILOGUE_ARRAYS,
                       WRITE_ARRAY(real_t, partials), __local real_t *staged, const int count, const int tile)
{
/* The units of a group, and that of row i, as the output has them; those past the last one repeat it. */
#define OUTPUT_UNITS (GROUP_OUTPUT_UNITS / CELL_UNITS)
#define OUTPUT_UNIT(pass, i) (FIRST_UNIT_OF(tile) / CELL_UNITS + STAGED_UNIT(pass, i))
#define EXISTING(pass, i) (GROUP * OUTPUT_UNITS + min((int)OUTPUT_UNIT(pass, i), OUTPUT_UNITS - 1))
#if HAS_CELL_TERM
    number_t terms[STAGED_PASSES][STAGED_COLUMNS][STAGED_ROWS];
#if TERMS_AHEAD
#pragma unroll
    for (int pass = 0; pass < STAGED_PASSES; pass++) {
        LOAD_TERMS(pass)
    }
#endif
#endif
#pragma unroll
    for (int pass = 0; pass < STAGED_PASSES; pass++) {
        number_t biases[STAGED_ROWS];
#pragma unroll
        for (int i = 0; i < STAGED_ROWS; i++) {
            biases[i] = UNIT_BIAS(EXISTING(pass, i));
        }
#if HAS_CELL_TERM && !TERMS_AHEAD
        LOAD_TERMS(pass)
#endif
        stage(sums, pass, staged);
#pragma unroll
        for (int j = 0; j < STAGED_COLUMNS; j++) {
            const int p = FIRST_POSITION_OF(tile) + STAGED_COLUMN(j);
            const int y = POSITION_Y(p);
            const int x = POSITION_X(p);
            __global SUM_TYPE(output) *to =
                SUM_AT(OUTPUT, output, count, p / POSITIONS, GROUP * OUTPUT_UNITS, y, x);
#pragma unroll
            for (int i = 0; i < STAGED_ROWS; i++) {
                const int unit = OUTPUT_UNIT(pass, i);
                if (p < count * POSITIONS && IS_RESULT(y, x) && unit < OUTPUT_UNITS) {
                    number_t value = BIASED(STAGED_NUMBER(i, j), biases[i], GROUP * OUTPUT_UNITS + unit);
#if HAS_CELL_TERM
                    value = JOINED(value, terms[pass][j][i], GROUP * OUTPUT_UNITS + unit);
#endif
                    WRITE_VALUE(to, unit * SUM_PLANE(OUTPUT), FINISHED(value, GROUP * OUTPUT_UNITS + unit));
                }
            }
        }
    }
#undef EXISTING
#undef OUTPUT_UNIT
}
