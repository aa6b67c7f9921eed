/*
 * Convolution, forward, on flat planes: output = epilogue(sum over input units and taps of weight * input).
 * Position q of a plane is a cell of one long row at the input's pitch: each tap is a contiguous load at a fixed shift
 * (docs/memory_layout.md), with a stride in one of the input's phases (convolution/input_phases.h). What is computed between
 * two rows is replaced by 0. Where the output has another pitch, rows may begin vectors of their own. The last vector of a
 * plane, or of such a row, may overlap the one before: both compute the same.
 *
 * Blobs:
 *   INPUT  read   its halo is the padding; or its phases, PHASES_Y x PHASES_X a unit
 *   OUTPUT write
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
 *   PHASES_Y
 *   PHASES_X
 *   DILATION_Y
 *   DILATION_X
 *   PAD_TOP
 *   PAD_LEFT
 *   FLAT           1: a plane is one long row; 0: each row of the output begins a vector
 *   LANES          positions in a vector
 *   BLOCK_VECTORS  vectors whose sums are in registers
 *   BLOCK_UNITS    output units a work-item
 *   BLOCKS_AT_ONCE blocks of sums that a work-item makes one after the other
 *   UNITS_FIRST    1: blocks of units follow one another, so that what a block of positions reads stays in a cache for all
 *                  of them; 0: blocks of positions, so that what a block of units reads does
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
#define source_t input_t
/* While blocks of units take what is near, each brings a line of what the next block of positions reads. */
#define ASKS_NEXT (UNITS_FIRST && FILTER_HEIGHT * FILTER_WIDTH == 1)
#define LINE (64 / (int)sizeof(input_t))
#include "convolution/direct.h"

#define BLOCKS ((GROUP_OUTPUT_UNITS + BLOCK_UNITS - 1) / BLOCK_UNITS)
/* Vectors, the position at which each begins, and whether it lies within the plane or row. */
#define POSITIONS ((OUTPUT_UNIT_HEIGHT - 1) * SOURCE_PITCH + OUTPUT_UNIT_WIDTH)
#if FLAT
#define VECTORS ((POSITIONS + LANES - 1) / LANES)
#define OVERLAP (POSITIONS >= LANES)
#define POSITION(vector) (OVERLAP ? min((vector) * LANES, POSITIONS - LANES) : (vector) * LANES)
#else
#define ROW_VECTORS ((OUTPUT_UNIT_WIDTH + LANES - 1) / LANES)
#define VECTORS (OUTPUT_UNIT_HEIGHT * ROW_VECTORS)
#define OVERLAP (OUTPUT_UNIT_WIDTH >= LANES)
#define COLUMN(vector) ((vector) % ROW_VECTORS * LANES)
#define POSITION(vector)                   \
    ((vector) / ROW_VECTORS * SOURCE_PITCH \
     + (OVERLAP ? min(COLUMN(vector), OUTPUT_UNIT_WIDTH - LANES) : COLUMN(vector)))
#endif
/* The row and the column of a position's result. */
#define RESULT_Y(position) ((position) / SOURCE_PITCH)
#define RESULT_X(position) ((position) % SOURCE_PITCH)
#define TILES ((VECTORS + BLOCK_VECTORS - 1) / BLOCK_VECTORS)
/* Whether all that is added to the cells of a vector, and these cells, lie as its positions do. */
#define WHOLE_VECTORS                                 \
    (OVERLAP && BIAS_MODE != 2                        \
     && (!FLAT                                        \
         || (OUTPUT_UNIT_MEMORY_WIDTH == SOURCE_PITCH \
             && (!HAS_RESIDUAL || HAS_RESIDUAL == 2 || RESIDUAL_UNIT_MEMORY_WIDTH == SOURCE_PITCH))))
/* Which lanes of a vector that begins in column x are cells, and not between two rows, or after the second. */
#if SOURCE_PITCH >= LANES
#define ARE_CELLS(x)                                 \
    (((x) + VECTOR_LANE_NUMBERS < OUTPUT_UNIT_WIDTH) \
     | (((x) + VECTOR_LANE_NUMBERS >= SOURCE_PITCH)  \
        & ((x) + VECTOR_LANE_NUMBERS < SOURCE_PITCH + OUTPUT_UNIT_WIDTH)))
#else
#define ARE_CELLS(x) (((x) + VECTOR_LANE_NUMBERS) % SOURCE_PITCH < OUTPUT_UNIT_WIDTH)
#endif

