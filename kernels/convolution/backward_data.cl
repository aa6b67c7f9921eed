/*
 * Convolution, backward, delta of the input: one phase of a convolution of any stride, on flat planes.
 * Input cells (i * STRIDE_Y + PHASE_Y, j * STRIDE_X + PHASE_X) see the same subset of taps, at fixed shifts of the
 * output's delta (the rotated filter of Hedberg, 2015, split into stride x stride dense convolutions): contiguous
 * loads, no branch; the delta's halo holds the zeros. Position q is cell (q / pitch, q % pitch) of (i, j).
 *
 * Blobs:
 *   OUTPUT_DELTA read   with a halo of zeros
 *   INPUT_DELTA  update
 * Arrays:
 *   WEIGHT read   OIHW, I counted within a group
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   GROUPS
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
 *   LANES          positions in a vector
 *   BLOCK_VECTORS  vectors whose sums are in registers
 *   BLOCK_UNITS    input units a work-item
 *   BLOCKS_AT_ONCE blocks of sums that a work-item makes one after the other
 *   UNITS_FIRST    1: blocks of units follow one another, 0: blocks of positions (see forward_flat)
 * Tunables:
 *   MAXIMUM_LANES        loops 16 of 1 2 4 8 16: most lanes
 *   MAXIMUM_VECTORS      loops 4 of 1 2 3 4 5 6 8: most vectors a work-item
 *   MAXIMUM_UNITS        loops 12 of 1 2 3 4 5 6 7 8 10 12 14 16 24 32: most units a work-item
 *   MAXIMUM_ACCUMULATORS loops 24 of 8 12 16 20 24 26 28 32 48 64: most vectors of sums a work-item
 *   TARGET_ITEMS         loops 8 of 1 8 32 128: work-items a compute unit, if there are so many blocks
 * Global:
 *   width   blocks of sums / BLOCKS_AT_ONCE, in the order of UNITS_FIRST
 *   units   COUNT
 */
#include "blob.h"
#include "put.h"
#include "vector.h"

#define DEPTH GROUP_OUTPUT_UNITS
#define SOURCE_PITCH OUTPUT_DELTA_UNIT_MEMORY_WIDTH
#define SOURCE_PLANE OUTPUT_DELTA_UNIT_MEMORY_ELEMENTS
#define SOURCE_STEP SOURCE_PLANE
#define ROW_SHIFT(a) ((ROW_FIRST + (a) * ROW_STEP) * SOURCE_PITCH)
#define COLUMN_SHIFT(b) (COLUMN_FIRST + (b) * COLUMN_STEP)
#define WEIGHT_UNIT_STRIDE (FILTER_HEIGHT * FILTER_WIDTH)
#define WEIGHT_DEPTH_STRIDE (GROUP_INPUT_UNITS * FILTER_HEIGHT * FILTER_WIDTH)
#define UNITS_DIVIDE (GROUP_INPUT_UNITS % BLOCK_UNITS == 0)
#define source_t output_delta_t
#define ASKS_NEXT 0
#include "convolution/direct.h"

#define BLOCKS ((GROUP_INPUT_UNITS + BLOCK_UNITS - 1) / BLOCK_UNITS)
#define PHASE_HEIGHT ((INPUT_DELTA_UNIT_HEIGHT - PHASE_Y + STRIDE_Y - 1) / STRIDE_Y)
#define PHASE_WIDTH ((INPUT_DELTA_UNIT_WIDTH - PHASE_X + STRIDE_X - 1) / STRIDE_X)
#define POSITIONS ((PHASE_HEIGHT - 1) * SOURCE_PITCH + PHASE_WIDTH)
#define TILES ((POSITIONS + BLOCK_VECTORS * LANES - 1) / (BLOCK_VECTORS * LANES))
#define FLAT_STORE (STRIDE_Y == 1 && STRIDE_X == 1 && INPUT_DELTA_UNIT_MEMORY_WIDTH == SOURCE_PITCH)

__kernel void convolution_backward_data(READ_BLOB(output_delta), WRITE_BLOB(input_delta),
                                        READ_ARRAY(weight_t, weight), const int count)
{
    const int n = get_global_id(2);
    const int begin = get_global_id(0) * BLOCKS_AT_ONCE;
    const int end = min(begin + BLOCKS_AT_ONCE, TILES * GROUPS * BLOCKS);
    for (int block = begin; block < end; block++) {
        const int unit_block = UNITS_FIRST ? block % (GROUPS * BLOCKS) : block / TILES;
        const int tile = UNITS_FIRST ? block / (GROUPS * BLOCKS) : block % TILES;
        const int group = unit_block / BLOCKS;
        const int first = unit_block % BLOCKS * BLOCK_UNITS;
        const int units = min(BLOCK_UNITS, GROUP_INPUT_UNITS - first);
        /* NOTE: the local number is 0; without it Intel's compiler makes slower loops, at worst of 0.73 of the speed. */
        const int start = (tile * BLOCK_VECTORS + get_local_id(0)) * LANES;

        int positions[BLOCK_VECTORS];
        vector_t accumulators[BLOCK_UNITS][BLOCK_VECTORS];
#pragma unroll
        for (int v = 0; v < BLOCK_VECTORS; v++) {
            /* Vectors past the last position repeat it: what they load is in memory, and not stored. */
            positions[v] = min(start + v * LANES, POSITIONS - 1);
#pragma unroll
            for (int u = 0; u < BLOCK_UNITS; u++) {
                accumulators[u][v] = 0;
            }
        }
        accumulate_tile(
            accumulators, output_delta + BLOB_INDEX(OUTPUT_DELTA, n, group * GROUP_OUTPUT_UNITS, 0, 0),
            positions,
            ARRAY(weight) + group * GROUP_OUTPUT_UNITS * WEIGHT_DEPTH_STRIDE + first * WEIGHT_UNIT_STRIDE,
            units, 0);

        const int unit = group * GROUP_INPUT_UNITS + first;
#pragma unroll
        for (int v = 0; v < BLOCK_VECTORS; v++) {
            const int q = start + v * LANES;
#pragma unroll
            for (int u = 0; u < BLOCK_UNITS; u++) {
                if (u >= units || q >= POSITIONS) {
                    continue;
                }
                vector_t value = accumulators[u][v];
#if FLAT_STORE
                if (q + LANES <= POSITIONS) {
                    __global input_delta_t *to = input_delta + BLOB_INDEX(INPUT_DELTA, n, unit + u, 0, 0) + q;
#if SOURCE_PITCH > INPUT_DELTA_UNIT_WIDTH
                    value =
                        VECTOR_KEEP(value, (q + VECTOR_LANE_NUMBERS) % SOURCE_PITCH < INPUT_DELTA_UNIT_WIDTH);
#endif
#if ACCUMULATE
                    value += VECTOR_LOAD(to);
#endif
                    VECTOR_STORE(value, to);
                    continue;
                }
#endif
                real_t lanes[LANES];
                VECTOR_STORE(value, lanes);
                for (int lane = 0; lane < LANES; lane++) {
                    const int i = (q + lane) / SOURCE_PITCH;
                    const int j = (q + lane) % SOURCE_PITCH;
                    if (i < PHASE_HEIGHT && j < PHASE_WIDTH) {
                        __global input_delta_t *to =
                            input_delta
                            + BLOB_INDEX(INPUT_DELTA, n, unit + u, i * STRIDE_Y + PHASE_Y,
                                         j * STRIDE_X + PHASE_X);
                        PUT(lanes[lane], to);
                    }
                }
            }
        }
    }
}
