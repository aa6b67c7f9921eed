/*
 * Muon over all trainable parameters, in stages. 0, momentum: for a matrix G of gradients
 *   m = momentum * m + (1 - momentum) * g;  u = (1 - momentum) * g + momentum * m with NESTEROV, else m
 * u goes to RESULT, with the smaller one of its sizes along rows, and the sums of u^2 of its pieces to NORMS. What is no
 * matrix takes its whole step, that of AdamW:
 *   w -= adam's rate * weight_decay * w;  m, v as Adam's;  w -= adam's rate * m / (1 - beta1^t) / (sqrt(v) / ... + epsilon)
 * 1, norm: RESULT = u / (|u| + 1e-7). 2, square: SQUARE = X^T X, with X = MATRIX. 3: POLYNOMIAL = b * SQUARE + c *
 * SQUARE^2. 4: RESULT = a * X + X * POLYNOMIAL. 5, step:
 *   w -= rate * weight_decay * w;  w -= rate * sqrt(max(1, rows / columns)) * X
 *
 * Arrays:
 *   PARAMETERS       update
 *   GRADIENTS        read
 *   FIRST_MOMENT     update  m
 *   SECOND_MOMENT    update  v, of what is no matrix
 *   MATRIX           read    all matrices, one behind the other, both sizes padded with zeros to multiples of TILE
 *   RESULT           update  the same anew
 *   SQUARE           update  of each matrix, as large as its smaller size
 *   POLYNOMIAL       update  the same
 *   NORMS            update  for each parameter PIECES sums
 *   HYPERPARAMETERS  read    for each group 8: rate, Adam's, 1 / (1 - beta1^t), 1 / sqrt(1 - beta2^t)
 *   CLIP_SCALE       read    not touched unless HAS_CLIPPING is 1
 *   TOTALS           read    the first one is the sum of the losses
 * Macros:
 *   TENSORS             rows of ints (optimizer/tensors.h), then rows and columns, 0 of what is no matrix
 *   TENSOR_COUNT
 *   PIECES              of each parameter
 *   STAGE
 *   WEIGHT_DECAY
 *   HAS_CLIPPING        0, 1 by norm, 2 by value
 *   MOMENTUM_FACTOR
 *   ONE_MINUS_MOMENTUM
 *   NESTEROV
 *   BETA1
 *   ONE_MINUS_BETA1
 *   BETA2
 *   ONE_MINUS_BETA2
 *   EPSILON
 *   LOCAL_WIDTH         work-items of a group, a power of two
 * Tunables:
 *   LANES loops 8, lanes 1 of 1 2 4 8 16: elements of a vector
 *   TILE_ROWS loops 8, lanes 8 of 1 2 4 8 16: rows of a product that a work-item computes, a vector each
 * Global:
 *   width   pieces; of products, tiles
 *   height  parameters; of products, 1
 * Local:
 *   width  elements of a piece, or tiles
 */
#include "blob.h"
#include "group_sum.h"
#include "optimizer/tensors.h"

/* What sizes of matrices in memory are multiples of. */
#define TILE 16
#define PADDED(size) (((size) + TILE - 1) / TILE * TILE)
#define ROWS_OF(number) muon_tensors[number][4]
#define COLUMNS_OF(number) muon_tensors[number][5]
#define NARROW_OF(number) PADDED(min(ROWS_OF(number), COLUMNS_OF(number)))
#define LONG_OF(number) PADDED(max(ROWS_OF(number), COLUMNS_OF(number)))

__constant int muon_tensors[TENSOR_COUNT][6] = TENSORS;

/* Where value i of a parameter lies among the matrices, of which its own begins at `start`. */
INLINE int muon_place(const int number, const int start, const int i)
{
    const int columns = COLUMNS_OF(number);
    const int row = i / columns, column = i % columns;
    const int narrow = NARROW_OF(number);
    return start + (ROWS_OF(number) < columns ? column * narrow + row : row * narrow + column);
}

