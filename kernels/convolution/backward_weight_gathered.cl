/*
 * Convolution, backward, gradient of the weights, any stride: gradient[o][i][tap] = sum over samples and positions of
 * delta[o] * input[i] at the tap's shift. A vector is LANES input units of one tap, which blob/gather.cl laid side by
 * side: small planes fill vectors too, sums need not be added up over lanes, and no tap reads padding.
 * Splits, of whole samples, go to a partial sum each; gradient/reduce.cl adds them in a fixed order.
 *
 * Blobs:
 *   OUTPUT_DELTA read
 * Arrays:
 *   GATHERED read   the input: (samples, positions, UNITS)
 *   PARTIALS write  (SPLITS, OIHW)
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   GROUP_INPUT_UNITS
 *   GROUP_OUTPUT_UNITS
 *   GROUPS
 *   FILTER_HEIGHT
 *   FILTER_WIDTH
 *   STRIDE_Y
 *   STRIDE_X
 *   DILATION_Y
 *   DILATION_X
 *   PAD_TOP
 *   PAD_LEFT
 *   SOURCE_HEIGHT  the input's planes
 *   SOURCE_WIDTH
 *   SOURCE_PITCH
 *   UNITS          units side by side, a multiple of LANES
 *   SPLITS
 *   LANES          input units in a vector
 *   BLOCK_VECTORS  vectors a work-item
 *   BLOCK_UNITS    output units a work-item
 * Tunables:
 *   MAXIMUM_LANES        cpu 16, gpu 16 of 1 2 4 8 16: most lanes
 *   MAXIMUM_VECTORS      cpu 4, gpu 4 of 1 2 3 4: most vectors a work-item
 *   MAXIMUM_UNITS        cpu 12, gpu 12 of 1 2 3 4 6 8 12 16 24: most units a work-item
 *   MAXIMUM_ACCUMULATORS cpu 24, gpu 24 of 8 12 16 24 28: most vectors of sums a work-item
 *   TARGET_GROUPS        cpu 32, gpu 1024 of 1 2 4 8 16 32 64 128 256 512 1024: groups worth splitting for
 *   MAXIMUM_SPLITS       cpu 64, gpu 64 of 1 2 4 8 16 32 64 128: most splits
 * Global:
 *   width   taps, for each block of vectors
 *   height  blocks of output units, group by group
 *   units   SPLITS
 */
#include "blob.h"
#include "vector.h"
#include "convolution/inside.h"

#define TAPS (FILTER_HEIGHT * FILTER_WIDTH)
#define BLOCKS ((GROUP_OUTPUT_UNITS + BLOCK_UNITS - 1) / BLOCK_UNITS)
#define SOURCE_POSITIONS ((SOURCE_HEIGHT - 1) * SOURCE_PITCH + SOURCE_WIDTH)
#define LAST_VECTOR ((GROUP_INPUT_UNITS + LANES - 1) / LANES - 1)

__kernel void convolution_backward_weight_gathered(READ_BLOB(output_delta), READ_ARRAY(real_t, gathered),
                                                   WRITE_ARRAY(real_t, partials), const int count)
{
    const int split = get_global_id(2);
    const int group = get_global_id(1) / BLOCKS;
    const int first = get_global_id(1) % BLOCKS * BLOCK_UNITS;
    const int tap = get_global_id(0) % TAPS;
    const int vector = get_global_id(0) / TAPS * BLOCK_VECTORS;

    int depths[BLOCK_VECTORS];
    int planes[BLOCK_UNITS];
    vector_t sums[BLOCK_UNITS][BLOCK_VECTORS];
#pragma unroll
    for (int v = 0; v < BLOCK_VECTORS; v++) {
        /* Vectors and units past the last one repeat it; their sums are not stored. */
        depths[v] = min(vector + v, LAST_VECTOR) * LANES;
    }
#pragma unroll
    for (int u = 0; u < BLOCK_UNITS; u++) {
        planes[u] = min(first + u, GROUP_OUTPUT_UNITS - 1) * OUTPUT_DELTA_UNIT_MEMORY_ELEMENTS;
#pragma unroll
        for (int v = 0; v < BLOCK_VECTORS; v++) {
            sums[u][v] = 0;
        }
    }

    const int row = tap / FILTER_WIDTH * DILATION_Y - PAD_TOP;
    const int column = tap % FILTER_WIDTH * DILATION_X - PAD_LEFT;
    const int2 rows = inside(row, STRIDE_Y, OUTPUT_DELTA_UNIT_HEIGHT, SOURCE_HEIGHT);
    const int2 columns = inside(column, STRIDE_X, OUTPUT_DELTA_UNIT_WIDTH, SOURCE_WIDTH);
    const int last = (int)((long)count * (split + 1) / SPLITS);
    for (int n = (int)((long)count * split / SPLITS); n < last; n++) {
        for (int y = rows.x; y < rows.y; y++) {
            __global const real_t *values =
                ARRAY(gathered)
                + ((size_t)n * SOURCE_POSITIONS + (row + y * STRIDE_Y) * SOURCE_PITCH + column) * UNITS
                + group * GROUP_INPUT_UNITS;
            __global const real_t *deltas =
                output_delta + BLOB_INDEX(OUTPUT_DELTA, n, group * GROUP_OUTPUT_UNITS, y, 0);
            for (int x = columns.x; x < columns.y; x++) {
                vector_t value[BLOCK_VECTORS];
#pragma unroll
                for (int v = 0; v < BLOCK_VECTORS; v++) {
                    value[v] = VECTOR_LOAD(values + x * STRIDE_X * UNITS + depths[v]);
                }
#pragma unroll
                for (int u = 0; u < BLOCK_UNITS; u++) {
                    const real_t delta = deltas[planes[u] + x];
#pragma unroll
                    for (int v = 0; v < BLOCK_VECTORS; v++) {
                        sums[u][v] = MULTIPLY_ADD((vector_t)(delta), value[v], sums[u][v]);
                    }
                }
            }
        }
    }

    __global real_t *results =
        ARRAY(partials) + ((size_t)split * GROUPS + group) * GROUP_OUTPUT_UNITS * GROUP_INPUT_UNITS * TAPS
        + tap;
#pragma unroll
    for (int u = 0; u < BLOCK_UNITS; u++) {
#pragma unroll
        for (int v = 0; v < BLOCK_VECTORS; v++) {
            real_t lanes[LANES];
            VECTOR_STORE(sums[u][v], lanes);
            for (int lane = 0; lane < LANES; lane++) {
                const int depth = (vector + v) * LANES + lane;
                if (first + u < GROUP_OUTPUT_UNITS && depth < GROUP_INPUT_UNITS) {
                    results[((first + u) * GROUP_INPUT_UNITS + depth) * TAPS] = lanes[lane];
                }
            }
        }
    }
}
