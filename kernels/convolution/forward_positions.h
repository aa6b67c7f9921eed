/*
 * Where the columns of a product lie in a forward convolution, and what happens to its sums: for the kernels whose header
 * (tiled.h, tensor.h) makes the product. Positions are cells (n, y, x) of the output; with ROW_POSITIONS above its width
 * there are some behind each row, so that neighbours in a plane of the input are neighbours. Their sums are not stored.
 */

/* The input at this work-item's columns. */
INLINE void find_columns(__global const real_t *columns[SOURCE_COLUMNS], READ_BLOB(input), const int count)
{
#pragma unroll
    for (int j = 0; j < SOURCE_COLUMNS; j++) {
        /* Positions past the last one repeat it; their sums are not stored. */
        const int p = min(FIRST_POSITION + SOURCE_COLUMN(j), count * POSITIONS - SOURCE_RUN);
        const int y = p % POSITIONS / ROW_POSITIONS;
        const int x = p % POSITIONS % ROW_POSITIONS;
        columns[j] =
            input + BLOB_INDEX(INPUT, p / POSITIONS, GROUP * GROUP_INPUT_UNITS, y * STRIDE_Y, x * STRIDE_X);
    }
}

/* output = f(bias + sums) */
INLINE void store_sums(sums_t sums, WRITE_BLOB(output), __global const real_t *bias, __local real_t *staged,
                       const int count)
{
#pragma unroll
    for (int pass = 0; pass < STAGED_PASSES; pass++) {
        stage(sums, pass, staged);
#pragma unroll
        for (int j = 0; j < STAGED_COLUMNS; j++) {
            const int p = FIRST_POSITION + STAGED_COLUMN(j);
            const int y = p % POSITIONS / ROW_POSITIONS;
            const int x = p % POSITIONS % ROW_POSITIONS;
            __global real_t *to =
                output + BLOB_INDEX(OUTPUT, p / POSITIONS, GROUP * GROUP_OUTPUT_UNITS, y, x);
#pragma unroll
            for (int i = 0; i < STAGED_ROWS; i++) {
                const int unit = FIRST_UNIT + STAGED_UNIT(pass, i);
                if (p < count * POSITIONS && x < OUTPUT_UNIT_WIDTH && unit < GROUP_OUTPUT_UNITS) {
                    real_t value = staged[STAGED_AT(i, j)];
#if BIAS_MODE == 1
                    value += bias[GROUP * GROUP_OUTPUT_UNITS + unit];
#elif BIAS_MODE == 2
                    value += bias[(GROUP * GROUP_OUTPUT_UNITS + unit) * OUTPUT_UNIT_ELEMENTS
                                  + y * OUTPUT_UNIT_WIDTH + x];
#endif
                    to[unit * OUTPUT_UNIT_MEMORY_ELEMENTS] = ACTIVATE(value);
                }
            }
        }
    }
}
