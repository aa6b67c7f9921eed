/*
 * Vectors of LANES units of a position, for products of cells on processors. A block is BLOCK_VECTORS of them at RUN
 * positions: each weight is loaded once for the block, and each number is what all vectors of its position are multiplied
 * by.
 */
/* Elements of the output that a vector makes at a position. */
#define VECTOR_ELEMENTS (LANES / CELL_UNITS)

/* The numbers of element `e` of a vector. */
INLINE number_t element_of(const vector_t vector, const int e)
{
#if LANES == CELL_UNITS
    return vector;
#elif LANES == 2 * CELL_UNITS
    return e ? vector.hi : vector.lo;
#else
    real_t lanes[LANES];
    VECTOR_STORE(vector, lanes);
    return NUMBER_OF(lanes + e * CELL_UNITS);
#endif
}

INLINE void clear_sums(vector_t sums[BLOCK_VECTORS][RUN])
{
#pragma unroll
    for (int v = 0; v < BLOCK_VECTORS; v++) {
#pragma unroll
        for (int i = 0; i < RUN; i++) {
            sums[v][i] = 0;
        }
    }
}

/*
 * Adds the products of an element of the source at each position, `step` elements apart, and its units' weights; those of a
 * vector are `pitch` from the next one's.
 */
INLINE void add_products(vector_t sums[BLOCK_VECTORS][RUN], __global const real_t *from, const int step,
                         __global const real_t *factors, const int pitch)
{
#pragma unroll
    for (int unit = 0; unit < SOURCE_CELL; unit++) {
        vector_t weights[BLOCK_VECTORS];
#pragma unroll
        for (int v = 0; v < BLOCK_VECTORS; v++) {
            weights[v] = VECTOR_LOAD(factors + v * pitch + unit * LANES);
        }
#pragma unroll
        for (int i = 0; i < RUN; i++) {
            const real_t number = from[i * step * SOURCE_CELL + unit];
#pragma unroll
            for (int v = 0; v < BLOCK_VECTORS; v++) {
                sums[v][i] = MULTIPLY_ADD(number, weights[v], sums[v][i]);
            }
        }
    }
}