__kernel void convolution_forward_flat(READ_BLOB(input), WRITE_BLOB(output), EPILOGUE_BLOBS,
                                       READ_ARRAY(weight_t, weight), EPILOGUE_ARRAYS, const int count)
{
    const int n = get_global_id(2);
    const int begin = get_global_id(0) * BLOCKS_AT_ONCE;
    const int end = min(begin + BLOCKS_AT_ONCE, TILES * GROUPS * BLOCKS);
    for (int block = begin; block < end; block++) {
        const int unit_block = UNITS_FIRST ? block % (GROUPS * BLOCKS) : block / TILES;
        const int tile = UNITS_FIRST ? block / (GROUPS * BLOCKS) : block % TILES;
        const int group = unit_block / BLOCKS;
        const int first = unit_block % BLOCKS * BLOCK_UNITS;
        const int units = min(BLOCK_UNITS, GROUP_OUTPUT_UNITS - first);
        const int unit = group * GROUP_OUTPUT_UNITS + first;
        const int start = tile * BLOCK_VECTORS;
        int positions[BLOCK_VECTORS];
        vector_t accumulators[BLOCK_UNITS][BLOCK_VECTORS];
#pragma unroll
        for (int v = 0; v < BLOCK_VECTORS; v++) {
            /* Vectors past the last one repeat it. */
            positions[v] = POSITION(min(start + v, VECTORS - 1));
#pragma unroll
            for (int u = 0; u < BLOCK_UNITS; u++) {
                accumulators[u][v] = 0;
            }
        }
#if WHOLE_VECTORS
        /* Results go from plane to plane: see convolution/direct.h. */
#pragma unroll
        for (int v = 0; v < BLOCK_VECTORS; v++) {
            const int y = RESULT_Y(positions[v]);
            const int x = RESULT_X(positions[v]);
#pragma unroll
            for (int u = 0; u < BLOCK_UNITS; u++) {
                if (UNITS_DIVIDE || u < units) {
                    PREFETCH_TO_WRITE(output + BLOB_INDEX(OUTPUT, n, unit + u, y, x));
                }
            }
        }
#endif
        const int line = unit_block % BLOCKS * LINE;
        const int next = tile + 1 < TILES && line <= BLOCK_VECTORS * LANES ? BLOCK_VECTORS * LANES + line : 0;
        accumulate_tile(accumulators, input + BLOB_INDEX(INPUT, n, group * GROUP_INPUT_UNITS * PHASES, 0, 0),
                        positions, ARRAY(weight) + unit * WEIGHT_UNIT_STRIDE, units, next);

#if WHOLE_VECTORS
#pragma unroll
        for (int v = 0; v < BLOCK_VECTORS; v++) {
            const int y = RESULT_Y(positions[v]);
            const int x = RESULT_X(positions[v]);
#if FLAT && SOURCE_PITCH > OUTPUT_UNIT_WIDTH
            const index_vector_t are_cells = ARE_CELLS(x);
#endif
#pragma unroll
            for (int u = 0; u < BLOCK_UNITS; u++) {
                if (UNITS_DIVIDE || u < units) {
                    vector_t value = BIASED(accumulators[u][v], UNIT_BIAS(unit + u), unit + u);
#if HAS_RESIDUAL
                    value = JOINED(value, CELL_TERMS(n, unit + u, y, x), unit + u);
#endif
                    value = FINISHED(value, unit + u);
#if FLAT && SOURCE_PITCH > OUTPUT_UNIT_WIDTH
                    value = VECTOR_KEEP(value, are_cells);
#endif
                    VECTOR_STORE(value, output + BLOB_INDEX(OUTPUT, n, unit + u, y, x));
                }
            }
        }
#else
        real_t results[BLOCK_VECTORS][BLOCK_UNITS][LANES];
#pragma unroll
        for (int v = 0; v < BLOCK_VECTORS; v++) {
#pragma unroll
            for (int u = 0; u < BLOCK_UNITS; u++) {
                VECTOR_STORE(accumulators[u][v], results[v][u]);
            }
        }
        for (int v = 0; v < BLOCK_VECTORS; v++) {
            int rows[LANES], columns[LANES], places[LANES];
            for (int lane = 0; lane < LANES; lane++) {
                /* Of a cell among the output's rows, -1 between them. */
                const int y = RESULT_Y(positions[v] + lane);
                const int x = RESULT_X(positions[v] + lane);
                const bool is_cell = y < OUTPUT_UNIT_HEIGHT && x < OUTPUT_UNIT_WIDTH;
                rows[lane] = is_cell ? y : 0;
                columns[lane] = is_cell ? x : 0;
                places[lane] = is_cell ? y * OUTPUT_UNIT_MEMORY_WIDTH + x : -1;
            }
            for (int u = 0; u < units; u++) {
                vector_t value = BIASED(VECTOR_LOAD(results[v][u]), UNIT_BIAS(unit + u), unit + u);
                __global output_t *to = output + BLOB_INDEX(OUTPUT, n, unit + u, 0, 0);
                real_t lanes[LANES];
#if HAS_CELL_TERM
                for (int lane = 0; lane < LANES; lane++) {
                    lanes[lane] = CELL_TERM(n, unit + u, rows[lane], columns[lane]);
                }
                value = JOINED(value, VECTOR_LOAD(lanes), unit + u);
#endif
                VECTOR_STORE(FINISHED(value, unit + u), lanes);
                for (int lane = 0; lane < LANES; lane++) {
                    if (places[lane] >= 0) {
                        WRITE_VALUE(to, places[lane], lanes[lane]);
                    }
                }
            }
        }
#endif
    }
}