/* The sums of L[k][i + row] * R[k][j + lane] over k < depth, with L and R of rows of `width`; or of L[i + row][k]. */
INLINE void muon_product(vector_t *sums, __global const real_t *left, const int by_k, const int by_row,
                         __global const real_t *right, const int width, const int depth)
{
    for (int row = 0; row < TILE_ROWS; row++) {
        sums[row] = 0;
    }
    for (int k = 0; k < depth; k++) {
        const vector_t other = VECTOR_LOAD(right + (size_t)k * width);
        for (int row = 0; row < TILE_ROWS; row++) {
            sums[row] += left[(size_t)k * by_k + (size_t)row * by_row] * other;
        }
    }
}

__kernel __attribute__((reqd_work_group_size(LOCAL_WIDTH, 1, 1))) void optimizer_muon(
    WRITE_ARRAY(real_t, parameters), READ_ARRAY(real_t, gradients), WRITE_ARRAY(real_t, first_moment),
    WRITE_ARRAY(real_t, second_moment), READ_ARRAY(real_t, matrix), WRITE_ARRAY(real_t, result),
    WRITE_ARRAY(real_t, square), WRITE_ARRAY(real_t, polynomial), WRITE_ARRAY(real_t, norms),
    READ_ARRAY(real_t, hyperparameters), READ_ARRAY(real_t, clip_scale), READ_ARRAY(real_t, totals))
{
    if (!STEPS) {
        return;
    }
#if STAGE >= 2 && STAGE <= 4
    /* The tile of the work-item, and the matrix that it is of. */
    int tile = get_global_id(0), number = 0;
    size_t start = 0, square_start = 0;
    for (; number < TENSOR_COUNT; number++) {
        const int narrow = NARROW_OF(number);
        const int tiles = narrow * (STAGE == 4 ? LONG_OF(number) : narrow) / (TILE_ROWS * LANES);
        if (tile < tiles) {
            break;
        }
        tile -= tiles;
        start += (size_t)narrow * LONG_OF(number);
        square_start += (size_t)narrow * narrow;
    }
    if (number == TENSOR_COUNT) {
        return;
    }
    const int narrow = NARROW_OF(number), deep = LONG_OF(number);
    const int i = tile / (narrow / LANES) * TILE_ROWS, j = tile % (narrow / LANES) * LANES;
    const size_t place = (size_t)i * narrow + j;
    __global const real_t *x = ARRAY(matrix) + start;
    vector_t sums[TILE_ROWS];
#if STAGE == 2
    muon_product(sums, x + i, narrow, 1, x + j, narrow, deep);
    for (int row = 0; row < TILE_ROWS; row++) {
        VECTOR_STORE(sums[row], ARRAY(square) + square_start + place + (size_t)row * narrow);
    }
#elif STAGE == 3
    __global const real_t *a = ARRAY(square) + square_start;
    muon_product(sums, a + i, narrow, 1, a + j, narrow, narrow);
    for (int row = 0; row < TILE_ROWS; row++) {
        const size_t at = place + (size_t)row * narrow;
        VECTOR_STORE(-4.7750f * VECTOR_LOAD(a + at) + 2.0315f * sums[row],
                     ARRAY(polynomial) + square_start + at);
    }
#else
    muon_product(sums, x + (size_t)i * narrow, 1, narrow, ARRAY(polynomial) + square_start + j, narrow,
                 narrow);
    for (int row = 0; row < TILE_ROWS; row++) {
        const size_t at = place + (size_t)row * narrow;
        VECTOR_STORE(3.4445f * VECTOR_LOAD(x + at) + sums[row], ARRAY(result) + start + at);
    }
#endif
#else
    const int number = get_global_id(1), piece = get_group_id(0);
    const int offset = muon_tensors[number][0], elements = muon_tensors[number][1];
    const int rows = ROWS_OF(number), columns = COLUMNS_OF(number);
    __global const real_t *values = HYPERPARAMETERS_OF(muon_tensors[number][2]);
    const real_t decay = muon_tensors[number][3] ? WEIGHT_DECAY : 0;
    __global real_t *sums = ARRAY(norms) + PIECES * number;
    const int begin = PIECE_BEGIN(elements, piece), end = PIECE_END(elements, piece);
    int start = 0;
    for (int other = 0; other < number; other++) {
        start += NARROW_OF(other) * LONG_OF(other);
    }
#if STAGE == 0
    __local accumulator_t group[LOCAL_WIDTH];
    const real_t scale = CLIP_FACTOR;
    if (rows == 0) {
        for (int i = offset + begin + LANES * (int)get_local_id(0); i < offset + end;
             i += LANES * LOCAL_WIDTH) {
            const vector_t gradient = CLIPPED(VECTOR_LOAD(ARRAY(gradients) + i), scale);
            const vector_t mean = BETA1 * VECTOR_LOAD(ARRAY(first_moment) + i) + ONE_MINUS_BETA1 * gradient;
            const vector_t variance =
                BETA2 * VECTOR_LOAD(ARRAY(second_moment) + i) + ONE_MINUS_BETA2 * gradient * gradient;
            VECTOR_STORE(mean, ARRAY(first_moment) + i);
            VECTOR_STORE(variance, ARRAY(second_moment) + i);
            const vector_t step = values[2] * mean / (sqrt(variance) * values[3] + EPSILON);
            vector_t parameter = VECTOR_LOAD(ARRAY(parameters) + i);
            parameter -= values[1] * decay * parameter;
            VECTOR_STORE(parameter - values[1] * step, ARRAY(parameters) + i);
        }
        return;
    }
    vector_t squares = 0;
    for (int i = begin + LANES * (int)get_local_id(0); i < end; i += LANES * LOCAL_WIDTH) {
        const vector_t gradient = CLIPPED(VECTOR_LOAD(ARRAY(gradients) + offset + i), scale);
        const vector_t mean =
            MOMENTUM_FACTOR * VECTOR_LOAD(ARRAY(first_moment) + offset + i) + ONE_MINUS_MOMENTUM * gradient;
        VECTOR_STORE(mean, ARRAY(first_moment) + offset + i);
        const vector_t step = NESTEROV ? ONE_MINUS_MOMENTUM * gradient + MOMENTUM_FACTOR * mean : mean;
        squares += step * step;
        real_t lanes[LANES];
        VECTOR_STORE(step, lanes);
        for (int lane = 0; lane < min(LANES, elements - i); lane++) {
            ARRAY(result)[muon_place(number, start, i + lane)] = lanes[lane];
        }
    }
    const accumulator_t sum = GROUP_SUM(VECTOR_SUM(squares), group);
    if (get_local_id(0) == 0) {
        sums[piece] = sum;
    }
#elif STAGE == 1
    accumulator_t norm = 0;
    for (int i = 0; i < PIECES; i++) {
        norm += sums[i];
    }
    const real_t scale = 1 / (sqrt(norm) + 1e-7f);
    for (int i = begin + (int)get_local_id(0); i < min(end, rows ? elements : 0); i += LOCAL_WIDTH) {
        ARRAY(result)[muon_place(number, start, i)] *= scale;
    }
#else
    const real_t rate = values[0] * (rows > columns ? sqrt((real_t)rows / (real_t)columns) : 1);
    for (int i = begin + (int)get_local_id(0); i < min(end, rows ? elements : 0); i += LOCAL_WIDTH) {
        const real_t parameter = ARRAY(parameters)[offset + i];
        const real_t step = rate * ARRAY(matrix)[muon_place(number, start, i)];
        ARRAY(parameters)[offset + i] = parameter - values[0] * decay * parameter - step;
    }
#endif
#endif
}
