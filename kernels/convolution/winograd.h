/*
 * Minimal filtering F(CELLS x CELLS, TAPS x TAPS) (Lavin & Gray 2015, arXiv 1509.09308): a patch of PATCH x PATCH source
 * cells gives CELLS x CELLS results with one multiplication for each of its POINTS,
 *
 *     result = A^T [(G weight G^T) . (B^T source B)] A,
 *
 * summed over the source units before A is applied. It is linear in the weights, whose gradient is
 *
 *     gradient = G^T [(A delta A^T) . (B^T source B)] G,
 *
 * summed over the patches before G is applied. The matrices evaluate polynomials at PATCH - 1 points and at infinity.
 * NOTE: the paper's points for patches of 6 are 0, 1, -1, 2, -2; those below halve the error (docs/performance.md).
 */
#define PATCH (CELLS + TAPS - 1)
#define POINTS (PATCH * PATCH)

/* A row of A or G: the first powers of a point, times a scale. The last row is that of infinity. */
#define POWERS_2(scale, point) scale, (scale) * (point)
#define POWERS_3(scale, point) POWERS_2(scale, point), (scale) * (point) * (point)
#define POWERS_4(scale, point) POWERS_3(scale, point), (scale) * (point) * (point) * (point)
#define POWERS_5(scale, point) POWERS_4(scale, point), (scale) * (point) * (point) * (point) * (point)
#define INFINITE_2 0, 1
#define INFINITE_3 0, INFINITE_2
#define INFINITE_4 0, INFINITE_3
#define INFINITE_5 0, INFINITE_4
#define SIZED_(name, size) name##_##size
#define SIZED(name, size) SIZED_(name, size)

/* ROWS makes A or G from their columns and a scale for each (pair of) points; BT are the products of the other points. */
#if PATCH == 4
#define ROWS(columns, zero, one)                                                                      \
    SIZED(POWERS, columns)(zero, 0), SIZED(POWERS, columns)(one, 1), SIZED(POWERS, columns)(one, -1), \
        SIZED(INFINITE, columns)
__constant real_t A[PATCH * CELLS] = {ROWS(CELLS, 1, 1)};
__constant real_t G[PATCH * TAPS] = {ROWS(TAPS, -1, 0.5f)};
/* clang-format off */
__constant real_t BT[PATCH * PATCH] = {
    -1, 0,  1, 0,
    0,  1,  1, 0,
    0,  -1, 1, 0,
    0,  -1, 0, 1,
};
/* clang-format on */
#elif PATCH == 6
#define P 0.625f
#define Q 1.5f
#define ROWS(columns, zero, p, q)                                                                 \
    SIZED(POWERS, columns)(zero, 0), SIZED(POWERS, columns)(p, P), SIZED(POWERS, columns)(p, -P), \
        SIZED(POWERS, columns)(q, Q), SIZED(POWERS, columns)(q, -Q), SIZED(INFINITE, columns)
__constant real_t A[PATCH * CELLS] = {ROWS(CELLS, 1, 1, 1)};
__constant real_t G[PATCH * TAPS] = {
    ROWS(TAPS, 1 / (P * P * Q * Q), 0.5f / (P * P * (P * P - Q * Q)), 0.5f / (Q * Q * (Q * Q - P * P)))};
/* clang-format off */
__constant real_t BT[PATCH * PATCH] = {
    P * P * Q * Q, 0,             -P * P - Q * Q, 0,              1, 0,
    0,             -P * Q * Q,    -Q * Q,         P,              1, 0,
    0,             P * Q * Q,     -Q * Q,         -P,             1, 0,
    0,             -P * P * Q,    -P * P,         Q,              1, 0,
    0,             P * P * Q,     -P * P,         -Q,             1, 0,
    0,             P * P * Q * Q, 0,              -P * P - Q * Q, 0, 1,
};
/* clang-format on */
#endif

/* The scalar product of a row of a matrix and a column of another, each a first element and a step. */
INLINE real_t dot_product(__constant real_t *row, const int row_step, const real_t *column,
                          const int column_step, const int size)
{
    real_t sum = 0;
    UNROLL_ARGUMENT
    for (int k = 0; k < size; k++) {
        /* The matrix is known when this is compiled: its zeros cost nothing. */
        if (row[k * row_step] != 0) {
            sum = MULTIPLY_ADD(row[k * row_step], column[k * column_step], sum);
        }
    }
    return sum;
}

/* to = M from M^T, for a rows x columns matrix M whose elements are `row_step` and `column_step` apart. */
INLINE void transform(real_t *to, __constant real_t *matrix, const int row_step, const int column_step,
                      const real_t *from, const int rows, const int columns)
{
    real_t halfway[PATCH * PATCH];
    UNROLL_ARGUMENT
    for (int i = 0; i < rows; i++) {
        UNROLL_ARGUMENT
        for (int j = 0; j < columns; j++) {
            halfway[i * columns + j] =
                dot_product(matrix + i * row_step, column_step, from + j, columns, columns);
        }
    }
    UNROLL_ARGUMENT
    for (int i = 0; i < rows; i++) {
        UNROLL_ARGUMENT
        for (int j = 0; j < rows; j++) {
            to[i * rows + j] =
                dot_product(matrix + j * row_step, column_step, halfway + i * columns, 1, columns);
        }
    }
}

/* B^T from B: PATCH x PATCH source cells to POINTS. */
#define TRANSFORM_SOURCE(to, from) transform(to, BT, PATCH, 1, from, PATCH, PATCH)
/* A from A^T: CELLS x CELLS cells of a delta to POINTS. */
#define TRANSFORM_DELTA(to, from) transform(to, A, CELLS, 1, from, PATCH, CELLS)
/* A^T from A: POINTS to CELLS x CELLS results. */
#define TRANSFORM_RESULT(to, from) transform(to, A, 1, CELLS, from, CELLS, PATCH)
/* G from G^T: TAPS x TAPS weights to POINTS. */
#define TRANSFORM_WEIGHT(to, from) transform(to, G, TAPS, 1, from, PATCH, TAPS)
/* G^T from G: POINTS to the gradient of TAPS x TAPS weights. */
#define TRANSFORM_GRADIENT(to, from) transform(to, G, 1, TAPS, from, TAPS, PATCH)
