/*
 * Dense, backward, delta of the input: input_delta[n][k] = sum over units o of output_delta[n][o] * weight[o][k].
 * A tile of BLOCK_SAMPLES x BLOCK_VECTORS sums; lanes are elements k.
 *
 * Blobs:
 *   OUTPUT_DELTA read
 *   INPUT_DELTA  update
 * Arrays:
 *   WEIGHT read   OI
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   ROWS           runs of a sample, see rows.h
 *   ROW_ELEMENTS
 *   ACCUMULATE     1: add to INPUT_DELTA
 *   LANES          elements in a vector
 *   BLOCK_SAMPLES  samples a work-item
 *   BLOCK_VECTORS  vectors a work-item
 *   LOCAL_WIDTH    work-items side by side
 * Tunables:
 *   MAXIMUM_LANES        loops 16, lanes 1 of 1 2 4 8 16: most lanes
 *   MAXIMUM_SAMPLES      loops 8, lanes 8 of 1 2 3 4 5 6 8 12: most samples a work-item
 *   MAXIMUM_VECTORS      loops 4, lanes 4 of 1 2 3 4 5 6 8: most vectors a work-item
 *   MAXIMUM_ACCUMULATORS loops 24, lanes 32 of 8 12 16 20 24 28 32 48 64: most vectors of sums a work-item
 *   GROUP_WIDTH          loops 1, lanes 64 of 1 32 64 128 256: LOCAL_WIDTH
 * Global:
 *   width  tiles of vectors * LOCAL_WIDTH
 *   units  blocks of samples
 */
#include "blob.h"
#include "put.h"
#include "vector.h"
#include "dense/rows.h"

__kernel void dense_backward_data(READ_BLOB(output_delta), WRITE_BLOB(input_delta),
                                  READ_ARRAY(weight_t, weight), const int count)
{
    const int first_sample = GLOBAL_ID_OF_GROUP(2) * BLOCK_SAMPLES;
    const int start = get_group_id(0) * BLOCK_VECTORS * LOCAL_WIDTH + get_local_id(0);
    __global const output_delta_t *deltas[BLOCK_SAMPLES];
    vector_t sums[BLOCK_SAMPLES][BLOCK_VECTORS];
    /* Samples and vectors past the last one repeat it; their sums are not stored. */
#pragma unroll
    for (int s = 0; s < BLOCK_SAMPLES; s++) {
        deltas[s] = output_delta + BLOB_INDEX(OUTPUT_DELTA, min(first_sample + s, count - 1), 0, 0, 0);
#pragma unroll
        for (int v = 0; v < BLOCK_VECTORS; v++) {
            sums[s][v] = 0;
        }
    }
    for (int o = 0; o < OUTPUT_DELTA_UNIT_COUNT; o++) {
        vector_t factors[BLOCK_VECTORS];
#pragma unroll
        for (int v = 0; v < BLOCK_VECTORS; v++) {
            const int k = min(start + v * LOCAL_WIDTH, VECTORS - 1);
            factors[v] = VECTOR_LOAD(ARRAY(weight) + o * ELEMENTS + ELEMENT_INDEX(k));
        }
#pragma unroll
        for (int s = 0; s < BLOCK_SAMPLES; s++) {
            const real_t delta = READ_VALUE(deltas[s], o * OUTPUT_DELTA_UNIT_MEMORY_ELEMENTS);
#pragma unroll
            for (int v = 0; v < BLOCK_VECTORS; v++) {
                sums[s][v] = MULTIPLY_ADD((vector_t)(delta), factors[v], sums[s][v]);
            }
        }
    }
#pragma unroll
    for (int v = 0; v < BLOCK_VECTORS; v++) {
        const int k = start + v * LOCAL_WIDTH;
#pragma unroll
        for (int s = 0; s < BLOCK_SAMPLES; s++) {
            if (k >= VECTORS || first_sample + s >= count) {
                continue;
            }
            __global input_delta_t *to = input_delta + BLOB_INDEX(INPUT_DELTA, first_sample + s, 0, 0, 0)
                                         + VECTOR_INDEX(INPUT_DELTA, k);
            if ((k % CHUNKS + 1) * LANES <= ROW_ELEMENTS) {
#if ACCUMULATE
                sums[s][v] += VECTOR_LOAD(to);
#endif
                VECTOR_STORE(sums[s][v], to);
            } else {
                real_t lanes[LANES];
                VECTOR_STORE(sums[s][v], lanes);
                for (int lane = 0; lane < ROW_ELEMENTS % LANES; lane++) {
                    PUT(lanes[lane], to + lane);
                }
            }
        }
    }
}
