/*
 * A square of LANES x LANES values in registers, lanes becoming rows: each step moves all halves of rows together, and
 * after as many steps as LANES has bits, each value has changed places with its mirror image.
 */
#if LANES >= 2
INLINE void interleave_halves(vector_t rows[LANES])
{
    vector_t old[LANES];
#pragma unroll
    for (int row = 0; row < LANES; row++) {
        old[row] = rows[row];
    }
#pragma unroll
    for (int row = 0; row < LANES / 2; row++) {
        rows[2 * row].even = old[row].lo;
        rows[2 * row].odd = old[row + LANES / 2].lo;
        rows[2 * row + 1].even = old[row].hi;
        rows[2 * row + 1].odd = old[row + LANES / 2].hi;
    }
}
#endif

INLINE void transpose(vector_t rows[LANES])
{
#if LANES >= 2
    interleave_halves(rows);
#endif
#if LANES >= 4
    interleave_halves(rows);
#endif
#if LANES >= 8
    interleave_halves(rows);
#endif
#if LANES >= 16
    interleave_halves(rows);
#endif
}
