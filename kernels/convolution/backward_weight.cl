/*
 * Convolution, backward, gradient of the weights: gradient[o][k] = sum over samples and positions of
 * delta[o] * input at the shift of column k = (input unit, filter row, filter column).
 * A tile of BLOCK_UNITS x BLOCK_COLUMNS sums; lanes run over positions.
 * FLAT planes (one pitch): a plane is one long row, and deltas are 0 between rows. Else a row at a time. With a stride
 * the input is split into its phases (convolution/input_phases.h).
 * Splits, of whole pieces of rows, go to a partial sum each; gradient/reduce.cl adds them in a fixed order.
 *
 * Blobs:
 *   INPUT        read  its halo is the padding; with a stride its phases, PHASES_Y x PHASES_X a unit
 *   OUTPUT_DELTA read
 * Arrays:
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
 *   PHASES_Y
 *   PHASES_X
 *   DILATION_Y
 *   DILATION_X
 *   PAD_TOP
 *   PAD_LEFT
 *   FLAT            1: a plane is one long row
 *   PIECE           positions of a row that stay together, a multiple of LANES or the whole row
 *   SPLITS
 *   LANES           positions in a vector
 *   BLOCK_COLUMNS   columns a work-item
 *   BLOCK_UNITS     output units a work-item
 *   UNITS_FIRST     1: width and height are the other way round
 * Tunables:
 *   MAXIMUM_LANES        loops 16 of 1 2 4 8 16: most lanes
 *   MAXIMUM_COLUMNS      loops 6 of 1 2 3 4 5 6 8 9 10 12 16: most columns a work-item
 *   MAXIMUM_UNITS        loops 6 of 1 2 3 4 5 6 8 10 12 16: most units a work-item
 *   MAXIMUM_ACCUMULATORS loops 24 of 8 12 16 20 24 28 32 48 64: most vectors of sums a work-item
 *   PIECE_POSITIONS      loops 512 of 16 128 256 512 1024 2048 4096: most positions of a piece
 *   TARGET_GROUPS        loops 32 of 1 2 4 8 16 32 64 128 256 512 1024 2048 4096: groups worth splitting for
 *   MAXIMUM_SPLITS       loops 64 of 1 2 4 8 16 32 64 128: most splits
 * Global:
 *   width   blocks of columns
 *   height  blocks of output units, group by group
 *   units   SPLITS
 */
#include "blob.h"
#include "vector.h"
#include "convolution/input_phases.h"
#include "convolution/order.h"

#define PHASES (PHASES_Y * PHASES_X)
#define COLUMNS (GROUP_INPUT_UNITS * FILTER_HEIGHT * FILTER_WIDTH)
#define BLOCKS ((GROUP_OUTPUT_UNITS + BLOCK_UNITS - 1) / BLOCK_UNITS)
#if FLAT
#define ROWS 1
#define ROW_POSITIONS \
    ((OUTPUT_DELTA_UNIT_HEIGHT - 1) * OUTPUT_DELTA_UNIT_MEMORY_WIDTH + OUTPUT_DELTA_UNIT_WIDTH)
#else
#define ROWS OUTPUT_DELTA_UNIT_HEIGHT
#define ROW_POSITIONS OUTPUT_DELTA_UNIT_WIDTH
#endif
#define WHOLE (ROW_POSITIONS / LANES * LANES)
#define PIECES ((ROW_POSITIONS + PIECE - 1) / PIECE)

