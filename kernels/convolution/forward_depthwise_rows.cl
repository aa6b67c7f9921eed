/*
 * Convolution, forward, of units that are apart (depthwise), of blobs of cells, on processors: output = epilogue(sum over
 * taps of weight * input). A work-item makes some rows of a few cells of units, RUN vectors at a time, of one or two
 * positions; the last run of a row may overlap the one before: both compute the same.
 *
 * Blobs:
 *   OUTPUT write  cells
 *   INPUT  read   cells; its halo is the padding
 * Arrays:
 *   PACKED read   (cells, TAPS + 1, CELL_UNITS): pack_weight.cl
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   FILTER_HEIGHT
 *   FILTER_WIDTH
 *   STRIDE_Y
 *   STRIDE_X
 *   DILATION_Y
 *   DILATION_X
 *   PAD_TOP
 *   PAD_LEFT
 *   LANES          numbers of a vector: a cell's, or, not at a stride, those of two positions
 *   RUN            vectors at a time, at most a row
 *   ROWS           rows of a work-item
 *   UNITS_AT_ONCE  cells of a work-item; divides their number
 *   GLOBAL_UNITS   cells / UNITS_AT_ONCE
 * Tunables:
 *   MAXIMUM_LANES        loops 16 of 8 16: most lanes
 *   MAXIMUM_ACCUMULATORS loops 14 of 4 7 14: most vectors at a time
 * Global:
 *   height  parts of a plane
 *   units   cells / UNITS_AT_ONCE * COUNT
 */
#include "blob.h"
#include "vector.h"
#include "convolution/epilogue.h"

#define POSITIONS (LANES / CELL_UNITS)
#define TAPS (FILTER_HEIGHT * FILTER_WIDTH)
#define ROW_STEP (RUN * POSITIONS)
#if LANES > CELL_UNITS
#define FOR_EACH_POSITION(number) ((vector_t)(number, number))
#define AT_POSITION(vector, p) ((p) ? (vector).hi : (vector).lo)
#else
#define FOR_EACH_POSITION(number) (number)
#define AT_POSITION(vector, p) (vector)
#endif

__kernel void convolution_forward_depthwise_rows(WRITE_BLOB(output), READ_BLOB(input), EPILOGUE_BLOBS,
                                                 READ_ARRAY(real_t, packed), EPILOGUE_ARRAYS, const int count)
{
    const int n = get_global_id(2) / GLOBAL_UNITS;
    const int first = get_global_id(1) * ROWS;
    const int end = min(first + ROWS, OUTPUT_UNIT_HEIGHT);
    const int first_z = get_global_id(2) % GLOBAL_UNITS * UNITS_AT_ONCE;
    for (int z = first_z; z < first_z + UNITS_AT_ONCE; z++) {
        vector_t factors[TAPS];
#pragma unroll
        for (int tap = 0; tap < TAPS; tap++) {
            factors[tap] = FOR_EACH_POSITION(UNIT_NUMBERS(ARRAY(packed), z * (TAPS + 1) + tap));
        }
        const number_t bias = UNIT_BIAS(z);
        for (int y = first; y < end; y++) {
            for (int column = 0; column < OUTPUT_UNIT_WIDTH; column += ROW_STEP) {
                const int x = min(column, OUTPUT_UNIT_WIDTH - ROW_STEP);
                vector_t sums[RUN];
#pragma unroll
                for (int i = 0; i < RUN; i++) {
                    sums[i] = 0;
                }
#pragma unroll
                for (int a = 0; a < FILTER_HEIGHT; a++) {
                    __global const real_t *row =
                        (__global const real_t *)(input
                                                  + BLOB_INDEX(INPUT, n, z,
                                                               y * STRIDE_Y - PAD_TOP + a * DILATION_Y,
                                                               x * STRIDE_X - PAD_LEFT));
#pragma unroll
                    for (int b = 0; b < FILTER_WIDTH; b++) {
#pragma unroll
                        for (int i = 0; i < RUN; i++) {
                            const vector_t numbers =
                                VECTOR_LOAD(row + (i * POSITIONS * STRIDE_X + b * DILATION_X) * CELL_UNITS);
                            sums[i] = MULTIPLY_ADD(numbers, factors[a * FILTER_WIDTH + b], sums[i]);
                        }
                    }
                }
                __global output_t *to = output + BLOB_INDEX(OUTPUT, n, z, y, x);
#pragma unroll
                for (int i = 0; i < RUN; i++) {
#pragma unroll
                    for (int p = 0; p < POSITIONS; p++) {
                        const int at = i * POSITIONS + p;
                        const number_t value =
                            CELL_EPILOGUE(BIASED(AT_POSITION(sums[i], p), bias, z), n, z, y, x + at);
                        WRITE_VALUE(to, at, FINISHED(value, z));
                    }
                }
            }
        }
    }
}
