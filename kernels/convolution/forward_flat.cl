/*
 * Convolution, forward, on flat planes: output = epilogue(sum over input units and taps of weight * input).
 * Position q of a plane is a cell of one long row at the input's pitch: each tap is a contiguous load at a fixed shift
 * (docs/memory_layout.md), with a stride in one of the input's phases (convolution/input_phases.h). What is computed
 * between two rows is replaced by 0. Where the output has another pitch, rows may begin vectors of their own.
 *
 * Blobs:
 *   INPUT  read   its halo is the padding; with a stride its phases, PHASES_Y x PHASES_X a unit
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
 *   STRIDE_Y
 *   STRIDE_X
 *   PHASES_Y
 *   PHASES_X
 *   DILATION_Y
 *   DILATION_X
 *   PAD_TOP
 *   PAD_LEFT
 *   FLAT           1: a plane is one long row; 0: each row of the output begins a vector
 *   LANES          positions in a vector
 *   BLOCK_VECTORS  vectors a work-item
 *   BLOCK_UNITS    output units a work-item
 *   UNITS_FIRST    1: width and height are the other way round
 * Tunables:
 *   MAXIMUM_LANES        loops 16 of 1 2 4 8 16: most lanes
 *   MAXIMUM_VECTORS      loops 4 of 1 2 3 4 5 6 8: most vectors a work-item
 *   MAXIMUM_UNITS        loops 12 of 1 2 3 4 5 6 7 8 10 12 14 16 24 32: most units a work-item
 *   MAXIMUM_ACCUMULATORS loops 24 of 8 12 16 20 24 26 28 32 48 64: most vectors of sums a work-item
 * Global:
 *   width   tiles of positions
 *   height  blocks of output units, group by group
 *   units   COUNT
 */
#include "blob.h"
#include "vector.h"
#include "convolution/epilogue.h"
#include "convolution/forward_taps.h"
#include "convolution/input_phases.h"

#define PHASES (PHASES_Y * PHASES_X)
#define SOURCE_STEP (PHASES * SOURCE_PLANE)
#define ROW_SHIFT(a) (PHASE_ROW((a) * DILATION_Y, SOURCE_PLANE, SOURCE_PITCH) - PAD_TOP * SOURCE_PITCH)
#define COLUMN_SHIFT(b) (PHASE_COLUMN((b) * DILATION_X, SOURCE_PLANE) - PAD_LEFT)
#define WEIGHT_UNIT_STRIDE (GROUP_INPUT_UNITS * FILTER_HEIGHT * FILTER_WIDTH)
#define WEIGHT_DEPTH_STRIDE (FILTER_HEIGHT * FILTER_WIDTH)
#define UNITS_DIVIDE (GROUP_OUTPUT_UNITS % BLOCK_UNITS == 0)
#include "convolution/direct.h"

#define BLOCKS ((GROUP_OUTPUT_UNITS + BLOCK_UNITS - 1) / BLOCK_UNITS)
/* Vectors, and the position at which each begins. */
#if FLAT
#define VECTORS ((POSITIONS + LANES - 1) / LANES)
#define POSITION(vector) ((vector) * LANES)
#else
#define ROW_VECTORS ((OUTPUT_UNIT_WIDTH + LANES - 1) / LANES)
#define VECTORS (OUTPUT_UNIT_HEIGHT * ROW_VECTORS)
#define POSITION(vector) ((vector) / ROW_VECTORS * SOURCE_PITCH + (vector) % ROW_VECTORS * LANES)
#endif
#define POSITIONS ((OUTPUT_UNIT_HEIGHT - 1) * SOURCE_PITCH + OUTPUT_UNIT_WIDTH)
/* Whether all that is added to a cell, and the cell, lies at its position q. */
#define WHOLE_VECTORS                                                   \
    (FLAT && BIAS_MODE != 2 && OUTPUT_UNIT_MEMORY_WIDTH == SOURCE_PITCH \
     && (!HAS_RESIDUAL || RESIDUAL_UNIT_MEMORY_WIDTH == SOURCE_PITCH))

