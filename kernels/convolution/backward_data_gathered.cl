/*
 * Convolution, backward, delta of the input: one phase of a convolution of any stride. Input cells
 * (i * STRIDE_Y + PHASE_Y, j * STRIDE_X + PHASE_X) see the same subset of taps (convolution/backward_data.cl).
 * A vector is one position of LANES samples, which blob/gather.cl laid side by side: small planes fill vectors too, and
 * no tap reads padding.
 *
 * Blobs:
 *   INPUT_DELTA update
 * Arrays:
 *   GATHERED read   the output's delta: (groups, runs, positions, RUN, SAMPLES)
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
 *   PHASE_Y
 *   PHASE_X
 *   TAPS_Y         taps of this phase
 *   TAPS_X
 *   TAP_Y_FIRST    the first one's filter row
 *   TAP_Y_STEP
 *   TAP_X_FIRST
 *   TAP_X_STEP
 *   ROW_FIRST      the first one's shift in rows of the delta
 *   ROW_STEP
 *   COLUMN_FIRST
 *   COLUMN_STEP
 *   ACCUMULATE     1: add to INPUT_DELTA
 *   SOURCE_HEIGHT  the planes of the output's delta
 *   SOURCE_WIDTH
 *   SOURCE_PITCH
 *   RUN            units of a group that lie together, position by position
 *   SAMPLES        samples side by side, a multiple of LANES
 *   LANES          samples in a vector
 *   BLOCK_VECTORS  vectors a work-item
 *   BLOCK_UNITS    input units a work-item
 * Tunables:
 *   MAXIMUM_LANES        loops 16 of 1 2 4 8 16: most lanes
 *   MAXIMUM_VECTORS      loops 4 of 1 2 3 4: most vectors a work-item
 *   MAXIMUM_UNITS        loops 12 of 1 2 3 4 6 8 12 16 24: most units a work-item
 *   MAXIMUM_ACCUMULATORS loops 24 of 8 12 16 24 28: most vectors of sums a work-item
 * Global:
 *   width   positions of the phase
 *   height  blocks of input units, group by group
 *   units   tiles of samples
 */
#include "blob.h"
#include "put.h"
#include "vector.h"

#define DEPTH GROUP_OUTPUT_UNITS
#define WEIGHT_UNIT_STRIDE (FILTER_HEIGHT * FILTER_WIDTH)
#define WEIGHT_DEPTH_STRIDE (GROUP_INPUT_UNITS * FILTER_HEIGHT * FILTER_WIDTH)
#define UNITS_DIVIDE (GROUP_INPUT_UNITS % BLOCK_UNITS == 0)
#include "convolution/gathered.h"

#define BLOCKS ((GROUP_INPUT_UNITS + BLOCK_UNITS - 1) / BLOCK_UNITS)
#define PHASE_WIDTH ((INPUT_DELTA_UNIT_WIDTH - PHASE_X + STRIDE_X - 1) / STRIDE_X)

__kernel void convolution_backward_data_gathered(WRITE_BLOB(input_delta), READ_ARRAY(gathered_t, gathered),
                                                 READ_ARRAY(weight_t, weight), const int count)
{
    const int i = get_global_id(0) / PHASE_WIDTH;
    const int j = get_global_id(0) % PHASE_WIDTH;
    const int group = get_global_id(1) / BLOCKS;
    const int first = get_global_id(1) % BLOCKS * BLOCK_UNITS;
    const int units = min(BLOCK_UNITS, GROUP_INPUT_UNITS - first);
    const int vector = get_global_id(2) * BLOCK_VECTORS;

    vector_t sums[BLOCK_UNITS][BLOCK_VECTORS];
    sum_gathered(
        sums, ARRAY(gathered) + (size_t)group * DEPTH_RUNS * SOURCE_POSITIONS * RUN * SAMPLES, i + ROW_FIRST,
        j + COLUMN_FIRST, vector,
        ARRAY(weight) + group * GROUP_OUTPUT_UNITS * WEIGHT_DEPTH_STRIDE + first * WEIGHT_UNIT_STRIDE, units);

    const int unit = group * GROUP_INPUT_UNITS + first;
    const int y = i * STRIDE_Y + PHASE_Y;
    const int x = j * STRIDE_X + PHASE_X;
#pragma unroll
    for (int u = 0; u < BLOCK_UNITS; u++) {
#pragma unroll
        for (int v = 0; v < BLOCK_VECTORS; v++) {
            const int n = (vector + v) * LANES;
            real_t lanes[LANES];
            VECTOR_STORE(sums[u][v], lanes);
            for (int lane = 0; lane < LANES; lane++) {
                if (u < units && n + lane < count) {
                    PUT(lanes[lane], input_delta + BLOB_INDEX(INPUT_DELTA, n + lane, unit + u, y, x));
                }
            }
        }
    }
}
