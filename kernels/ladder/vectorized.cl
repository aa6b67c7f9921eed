/*
 * Convolution by one work-item for each output value, all taps of an input unit in registers at once (seed 000): the
 * weights as vectors, and with VECTOR_INPUT each row of the input as one too.
 *
 * Blobs:
 *   INPUT  read   its halo is the padding
 *   OUTPUT write
 * Arrays:
 *   WEIGHT        read   OIHW
 *   BIAS          read   nothing, a unit or a position: BIAS_MODE
 *   PREACTIVATION write  what the activation was applied to, densely NCHW, with STORE_PREACTIVATION
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   GROUP_INPUT_UNITS
 *   FILTER_HEIGHT
 *   FILTER_WIDTH
 *   STRIDE_Y
 *   STRIDE_X
 *   DILATION_Y
 *   DILATION_X
 *   PAD_TOP
 *   PAD_LEFT
 *   BIAS_MODE            0 none, 1 one a unit, 2 one a position
 *   STORE_PREACTIVATION  0 or 1
 *   VECTOR_INPUT         whether rows of the input are loaded as vectors
 *   GLOBAL_UNITS         output units
 * Global:
 *   width   columns
 *   height  rows
 *   units   output units x COUNT
 */
#include "blob.h"
#include "activation/functions.h"
#include "ladder/epilogue.h"
#include "ladder/run.h"

#define TAPS (FILTER_HEIGHT * FILTER_WIDTH)
/* Values of a row of the input from the first tap to the last. */
#define RUN ((FILTER_WIDTH - 1) * DILATION_X + 1)

__kernel void ladder_vectorized(READ_BLOB(input), WRITE_BLOB(output), READ_ARRAY(real_t, weight),
                                READ_ARRAY(real_t, bias), WRITE_ARRAY(real_t, preactivation), const int count)
{
    const int x = get_global_id(0);
    const int y = get_global_id(1);
    const int unit = get_global_id(2) % GLOBAL_UNITS;
    const int n = get_global_id(2) / GLOBAL_UNITS;
    if (x >= OUTPUT_UNIT_WIDTH || n >= count) {
        return;
    }
    __global const real_t *from =
        input + BLOB_INDEX(INPUT, n, 0, y * STRIDE_Y - PAD_TOP, x * STRIDE_X - PAD_LEFT);
    __global const real_t *factors = ARRAY(weight) + unit * (GROUP_INPUT_UNITS * TAPS);
    real_t sum = 0;
    for (int depth = 0; depth < GROUP_INPUT_UNITS; depth++) {
        real_t weights[TAPS];
        real_t values[FILTER_HEIGHT][RUN];
        load_run(weights, factors, TAPS);
#pragma unroll
        for (int a = 0; a < FILTER_HEIGHT; a++) {
            __global const real_t *row = from + a * DILATION_Y * INPUT_UNIT_MEMORY_WIDTH;
#if VECTOR_INPUT
            load_run(values[a], row, RUN);
#else
#pragma unroll
            for (int b = 0; b < RUN; b += DILATION_X) {
                values[a][b] = row[b];
            }
#endif
        }
#pragma unroll
        for (int a = 0; a < FILTER_HEIGHT; a++) {
#pragma unroll
            for (int b = 0; b < FILTER_WIDTH; b++) {
                sum = MULTIPLY_ADD(values[a][b * DILATION_X], weights[a * FILTER_WIDTH + b], sum);
            }
        }
        from += INPUT_UNIT_MEMORY_ELEMENTS;
        factors += TAPS;
    }
    STORE_OUTPUT(sum, n, unit, y, x);
}