__kernel OF_VECTORS void convolution_forward_flat(READ_BLOB(input), WRITE_BLOB(output), EPILOGUE_BLOBS,
                                                  READ_ARRAY(real_t, weight), EPILOGUE_ARRAYS,
                                                  const int count)
{
    const int n = get_global_id(2);
    const int group = UNIT_BLOCK / BLOCKS;
    const int first = UNIT_BLOCK % BLOCKS * BLOCK_UNITS;
    const int units = min(BLOCK_UNITS, GROUP_OUTPUT_UNITS - first);
    const int start = COLUMN_BLOCK * BLOCK_VECTORS;

    int positions[BLOCK_VECTORS];
    vector_t accumulators[BLOCK_UNITS][BLOCK_VECTORS];
#pragma unroll
    for (int v = 0; v < BLOCK_VECTORS; v++) {
        /* Vectors past the last one repeat it, and are not stored. */
        positions[v] = POSITION(min(start + v, VECTORS - 1));
#pragma unroll
        for (int u = 0; u < BLOCK_UNITS; u++) {
            accumulators[u][v] = 0;
        }
    }
    const int unit = group * GROUP_OUTPUT_UNITS + first;
    accumulate_tile(accumulators, input + BLOB_INDEX(INPUT, n, group * GROUP_INPUT_UNITS * PHASES, 0, 0),
                    positions, ARRAY(weight) + unit * WEIGHT_UNIT_STRIDE, units);

    /* NOTE: what follows works on memory, since Intel's compiler makes the loops above slower for it otherwise. */
    real_t results[BLOCK_VECTORS][BLOCK_UNITS][LANES];
#pragma unroll
    for (int v = 0; v < BLOCK_VECTORS; v++) {
#pragma unroll
        for (int u = 0; u < BLOCK_UNITS; u++) {
            VECTOR_STORE(accumulators[u][v], results[v][u]);
        }
    }
    for (int v = 0; v < BLOCK_VECTORS; v++) {
        const int vector = start + v;
        if (vector >= VECTORS) {
            break;
        }
        const int q = POSITION(vector);
        const int y = q / SOURCE_PITCH;
        const int x = q % SOURCE_PITCH;
#if WHOLE_VECTORS
        const bool is_whole = q + LANES <= POSITIONS;
#else
        const bool is_whole = BIAS_MODE != 2 && x + LANES <= OUTPUT_UNIT_WIDTH;
#endif
        int places[LANES];
        for (int lane = 0; lane < LANES && !is_whole; lane++) {
            /* Of a cell among the output's rows, -1 between them. */
            const int row = FLAT ? (q + lane) / SOURCE_PITCH : y;
            const int column = FLAT ? (q + lane) % SOURCE_PITCH : x + lane;
            const bool is_cell = row < OUTPUT_UNIT_HEIGHT && column < OUTPUT_UNIT_WIDTH;
            places[lane] = is_cell ? row * OUTPUT_UNIT_MEMORY_WIDTH + column : -1;
        }
        for (int u = 0; u < units; u++) {
            const real_t bias = UNIT_BIAS(unit + u);
            __global real_t *to = output + BLOB_INDEX(OUTPUT, n, unit + u, 0, 0);
            vector_t value = PLUS_BIAS(VECTOR_LOAD(results[v][u]), bias);
            if (is_whole) {
#if HAS_RESIDUAL
                value += VECTOR_LOAD(residual + BLOB_INDEX(RESIDUAL, n, unit + u, y, x));
#endif
                value = ACTIVATE(value);
#if WHOLE_VECTORS && SOURCE_PITCH > OUTPUT_UNIT_WIDTH
                value = VECTOR_KEEP(value, (q + VECTOR_LANE_NUMBERS) % SOURCE_PITCH < OUTPUT_UNIT_WIDTH);
#endif
                VECTOR_STORE(value, to + y * OUTPUT_UNIT_MEMORY_WIDTH + x);
                continue;
            }
#if HAS_CELL_TERM
            real_t terms_of_cells[LANES];
            for (int lane = 0; lane < LANES; lane++) {
                const int row = min(FLAT ? (q + lane) / SOURCE_PITCH : y, OUTPUT_UNIT_HEIGHT - 1);
                const int column = min(FLAT ? (q + lane) % SOURCE_PITCH : x + lane, OUTPUT_UNIT_WIDTH - 1);
                terms_of_cells[lane] = CELL_TERM(n, unit + u, row, column);
            }
            value += VECTOR_LOAD(terms_of_cells);
#endif
            value = ACTIVATE(value);
            real_t lanes[LANES];
            VECTOR_STORE(value, lanes);
            for (int lane = 0; lane < LANES; lane++) {
                if (places[lane] >= 0) {
                    to[places[lane]] = lanes[lane];
                }
            }
        }
    }
}
