/*
 * Convolution, forward, of blobs of cells, on processors: output = epilogue(sum over input units and taps of weight *
 * input). A vector is LANES units of one position. A block is BLOCK_VECTORS of them at RUN positions of a row: each weight
 * is loaded once for the block, and each number of the input is what all vectors of its position are multiplied by. The
 * last run of a row, and the last block of units, may overlap the one before: both compute the same.
 *
 * Blobs:
 *   OUTPUT write  cells or numbers
 *   INPUT  read   cells or numbers; its halo is the padding
 * Arrays:
 *   PACKED read   (vectors of units, DEPTH / SOURCE_CELL, taps, SOURCE_CELL, LANES), and a row: pack_weight.cl
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   DEPTH          input units
 *   FILTER_HEIGHT
 *   FILTER_WIDTH
 *   STRIDE_Y
 *   STRIDE_X
 *   DILATION_Y
 *   DILATION_X
 *   PAD_TOP
 *   PAD_LEFT
 *   SOURCE_CELL    units of an element of the input
 *   LANES          units of a vector, a multiple of a cell's
 *   BLOCK_VECTORS  vectors of a block, at most as many as there are
 *   RUN            positions of a block, at most a row
 *   BLOCKS_AT_ONCE blocks that a work-item makes one after the other
 *   UNITS_FIRST    1: blocks of units follow one another, so that what a run reads stays in a cache for all of them; 0:
 *                  runs, so that the weights of a block of units do
 * Tunables:
 *   MAXIMUM_LANES        loops 16 of 8 16: most lanes
 *   MAXIMUM_VECTORS      loops 4 of 1 2 3 4: most vectors of a block
 *   MAXIMUM_RUN          loops 14 of 4 6 7 8 12 14 28: most positions of a block
 *   MAXIMUM_ACCUMULATORS loops 28 of 8 12 20 24 28: most vectors of sums
 *   TARGET_ITEMS         loops 2 of 1 2 4 8 32: work-items a compute unit, if there are so many blocks
 * Global:
 *   width  blocks / BLOCKS_AT_ONCE, in the order of UNITS_FIRST
 *   units  COUNT
 */
#include "blob.h"
#include "vector.h"
#include "convolution/epilogue.h"
#include "convolution/unit_vectors.h"

#define OUTPUT_UNITS (OUTPUT_UNIT_COUNT * CELL_UNITS)
#define UNIT_VECTORS ((OUTPUT_UNITS + LANES - 1) / LANES)
#define UNIT_BLOCKS ((UNIT_VECTORS + BLOCK_VECTORS - 1) / BLOCK_VECTORS)
#define RUNS ((OUTPUT_UNIT_WIDTH + RUN - 1) / RUN)
#define TILES (OUTPUT_UNIT_HEIGHT * RUNS)
/* Elements of a line of a cache. */
#define LINE(type) (64 / (int)sizeof(type))
#define PACKED_ROWS (FILTER_HEIGHT * FILTER_WIDTH * DEPTH + 1)

__kernel void convolution_forward_rows(WRITE_BLOB(output), READ_BLOB(input), EPILOGUE_BLOBS,
                                       READ_ARRAY(real_t, packed), EPILOGUE_ARRAYS, const int count)
{
    const int n = get_global_id(2);
    const int begin = get_global_id(0) * BLOCKS_AT_ONCE;
    const int end = min(begin + BLOCKS_AT_ONCE, TILES * UNIT_BLOCKS);
    for (int block = begin; block < end; block++) {
        const int unit_block = UNITS_FIRST ? block % UNIT_BLOCKS : block / TILES;
        const int tile = UNITS_FIRST ? block / UNIT_BLOCKS : block % TILES;
        const int vector = min(unit_block * BLOCK_VECTORS, UNIT_VECTORS - BLOCK_VECTORS);
        const int y = tile / RUNS;
        const int x = min(tile % RUNS * RUN, OUTPUT_UNIT_WIDTH - RUN);
        vector_t sums[BLOCK_VECTORS][RUN];
        clear_sums(sums);
        /* Processors do not foresee writes that go from plane to plane, nor reads of many planes. */
#pragma unroll
        for (int e = 0; e < BLOCK_VECTORS * VECTOR_ELEMENTS; e++) {
#pragma unroll
            for (int i = 0; i < RUN; i += LINE(output_t)) {
                PREFETCH_TO_WRITE(output
                                  + BLOB_INDEX(OUTPUT, n,
                                               min(vector * VECTOR_ELEMENTS + e, OUTPUT_UNIT_COUNT - 1), y,
                                               x + i));
            }
        }
        __global const real_t *factors = ARRAY(packed) + (size_t)vector * (PACKED_ROWS * LANES);
        for (int c = 0; c < DEPTH / SOURCE_CELL; c++) {
            for (int a = 0; a < FILTER_HEIGHT; a++) {
                for (int b = 0; b < FILTER_WIDTH; b++) {
                    __global const real_t *from =
                        (__global const real_t *)(input
                                                  + BLOB_INDEX(INPUT, n, c,
                                                               y * STRIDE_Y - PAD_TOP + a * DILATION_Y,
                                                               x * STRIDE_X - PAD_LEFT + b * DILATION_X));
                    if (a == FILTER_HEIGHT - 1 && b == 0) {
#pragma unroll
                        for (int i = RUN * STRIDE_X; i < 2 * RUN * STRIDE_X; i += LINE(input_t)) {
                            PREFETCH(from + i * SOURCE_CELL);
                        }
                    }
                    add_products(sums, from, STRIDE_X, factors, PACKED_ROWS * LANES);
                    factors += SOURCE_CELL * LANES;
                }
            }
        }
#pragma unroll
        for (int v = 0; v < BLOCK_VECTORS; v++) {
#pragma unroll
            for (int e = 0; e < VECTOR_ELEMENTS; e++) {
                const int z = (vector + v) * VECTOR_ELEMENTS + e;
                if (OUTPUT_UNITS % LANES == 0 || z < OUTPUT_UNIT_COUNT) {
                    const number_t bias = UNIT_BIAS(z);
                    __global output_t *to = output + BLOB_INDEX(OUTPUT, n, z, y, x);
#pragma unroll
                    for (int i = 0; i < RUN; i++) {
                        const number_t value =
                            CELL_EPILOGUE(BIASED(element_of(sums[v][i], e), bias, z), n, z, y, x + i);
                        WRITE_VALUE(to, i, FINISHED(value, z));
                    }
                }
            }
        }
    }
}