__kernel void convolution_backward_weight(READ_BLOB(input), READ_BLOB(output_delta),
                                          WRITE_ARRAY(real_t, partials), const int count)
{
    const int split = get_global_id(2);
    const int group = UNIT_BLOCK / BLOCKS;
    const int first = UNIT_BLOCK % BLOCKS * BLOCK_UNITS;
    const int column = COLUMN_BLOCK * BLOCK_COLUMNS;

    int shifts[BLOCK_COLUMNS];
    int planes[BLOCK_UNITS];
    vector_t sums[BLOCK_UNITS][BLOCK_COLUMNS];
#pragma unroll
    for (int c = 0; c < BLOCK_COLUMNS; c++) {
        /* Columns and units past the last one repeat it; their sums are not stored. */
        const int k = min(column + c, COLUMNS - 1);
        const int row = k / FILTER_WIDTH % FILTER_HEIGHT * DILATION_Y;
        const int column_of_filter = k % FILTER_WIDTH * DILATION_X;
        shifts[c] = k / (FILTER_HEIGHT * FILTER_WIDTH) * PHASES * INPUT_UNIT_MEMORY_ELEMENTS
                    + PHASE_ROW(row, INPUT_UNIT_MEMORY_ELEMENTS, INPUT_UNIT_MEMORY_WIDTH)
                    + PHASE_COLUMN(column_of_filter, INPUT_UNIT_MEMORY_ELEMENTS)
                    - PAD_TOP * INPUT_UNIT_MEMORY_WIDTH - PAD_LEFT;
    }
#pragma unroll
    for (int u = 0; u < BLOCK_UNITS; u++) {
        planes[u] = min(first + u, GROUP_OUTPUT_UNITS - 1) * OUTPUT_DELTA_UNIT_MEMORY_ELEMENTS;
#pragma unroll
        for (int c = 0; c < BLOCK_COLUMNS; c++) {
            sums[u][c] = 0;
        }
    }

    const long pieces = (long)count * ROWS * PIECES;
    const int last_piece = (int)(pieces * (split + 1) / SPLITS);
    for (int piece = (int)(pieces * split / SPLITS); piece < last_piece; piece++) {
        const int start = piece % PIECES * PIECE;
        const int end = min(start + PIECE, WHOLE);
        const int y = piece / PIECES % ROWS;
        const int n = piece / (PIECES * ROWS);
        __global const input_t *values =
            input + BLOB_INDEX(INPUT, n, group * GROUP_INPUT_UNITS * PHASES, y, 0);
        __global const output_delta_t *deltas =
            output_delta + BLOB_INDEX(OUTPUT_DELTA, n, group * GROUP_OUTPUT_UNITS, y, 0);
        for (int q = start; q < end; q += LANES) {
            vector_t delta[BLOCK_UNITS];
#pragma unroll
            for (int u = 0; u < BLOCK_UNITS; u++) {
                delta[u] = VECTOR_LOAD(deltas + planes[u] + q);
            }
#pragma unroll
            for (int c = 0; c < BLOCK_COLUMNS; c++) {
                const vector_t value = VECTOR_LOAD(values + shifts[c] + q);
#pragma unroll
                for (int u = 0; u < BLOCK_UNITS; u++) {
                    sums[u][c] = MULTIPLY_ADD(delta[u], value, sums[u][c]);
                }
            }
        }
#if WHOLE < ROW_POSITIONS
        /* The last vector of a row: lanes past the end may hold slack, so both factors are cut off. */
        if (start + PIECE >= ROW_POSITIONS) {
            const index_vector_t keep = VECTOR_LANE_NUMBERS < ROW_POSITIONS - WHOLE;
            vector_t delta[BLOCK_UNITS];
#pragma unroll
            for (int u = 0; u < BLOCK_UNITS; u++) {
                delta[u] = VECTOR_KEEP(VECTOR_LOAD(deltas + planes[u] + WHOLE), keep);
            }
#pragma unroll
            for (int c = 0; c < BLOCK_COLUMNS; c++) {
                const vector_t value = VECTOR_KEEP(VECTOR_LOAD(values + shifts[c] + WHOLE), keep);
#pragma unroll
                for (int u = 0; u < BLOCK_UNITS; u++) {
                    sums[u][c] = MULTIPLY_ADD(delta[u], value, sums[u][c]);
                }
            }
        }
#endif
    }

    __global real_t *results = ARRAY(partials)
                               + ((size_t)split * GROUPS + group) * GROUP_OUTPUT_UNITS * COLUMNS
                               + first * COLUMNS + column;
#pragma unroll
    for (int u = 0; u < BLOCK_UNITS; u++) {
#pragma unroll
        for (int c = 0; c < BLOCK_COLUMNS; c++) {
            if (first + u < GROUP_OUTPUT_UNITS && column + c < COLUMNS) {
                results[u * COLUMNS + c] = VECTOR_SUM(sums[u][c]);
            }
        }
    }
}
