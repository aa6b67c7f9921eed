/*
 * A product of two matrices in local memory, TILE_DEPTH rows at a time: sums[u][c] += sum over rows r of
 * left[r][unit u] * right[r][column c]. A work-group makes TILE_UNITS x TILE_COLUMNS sums, a work-item ITEM_UNITS x
 * ITEM_COLUMNS of them: in quads, far from one another, so that neighbours read neighbouring banks.
 *
 * ITEM is the work-item's number. NOTE: whether it is an int or a size_t decides how many registers NVIDIA's compiler
 * takes, and up to a third of the speed (docs/performance.md).
 */
#define ITEMS_X (TILE_COLUMNS / ITEM_COLUMNS)
#define ITEMS_Y (TILE_UNITS / ITEM_UNITS)
#define ITEMS (ITEMS_X * ITEMS_Y)
/* The unit and the column, within the tile, of sum (u, c) of this work-item. */
#define ITEM_UNIT(u) ((u) / 4 * (ITEMS_Y * 4) + ITEM / ITEMS_X * 4 + (u) % 4)
#define ITEM_COLUMN(c) ((c) / 4 * (ITEMS_X * 4) + ITEM % ITEMS_X * 4 + (c) % 4)

INLINE void clear(real_t sums[ITEM_UNITS][ITEM_COLUMNS])
{
#pragma unroll
    for (int u = 0; u < ITEM_UNITS; u++) {
#pragma unroll
        for (int c = 0; c < ITEM_COLUMNS; c++) {
            sums[u][c] = 0;
        }
    }
}

INLINE void multiply(real_t sums[ITEM_UNITS][ITEM_COLUMNS], __local const real_t *left,
                     __local const real_t *right)
{
    /* Processors run this in tests alone, and their compilers take 20 times as long where it is unrolled. */
#ifndef IS_HOST
#pragma unroll
#endif
    for (int r = 0; r < TILE_DEPTH; r++) {
        real_t factors[ITEM_UNITS];
        real_t values[ITEM_COLUMNS];
#pragma unroll
        for (int u = 0; u < ITEM_UNITS; u += 4) {
            vstore4(*(__local const float4 *)(left + r * UNIT_PITCH + ITEM_UNIT(u)), 0, factors + u);
        }
#pragma unroll
        for (int c = 0; c < ITEM_COLUMNS; c += 4) {
            vstore4(*(__local const float4 *)(right + r * COLUMN_PITCH + ITEM_COLUMN(c)), 0, values + c);
        }
#ifdef __AMDGCN__
        /*
         * Pairs, which CDNA's GPUs multiply at once: left to itself the compiler pairs units, and must swap values. It
         * takes either number of a pair for both, but moves the fourth of four unless it knows of no more than two.
         */
#pragma unroll
        for (int u = 0; u < ITEM_UNITS; u += 2) {
            float2 factor = vload2(u / 2, factors);
            if (u % 4 == 2) {
                __asm__("" : "+v"(factor));
            }
#pragma unroll
            for (int c = 0; c < ITEM_COLUMNS; c += 2) {
                const float2 value = vload2(0, values + c);
                vstore2(MULTIPLY_ADD(factor.s00, value, vload2(0, sums[u] + c)), 0, sums[u] + c);
                vstore2(MULTIPLY_ADD(factor.s11, value, vload2(0, sums[u + 1] + c)), 0, sums[u + 1] + c);
            }
        }
#else
#pragma unroll
        for (int u = 0; u < ITEM_UNITS; u++) {
#pragma unroll
            for (int c = 0; c < ITEM_COLUMNS; c++) {
                sums[u][c] = MULTIPLY_ADD(factors[u], values[c], sums[u][c]);
            }
        }
#endif
    }
}

/* Stores the sums of the tile at (first_unit, first_column) into (units, columns) results. */
INLINE void store_matrix(__global real_t *results, real_t sums[ITEM_UNITS][ITEM_COLUMNS], const int units,
                         const int columns, const int first_unit, const int first_column)
{
#pragma unroll
    for (int u = 0; u < ITEM_UNITS; u++) {
        const int unit = first_unit + ITEM_UNIT(u);
#pragma unroll
        for (int c = 0; c < ITEM_COLUMNS; c++) {
            const int column = first_column + ITEM_COLUMN(c);
            if (unit < units && column < columns) {
                results[(size_t)unit * columns + column] = sums[u][c];
            }
        }
    }
}
