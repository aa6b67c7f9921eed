/*
 * Dense, backward, gradients: weight_gradient[o][k] = sum over samples n of output_delta[n][o] * input[n][k], and
 * bias_gradient[o] = sum over n of output_delta[n][o]. A tile of BLOCK_UNITS x BLOCK_VECTORS sums; lanes are elements.
 *
 * Blobs:
 *   INPUT        read
 *   OUTPUT_DELTA read
 * Arrays:
 *   WEIGHT_GRADIENT write  OI
 *   BIAS_GRADIENT   write  a unit, if HAS_BIAS
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   ROWS           runs of a sample, see rows.h
 *   ROW_ELEMENTS
 *   HAS_BIAS
 *   LANES          elements in a vector
 *   BLOCK_UNITS    units a work-item
 *   BLOCK_VECTORS  vectors a work-item
 *   LOCAL_WIDTH    work-items side by side
 * Tunables:
 *   MAXIMUM_LANES        loops 16, lanes 1 of 1 2 4 8 16: most lanes
 *   MAXIMUM_UNITS        loops 8, lanes 8 of 1 2 3 4 5 6 8 12: most units a work-item
 *   MAXIMUM_VECTORS      loops 4, lanes 4 of 1 2 3 4 5 6 8: most vectors a work-item
 *   MAXIMUM_ACCUMULATORS loops 24, lanes 32 of 8 12 16 20 24 28 32 48 64: most vectors of sums a work-item
 *   GROUP_WIDTH          loops 1, lanes 64 of 1 32 64 128 256: LOCAL_WIDTH
 * Global:
 *   width   tiles of vectors * LOCAL_WIDTH
 *   height  blocks of units
 */
#include "blob.h"
#include "vector.h"
#include "dense/rows.h"

__kernel void dense_backward_weight(READ_BLOB(input), READ_BLOB(output_delta),
                                    WRITE_ARRAY(real_t, weight_gradient), WRITE_ARRAY(real_t, bias_gradient),
                                    const int count)
{
    const int first_unit = GLOBAL_ID_OF_GROUP(1) * BLOCK_UNITS;
    const int start = get_group_id(0) * BLOCK_VECTORS * LOCAL_WIDTH + get_local_id(0);
    vector_t sums[BLOCK_UNITS][BLOCK_VECTORS];
    accumulator_t bias_sums[BLOCK_UNITS];
#pragma unroll
    for (int u = 0; u < BLOCK_UNITS; u++) {
        bias_sums[u] = 0;
#pragma unroll
        for (int v = 0; v < BLOCK_VECTORS; v++) {
            sums[u][v] = 0;
        }
    }
    for (int n = 0; n < count; n++) {
        __global const input_t *sample = input + BLOB_INDEX(INPUT, n, 0, 0, 0);
        vector_t values[BLOCK_VECTORS];
#pragma unroll
        for (int v = 0; v < BLOCK_VECTORS; v++) {
            /* Vectors past the last one repeat it; lanes past a run's end are not stored either. */
            const int k = min(start + v * LOCAL_WIDTH, VECTORS - 1);
            values[v] = VECTOR_LOAD(sample + VECTOR_INDEX(INPUT, k));
        }
#pragma unroll
        for (int u = 0; u < BLOCK_UNITS; u++) {
            const int unit = min(first_unit + u, OUTPUT_DELTA_UNIT_COUNT - 1);
            const real_t delta = READ_VALUE(output_delta, BLOB_INDEX(OUTPUT_DELTA, n, unit, 0, 0));
            bias_sums[u] += delta;
#pragma unroll
            for (int v = 0; v < BLOCK_VECTORS; v++) {
                sums[u][v] = MULTIPLY_ADD((vector_t)(delta), values[v], sums[u][v]);
            }
        }
    }
#pragma unroll
    for (int u = 0; u < BLOCK_UNITS; u++) {
        if (first_unit + u >= OUTPUT_DELTA_UNIT_COUNT) {
            continue;
        }
#if HAS_BIAS
        if (get_global_id(0) == 0) {
            ARRAY(bias_gradient)[first_unit + u] = bias_sums[u];
        }
#endif
#pragma unroll
        for (int v = 0; v < BLOCK_VECTORS; v++) {
            const int k = start + v * LOCAL_WIDTH;
            if (k >= VECTORS) {
                continue;
            }
            __global real_t *to = ARRAY(weight_gradient) + (first_unit + u) * ELEMENTS + ELEMENT_INDEX(k);
            if ((k % CHUNKS + 1) * LANES <= ROW_ELEMENTS) {
                VECTOR_STORE(sums[u][v], to);
            } else {
                real_t lanes[LANES];
                VECTOR_STORE(sums[u][v], lanes);
                for (int lane = 0; lane < ROW_ELEMENTS % LANES; lane++) {
                    to[lane] = lanes[lane];
                }
            }
        }
    }
}
