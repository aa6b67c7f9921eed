/*
 * Convolution, forward, of units that are apart (depthwise): output = epilogue(sum over taps of weight * input), each
 * output unit from one input unit. A work-item makes some rows of a few planes, BLOCK_ROWS at a time, whose sums share
 * what they read; the last vector of a row, and the last block of rows, may overlap the one before.
 *
 * Blobs:
 *   INPUT  read   its halo is the padding
 *   OUTPUT write
 * Arrays:
 *   WEIGHT read   OIHW, with one I
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   GROUP_INPUT_UNITS   1
 *   GROUP_OUTPUT_UNITS  output units from an input unit
 *   FILTER_HEIGHT
 *   FILTER_WIDTH
 *   STRIDE_Y
 *   STRIDE_X
 *   DILATION_Y
 *   DILATION_X
 *   PAD_TOP
 *   PAD_LEFT
 *   LANES         columns in a vector, at most a row
 *   BLOCK_ROWS    rows at a time
 *   ROWS          rows of a work-item, BLOCK_ROWS or more
 *   UNITS_AT_ONCE output units of a work-item, of which there are a multiple
 *   GLOBAL_UNITS  output units / UNITS_AT_ONCE
 * Tunables:
 *   MAXIMUM_LANES loops 16 of 1 2 4 8 16: most lanes
 *   MAXIMUM_ROWS  loops 4 of 1 2 3 4 6 8: most rows at a time
 * Global:
 *   height  parts of a plane
 *   units   output units / UNITS_AT_ONCE * COUNT
 */
#include "blob.h"
#define STRIDED_TYPE input_t
#include "vector.h"
#include "convolution/epilogue.h"

/* Values of a line of a cache, and the input's rows that BLOCK_ROWS rows of the output read. */
#define CACHE_LINE 16
#define SPAN ((BLOCK_ROWS - 1) * STRIDE_Y + (FILTER_HEIGHT - 1) * DILATION_Y + 1)
#if STRIDE_X == 2 && DILATION_X == 1 && LANES > 1
/* NOTE: a tap and the next one read the same vectors, of which each takes every second value. */
#define ODD_VALUES(pointer) ((vector_t)(VECTOR_LOAD(pointer).odd, VECTOR_LOAD((pointer) + LANES).odd))
#define TAP(row, b) ((b) % 2 ? ODD_VALUES((row) + (b) - 1) : VECTOR_LOAD_STRIDED((row) + (b)))
#else
#define TAP(row, b) VECTOR_LOAD_STRIDED((row) + (b) * DILATION_X)
#endif

__kernel void convolution_forward_depthwise(READ_BLOB(input), WRITE_BLOB(output), EPILOGUE_BLOBS,
                                            READ_ARRAY(weight_t, weight), EPILOGUE_ARRAYS, const int count)
{
    const int n = get_global_id(2) / GLOBAL_UNITS;
    const int first = get_global_id(1) * ROWS;
    const int end = min(first + ROWS, OUTPUT_UNIT_HEIGHT);
    const int first_unit = get_global_id(2) % GLOBAL_UNITS * UNITS_AT_ONCE;
    for (int unit = first_unit; unit < first_unit + UNITS_AT_ONCE; unit++) {
        __global const weight_t *factors =
            ARRAY(weight) + unit * (GROUP_INPUT_UNITS * FILTER_HEIGHT * FILTER_WIDTH);
        const real_t bias = UNIT_BIAS(unit);
        for (int row = first; row < end; row += BLOCK_ROWS) {
            const int y = min(row, OUTPUT_UNIT_HEIGHT - BLOCK_ROWS);
            for (int column = 0; column < OUTPUT_UNIT_WIDTH; column += LANES) {
                const int x = min(column, OUTPUT_UNIT_WIDTH - LANES);
                __global const input_t *from = input
                                               + BLOB_INDEX(INPUT, n, unit / GROUP_OUTPUT_UNITS,
                                                            y * STRIDE_Y - PAD_TOP, x * STRIDE_X - PAD_LEFT);
                /* What the next block reads and writes, or the next plane's first one: processors do not see it coming. */
#pragma unroll
                for (int s = SPAN; s < SPAN + BLOCK_ROWS * STRIDE_Y; s++) {
#pragma unroll
                    for (int b = 0; b < LANES * STRIDE_X; b += CACHE_LINE) {
                        PREFETCH(from + s * INPUT_UNIT_MEMORY_WIDTH + b);
                    }
                }
#pragma unroll
                for (int r = BLOCK_ROWS; r < 2 * BLOCK_ROWS; r++) {
                    PREFETCH_TO_WRITE(output + BLOB_INDEX(OUTPUT, n, unit, y + r, x));
                }
                vector_t sums[BLOCK_ROWS];
#pragma unroll
                for (int r = 0; r < BLOCK_ROWS; r++) {
                    sums[r] = 0;
                }
#pragma unroll
                for (int s = 0; s < SPAN; s++) {
#pragma unroll
                    for (int b = 0; b < FILTER_WIDTH; b++) {
                        const vector_t value = TAP(from + s * INPUT_UNIT_MEMORY_WIDTH, b);
#pragma unroll
                        for (int r = 0; r < BLOCK_ROWS; r++) {
                            /* Tap a of row r reads row r * STRIDE_Y + a * DILATION_Y. */
                            const int a = (s - r * STRIDE_Y) / DILATION_Y;
                            if (a * DILATION_Y == s - r * STRIDE_Y && a >= 0 && a < FILTER_HEIGHT) {
                                sums[r] =
                                    MULTIPLY_ADD(READ_VALUE(factors, a * FILTER_WIDTH + b), value, sums[r]);
                            }
                        }
                    }
                }
#pragma unroll
                for (int r = 0; r < BLOCK_ROWS; r++) {
                    vector_t result = BIASED(sums[r], bias, unit);
#if HAS_CELL_TERM
                    result = JOINED(result, CELL_TERMS(n, unit, y + r, x), unit);
#endif
                    VECTOR_STORE(FINISHED(result, unit), output + BLOB_INDEX(OUTPUT, n, unit, y + r, x));
                }
            }
        }
    }
}
