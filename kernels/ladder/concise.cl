/*
 * Convolution as it is defined (seeds 000, 002 and 004 begin with it): a work-item makes one output value, and leaves
 * the rest to the compiler.
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
 *   GLOBAL_UNITS         output units
 * Global:
 *   width   columns
 *   height  rows
 *   units   output units x COUNT
 */
#include "blob.h"
#include "activation/functions.h"
#include "ladder/epilogue.h"

__kernel void ladder_concise(READ_BLOB(input), WRITE_BLOB(output), READ_ARRAY(real_t, weight),
                             READ_ARRAY(real_t, bias), WRITE_ARRAY(real_t, preactivation), const int count)
{
    const int x = get_global_id(0);
    const int y = get_global_id(1);
    const int unit = get_global_id(2) % GLOBAL_UNITS;
    const int n = get_global_id(2) / GLOBAL_UNITS;
    if (x >= OUTPUT_UNIT_WIDTH || n >= count) {
        return;
    }
    real_t sum = 0;
    for (int depth = 0; depth < GROUP_INPUT_UNITS; depth++) {
        for (int a = 0; a < FILTER_HEIGHT; a++) {
            for (int b = 0; b < FILTER_WIDTH; b++) {
                const int row = y * STRIDE_Y - PAD_TOP + a * DILATION_Y;
                const int column = x * STRIDE_X - PAD_LEFT + b * DILATION_X;
                const int tap = ((unit * GROUP_INPUT_UNITS + depth) * FILTER_HEIGHT + a) * FILTER_WIDTH + b;
                sum = MULTIPLY_ADD(input[BLOB_INDEX(INPUT, n, depth, row, column)], ARRAY(weight)[tap], sum);
            }
        }
    }
    STORE_OUTPUT(sum, n, unit, y, x);
}
