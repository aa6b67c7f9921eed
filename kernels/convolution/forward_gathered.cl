/*
 * Convolution, forward, any stride: output = epilogue(sum over input units and taps of weight * input).
 * A vector is one position of LANES samples, which blob/gather.cl laid side by side: small planes fill vectors too, and
 * no tap reads padding.
 *
 * Blobs:
 *   OUTPUT write
 * Arrays:
 *   GATHERED read   the input: (groups, runs, positions, RUN, SAMPLES)
 *   WEIGHT   read   OIHW, I counted within a group
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   GROUP_INPUT_UNITS
 *   GROUP_OUTPUT_UNITS
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
 *   RUN            units of a group that lie together, position by position
 *   SAMPLES        samples side by side, a multiple of LANES
 *   LANES          samples in a vector
 *   BLOCK_VECTORS  vectors a work-item
 *   BLOCK_UNITS    output units a work-item
 * Tunables:
 *   MAXIMUM_LANES        loops 16 of 1 2 4 8 16: most lanes
 *   MAXIMUM_VECTORS      loops 4 of 1 2 3 4: most vectors a work-item
 *   MAXIMUM_UNITS        loops 12 of 1 2 3 4 6 8 12 16 24: most units a work-item
 *   MAXIMUM_ACCUMULATORS loops 24 of 8 12 16 24 28: most vectors of sums a work-item
 * Global:
 *   width   positions
 *   height  blocks of output units, group by group
 *   units   tiles of samples
 */
#include "blob.h"
#include "vector.h"
#include "convolution/epilogue.h"

#define DEPTH GROUP_INPUT_UNITS
#define TAPS_Y FILTER_HEIGHT
#define TAPS_X FILTER_WIDTH
#define TAP_Y_FIRST 0
#define TAP_Y_STEP 1
#define TAP_X_FIRST 0
#define TAP_X_STEP 1
#define ROW_STEP DILATION_Y
#define COLUMN_STEP DILATION_X
#define WEIGHT_UNIT_STRIDE (GROUP_INPUT_UNITS * FILTER_HEIGHT * FILTER_WIDTH)
#define WEIGHT_DEPTH_STRIDE (FILTER_HEIGHT * FILTER_WIDTH)
#define UNITS_DIVIDE (GROUP_OUTPUT_UNITS % BLOCK_UNITS == 0)
#include "convolution/gathered.h"

#define BLOCKS ((GROUP_OUTPUT_UNITS + BLOCK_UNITS - 1) / BLOCK_UNITS)

__kernel void convolution_forward_gathered(WRITE_BLOB(output), EPILOGUE_BLOBS,
                                           READ_ARRAY(gathered_t, gathered), READ_ARRAY(weight_t, weight),
                                           EPILOGUE_ARRAYS, const int count)
{
    const int y = get_global_id(0) / OUTPUT_UNIT_WIDTH;
    const int x = get_global_id(0) % OUTPUT_UNIT_WIDTH;
    const int group = get_global_id(1) / BLOCKS;
    const int first = get_global_id(1) % BLOCKS * BLOCK_UNITS;
    const int units = min(BLOCK_UNITS, GROUP_OUTPUT_UNITS - first);
    const int vector = get_global_id(2) * BLOCK_VECTORS;

    vector_t sums[BLOCK_UNITS][BLOCK_VECTORS];
    const int unit = group * GROUP_OUTPUT_UNITS + first;
    sum_gathered(sums, ARRAY(gathered) + (size_t)group * DEPTH_RUNS * SOURCE_POSITIONS * RUN * SAMPLES,
                 y * STRIDE_Y - PAD_TOP, x * STRIDE_X - PAD_LEFT, vector,
                 ARRAY(weight) + unit * WEIGHT_UNIT_STRIDE, units);

#pragma unroll
    for (int u = 0; u < BLOCK_UNITS; u++) {
        const real_t bias = UNIT_BIAS(unit + min(u, units - 1));
#pragma unroll
        for (int v = 0; v < BLOCK_VECTORS; v++) {
            const int n = (vector + v) * LANES;
            vector_t value = BIASED(sums[u][v], bias, unit + min(u, units - 1));
#if HAS_CELL_TERM
            real_t terms[LANES];
            for (int lane = 0; lane < LANES; lane++) {
                terms[lane] = CELL_TERM(min(n + lane, count - 1), unit + min(u, units - 1), y, x);
            }
            value = JOINED(value, VECTOR_LOAD(terms), unit + min(u, units - 1));
#endif
            value = FINISHED(value, unit + min(u, units - 1));
            real_t lanes[LANES];
            VECTOR_STORE(value, lanes);
            for (int lane = 0; lane < LANES; lane++) {
                if (u < units && n + lane < count) {
                    WRITE_VALUE(output, BLOB_INDEX(OUTPUT, n + lane, unit + u, y, x), lanes[lane]);
                }
            }
        }
    }
}
