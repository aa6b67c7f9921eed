/*
 * Dense (perceptron), forward: output[n][o] = f(bias[o] + sum over elements k of weight[o][k] * input[n][k]).
 * A tile of BLOCK_SAMPLES x BLOCK_UNITS sums; lanes, and the work-items of a group, run over the elements.
 *
 * Blobs:
 *   INPUT  read
 *   OUTPUT write  height and width 1
 * Arrays:
 *   WEIGHT read   OI
 *   BIAS   read   a unit, if HAS_BIAS
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   ROWS           runs of a sample, see rows.h
 *   ROW_ELEMENTS
 *   HAS_BIAS
 *   LANES          elements in a vector
 *   BLOCK_SAMPLES  samples a work-group
 *   BLOCK_UNITS    output units a work-group
 *   LOCAL_WIDTH    work-items that share the elements
 * Tunables:
 *   MAXIMUM_LANES        loops 16, lanes 1 of 1 2 4 8 16: most lanes
 *   MAXIMUM_SAMPLES      loops 4, lanes 4 of 1 2 3 4 5 6 8: most samples a work-group
 *   MAXIMUM_UNITS        loops 6, lanes 8 of 1 2 3 4 5 6 8 12 16: most units a work-group
 *   MAXIMUM_ACCUMULATORS loops 24, lanes 32 of 8 12 16 20 24 28 32 48 64: most vectors of sums a work-item
 *   GROUP_WIDTH          loops 1, lanes 64 of 1 32 64 128 256: LOCAL_WIDTH
 * Global:
 *   width   LOCAL_WIDTH
 *   height  blocks of units
 *   units   blocks of samples
 */
#include "blob.h"
#include "vector.h"
#include "group_sum.h"
#include "epilogue.h"
#include "dense/rows.h"

__kernel void dense_forward(READ_BLOB(input), WRITE_BLOB(output), READ_ARRAY(weight_t, weight),
                            READ_ARRAY(bias_t, bias) MORE_ARRAYS, const int count)
{
    const int first_sample = GLOBAL_ID_OF_GROUP(2) * BLOCK_SAMPLES;
    const int first_unit = GLOBAL_ID_OF_GROUP(1) * BLOCK_UNITS;
    __global const input_t *samples[BLOCK_SAMPLES];
    __global const weight_t *weights[BLOCK_UNITS];
    vector_t sums[BLOCK_SAMPLES][BLOCK_UNITS];
    /* Samples and units past the last one repeat it; their sums are not stored. */
#pragma unroll
    for (int s = 0; s < BLOCK_SAMPLES; s++) {
        samples[s] = input + BLOB_INDEX(INPUT, min(first_sample + s, count - 1), 0, 0, 0);
    }
#pragma unroll
    for (int u = 0; u < BLOCK_UNITS; u++) {
        weights[u] = ARRAY(weight) + min(first_unit + u, OUTPUT_UNIT_COUNT - 1) * ELEMENTS;
#pragma unroll
        for (int s = 0; s < BLOCK_SAMPLES; s++) {
            sums[s][u] = 0;
        }
    }
    EACH_VECTOR(k)
    {
        vector_t values[BLOCK_SAMPLES];
#pragma unroll
        for (int s = 0; s < BLOCK_SAMPLES; s++) {
            values[s] = VECTOR_LOAD(BEHIND(samples[s], VECTOR_INDEX(INPUT, k)));
#if !WHOLE_CHUNKS
            values[s] = VECTOR_KEEP(values[s], FILLED(k));
#endif
        }
#pragma unroll
        for (int u = 0; u < BLOCK_UNITS; u++) {
            vector_t factors = VECTOR_LOAD(BEHIND(weights[u], ELEMENT_INDEX(k)));
#if !WHOLE_CHUNKS
            /* Behind the last weight may lie anything, NaN too. */
            factors = VECTOR_KEEP(factors, FILLED(k));
#endif
#pragma unroll
            for (int s = 0; s < BLOCK_SAMPLES; s++) {
                sums[s][u] = MULTIPLY_ADD(factors, values[s], sums[s][u]);
            }
        }
    }
    __local accumulator_t group[LOCAL_WIDTH];
#pragma unroll
    for (int s = 0; s < BLOCK_SAMPLES; s++) {
#pragma unroll
        for (int u = 0; u < BLOCK_UNITS; u++) {
            accumulator_t sum = GROUP_SUM(VECTOR_SUM(sums[s][u]), group);
            if (get_local_id(0) == 0 && first_sample + s < count && first_unit + u < OUTPUT_UNIT_COUNT) {
#if HAS_BIAS
                sum += READ_VALUE(ARRAY(bias), first_unit + u);
#endif
                WRITE_VALUE(output, BLOB_INDEX(OUTPUT, first_sample + s, first_unit + u, 0, 0),
                            FINISHED(sum, first_unit + u));
            }
        }
    }
}
