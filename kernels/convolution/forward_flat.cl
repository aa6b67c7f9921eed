/*
 * Convolution, forward, stride 1, on flat planes: output = epilogue(sum over input units and taps of weight * input).
 * Position q of a plane is a cell of one long row at the input's pitch: each tap is a contiguous load at a fixed shift
 * (docs/memory_layout.md). What is computed between two rows is replaced by 0.
 *
 * Blobs:
 *   INPUT  read   its halo is the padding
 *   OUTPUT write
 * Arrays:
 *   WEIGHT read   OIHW, I counted within a group
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   GROUP_INPUT_UNITS
 *   GROUP_OUTPUT_UNITS
 *   FILTER_HEIGHT
 *   FILTER_WIDTH
 *   DILATION_Y
 *   DILATION_X
 *   PAD_TOP
 *   PAD_LEFT
 *   LANES          positions in a vector
 *   BLOCK_VECTORS  vectors a work-item
 *   BLOCK_UNITS    output units a work-item
 *   LOCAL_WIDTH    work-items side by side
 *   UNITS_FIRST    1: width and height are the other way round; LOCAL_WIDTH is 1
 * Tunables:
 *   MAXIMUM_LANES        cpu 16, gpu 1 of 1 2 4 8 16: most lanes
 *   MAXIMUM_VECTORS      cpu 4, gpu 4 of 1 2 3 4 5 6 8: most vectors a work-item
 *   MAXIMUM_UNITS        cpu 12, gpu 16 of 1 2 3 4 5 6 7 8 10 12 14 16 24 32: most units a work-item
 *   MAXIMUM_ACCUMULATORS cpu 24, gpu 32 of 8 12 16 20 24 26 28 32 48 64: most vectors of sums a work-item
 *   GROUP_WIDTH          cpu 1, gpu 64 of 1 32 64 128 256: LOCAL_WIDTH
 * Global:
 *   width   tiles of positions * LOCAL_WIDTH
 *   height  blocks of output units, group by group
 *   units   COUNT
 */
#include "blob.h"
#include "vector.h"
#include "convolution/epilogue.h"
#include "convolution/forward_taps.h"

#define SOURCE_LOAD VECTOR_LOAD
#define WEIGHT_UNIT_STRIDE (GROUP_INPUT_UNITS * FILTER_HEIGHT * FILTER_WIDTH)
#define WEIGHT_DEPTH_STRIDE (FILTER_HEIGHT * FILTER_WIDTH)
#define UNITS_DIVIDE (GROUP_OUTPUT_UNITS % BLOCK_UNITS == 0)
#include "convolution/direct.h"

#define BLOCKS ((GROUP_OUTPUT_UNITS + BLOCK_UNITS - 1) / BLOCK_UNITS)
#define POSITIONS ((OUTPUT_UNIT_HEIGHT - 1) * SOURCE_PITCH + OUTPUT_UNIT_WIDTH)
/* Whether all that is added to a cell, and the cell, lies at its position q. */
#define WHOLE_VECTORS                                           \
    (BIAS_MODE != 2 && OUTPUT_UNIT_MEMORY_WIDTH == SOURCE_PITCH \
     && (!HAS_RESIDUAL || RESIDUAL_UNIT_MEMORY_WIDTH == SOURCE_PITCH))

__kernel void convolution_forward_flat(READ_BLOB(input), WRITE_BLOB(output), EPILOGUE_BLOBS,
                                       READ_ARRAY(real_t, weight), EPILOGUE_ARRAYS, const int count)
{
    const int n = get_global_id(2);
    const int group = UNIT_BLOCK / BLOCKS;
    const int first = UNIT_BLOCK % BLOCKS * BLOCK_UNITS;
    const int units = min(BLOCK_UNITS, GROUP_OUTPUT_UNITS - first);
    const int start = (COLUMN_BLOCK * BLOCK_VECTORS * LOCAL_WIDTH + get_local_id(0)) * LANES;

    int positions[BLOCK_VECTORS];
    vector_t accumulators[BLOCK_UNITS][BLOCK_VECTORS];
#pragma unroll
    for (int v = 0; v < BLOCK_VECTORS; v++) {
        /* Vectors past the last position repeat it: what they load is in memory, and not stored. */
        positions[v] = min(start + v * LOCAL_WIDTH * LANES, POSITIONS - 1);
#pragma unroll
        for (int u = 0; u < BLOCK_UNITS; u++) {
            accumulators[u][v] = 0;
        }
    }
    const int unit = group * GROUP_OUTPUT_UNITS + first;
    accumulate_tile(accumulators, input + BLOB_INDEX(INPUT, n, group * GROUP_INPUT_UNITS, 0, 0), positions,
                    ARRAY(weight) + unit * WEIGHT_UNIT_STRIDE, units);

    /* NOTE: units inside: the other way round Intel's compiler makes the loops above 15 % slower. */
#pragma unroll
    for (int v = 0; v < BLOCK_VECTORS; v++) {
        const int q = start + v * LOCAL_WIDTH * LANES;
#pragma unroll
        for (int u = 0; u < BLOCK_UNITS; u++) {
            if (u >= units || q >= POSITIONS) {
                continue;
            }
            const unit_terms_t terms = UNIT_TERMS(unit + u);
            vector_t value = UNIT_EPILOGUE(accumulators[u][v], terms);
#if WHOLE_VECTORS
            if (q + LANES <= POSITIONS) {
#if HAS_RESIDUAL
                value += VECTOR_LOAD(residual + BLOB_INDEX(RESIDUAL, n, unit + u, 0, 0) + q);
#endif
                value = ACTIVATE(value);
#if SOURCE_PITCH > OUTPUT_UNIT_WIDTH
                value = VECTOR_KEEP(value, (q + VECTOR_LANE_NUMBERS) % SOURCE_PITCH < OUTPUT_UNIT_WIDTH);
#endif
                VECTOR_STORE(value, output + BLOB_INDEX(OUTPUT, n, unit + u, 0, 0) + q);
                continue;
            }
#endif
            real_t lanes[LANES];
            VECTOR_STORE(value, lanes);
            for (int lane = 0; lane < LANES; lane++) {
                const int y = (q + lane) / SOURCE_PITCH;
                const int x = (q + lane) % SOURCE_PITCH;
                if (y < OUTPUT_UNIT_HEIGHT && x < OUTPUT_UNIT_WIDTH) {
                    const real_t result = CELL_EPILOGUE(lanes[lane], n, unit + u, y, x);
                    output[BLOB_INDEX(OUTPUT, n, unit + u, y, x)] = ACTIVATE(result);
                }
            }
        }
    }
}
