/*
 * The inner loops of convolutions whose lanes are samples: a tile of BLOCK_UNITS units x BLOCK_VECTORS vectors of
 * samples, from number `vector` on, at one position. Taps that would read padding are left out.
 *
 * sums[u][v] = sum over DEPTH source units and the taps of weight * source, where tap (a, b) reads filter cell
 * (TAP_Y_FIRST + a * TAP_Y_STEP, TAP_X_FIRST + b * TAP_X_STEP) and source cell (row + a * ROW_STEP,
 * column + b * COLUMN_STEP). The source is (runs, positions, RUN, SAMPLES), see blob/gather.cl; weights are OIHW.
 */
#include "convolution/inside.h"

#define DEPTH_RUNS ((DEPTH + RUN - 1) / RUN)
#define SOURCE_POSITIONS ((SOURCE_HEIGHT - 1) * SOURCE_PITCH + SOURCE_WIDTH)

INLINE void sum_gathered(vector_t sums[BLOCK_UNITS][BLOCK_VECTORS], __global const gathered_t *source,
                         const int row, const int column, const int vector, __global const weight_t *weight,
                         const int units)
{
    int vectors[BLOCK_VECTORS];
#pragma unroll
    for (int v = 0; v < BLOCK_VECTORS; v++) {
        /* Vectors past the last one repeat it; their sums are not stored. */
        vectors[v] = min(vector + v, SAMPLES / LANES - 1);
#pragma unroll
        for (int u = 0; u < BLOCK_UNITS; u++) {
            sums[u][v] = 0;
        }
    }
    const int2 rows = inside(row, ROW_STEP, TAPS_Y, SOURCE_HEIGHT);
    const int2 columns = inside(column, COLUMN_STEP, TAPS_X, SOURCE_WIDTH);
    for (int run = 0; run < DEPTH_RUNS; run++) {
        const int depths = min(RUN, DEPTH - run * RUN);
        for (int a = rows.x; a < rows.y; a++) {
            for (int b = columns.x; b < columns.y; b++) {
                const int tap = (TAP_Y_FIRST + a * TAP_Y_STEP) * FILTER_WIDTH + TAP_X_FIRST + b * TAP_X_STEP;
                const int cell = (row + a * ROW_STEP) * SOURCE_PITCH + column + b * COLUMN_STEP;
                __global const gathered_t *from =
                    source + (size_t)(run * SOURCE_POSITIONS + cell) * (RUN * SAMPLES);
                __global const weight_t *factors = weight + run * RUN * WEIGHT_DEPTH_STRIDE + tap;
                for (int depth = 0; depth < (DEPTH % RUN == 0 ? RUN : depths); depth++) {
                    vector_t values[BLOCK_VECTORS];
#pragma unroll
                    for (int v = 0; v < BLOCK_VECTORS; v++) {
                        values[v] = VECTOR_LOAD(from + depth * SAMPLES + vectors[v] * LANES);
                    }
#pragma unroll
                    for (int u = 0; u < BLOCK_UNITS; u++) {
                        /* Units past the last one repeat it; their sums are not stored. */
                        const int unit = UNITS_DIVIDE || u < units ? u : units - 1;
                        const real_t factor =
                            READ_VALUE(factors, unit * WEIGHT_UNIT_STRIDE + depth * WEIGHT_DEPTH_STRIDE);
#pragma unroll
                        for (int v = 0; v < BLOCK_VECTORS; v++) {
                            sums[u][v] = MULTIPLY_ADD((vector_t)(factor), values[v], sums[u][v]);
                        }
                    }
                }
            }
        }
    }
}
