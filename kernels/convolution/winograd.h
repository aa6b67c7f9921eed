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
 * summed over the patches before G is applied. The matrices evaluate polynomials at PATCH - 1 points, which are 0 and
 * pairs +-p, and at infinity; a row of B^T is the polynomial that is 0 at all other points.
 *
 * NOTE: the paper's points for patches of 6 are 0, 1, -1, 2, -2; those below halve the error. For patches of 8 no others
 * between 1/4 and 3, in steps of 1/16, err less by the norms of the rows (docs/performance.md).
 */
#define PATCH (CELLS + TAPS - 1)
#define POINTS (PATCH * PATCH)
/* Cells that a patch is made of, on a side: of a DELTA those of the results. */
#define SIDE (DELTA ? CELLS : PATCH)

/* The rows of a matrix for its pairs of points, each followed by the other pairs; and row 0, or the last one. */
#if PATCH == 4
#define PAIRS(ROWS) ROWS##_1(1.f)
#define ALL_PAIRS(ROW) ROW##_1(1.f)
#elif PATCH == 6
#define PAIRS(ROWS) ROWS##_2(0.625f, 1.5f), ROWS##_2(1.5f, 0.625f)
#define ALL_PAIRS(ROW) ROW##_2(0.625f, 1.5f)
#elif PATCH == 8
#define PAIRS(ROWS) ROWS##_3(0.5f, 1.f, 2.f), ROWS##_3(1.f, 2.f, 0.5f), ROWS##_3(2.f, 0.5f, 1.f)
#define ALL_PAIRS(ROW) ROW##_3(0.5f, 1.f, 2.f)
#endif
#define SQUARE(p) ((p) * (p))

/* A: the first powers of a point; the last row is that of infinity. */
#define POWERS_2(scale, p) scale, (scale) * (p)
#define POWERS_3(scale, p) POWERS_2(scale, p), (scale) * (p) * (p)
#define POWERS_4(scale, p) POWERS_3(scale, p), (scale) * (p) * (p) * (p)
#define POWERS_5(scale, p) POWERS_4(scale, p), (scale) * (p) * (p) * (p) * (p)
#define INFINITE_2 0, 1
#define INFINITE_3 0, INFINITE_2
#define INFINITE_4 0, INFINITE_3
#define INFINITE_5 0, INFINITE_4
#define SIZED_(name, size) name##_##size
#define SIZED(name, size) SIZED_(name, size)
#define BOTH(size, scale, p) SIZED(POWERS, size)(scale, p), SIZED(POWERS, size)(scale, -(p))
#define A_ROWS_1(p) BOTH(CELLS, 1, p)
#define A_ROWS_2(p, q) A_ROWS_1(p)
#define A_ROWS_3(p, q, r) A_ROWS_1(p)
__constant real_t A[PATCH * CELLS] = {SIZED(POWERS, CELLS)(1, 0), PAIRS(A_ROWS), SIZED(INFINITE, CELLS)};

/* G: powers as well, divided by what the row of B^T is at its own point. */
#define AT_0_1(p) (-SQUARE(p))
#define AT_0_2(p, q) (SQUARE(p) * SQUARE(q))
#define AT_0_3(p, q, r) (-SQUARE(p) * SQUARE(q) * SQUARE(r))
#define G_ROWS_1(p) BOTH(TAPS, 0.5f / SQUARE(p), p)
#define G_ROWS_2(p, q) BOTH(TAPS, 0.5f / (SQUARE(p) * (SQUARE(p) - SQUARE(q))), p)
#define G_ROWS_3(p, q, r) \
    BOTH(TAPS, 0.5f / (SQUARE(p) * (SQUARE(p) - SQUARE(q)) * (SQUARE(p) - SQUARE(r))), p)
__constant real_t G[PATCH * TAPS] = {SIZED(POWERS, TAPS)(1 / ALL_PAIRS(AT_0), 0), PAIRS(G_ROWS),
                                     SIZED(INFINITE, TAPS)};

/* B^T: x^2 + p x for the other point of the pair and 0, times x^2 - q^2 for every other pair. */
#define ZEROS_1(p) AT_0_1(p), 0, 1
#define ZEROS_2(p, q) AT_0_2(p, q), 0, -SQUARE(p) - SQUARE(q), 0, 1
#define ZEROS_3(p, q, r)                                                                          \
    AT_0_3(p, q, r), 0, SQUARE(p) * SQUARE(q) + SQUARE(p) * SQUARE(r) + SQUARE(q) * SQUARE(r), 0, \
        -SQUARE(p) - SQUARE(q) - SQUARE(r), 0, 1
#define B_ROW_1(p) 0, p, 1, 0
#define B_ROW_2(p, a) 0, (p) * (a), a, p, 1, 0
#define B_ROW_3(p, a, b) 0, (p) * (a), a, (p) * (b), b, p, 1, 0
#define B_ROWS_1(p) B_ROW_1(p), B_ROW_1(-(p))
#define B_ROWS_2(p, q) B_ROW_2(p, -SQUARE(q)), B_ROW_2(-(p), -SQUARE(q))
#define B_ROWS_3(p, q, r)                                        \
    B_ROW_3(p, SQUARE(q) * SQUARE(r), (-SQUARE(q) - SQUARE(r))), \
        B_ROW_3(-(p), SQUARE(q) * SQUARE(r), (-SQUARE(q) - SQUARE(r)))
__constant real_t BT[PATCH * PATCH] = {ALL_PAIRS(ZEROS), 0, PAIRS(B_ROWS), 0, ALL_PAIRS(ZEROS)};

/* What the matrices are applied to: numbers, or vectors of them. */
#ifdef LANES
typedef vector_t points_t;
#else
typedef real_t points_t;
#endif

/* The scalar product of a row of a matrix and a column of another, each a first element and a step. */
INLINE points_t dot_product(__constant real_t *row, const int row_step, const points_t *column,
                            const int column_step, const int size)
{
    points_t sum = 0;
    UNROLL_ARGUMENT
    for (int k = 0; k < size; k++) {
        /* The matrix is known when this is compiled: its zeros cost nothing. */
        if (row[k * row_step] != 0) {
            sum = MULTIPLY_ADD((points_t)(row[k * row_step]), column[k * column_step], sum);
        }
    }
    return sum;
}

/* to = M from M^T, for a rows x columns matrix M whose elements are `row_step` and `column_step` apart. */
INLINE void transform(points_t *to, __constant real_t *matrix, const int row_step, const int column_step,
                      const points_t *from, const int rows, const int columns)
{
    points_t halfway[PATCH * PATCH];
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
