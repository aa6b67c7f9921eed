/*
 * Convolution, forward, for few output units a group (depthwise: one): output = epilogue(sum over input units and taps
 * of weight * input). A work-item makes STRIP rows of one column for all units of a group, so that neighbouring rows
 * share what they load; work-items lie side by side over columns, strips, groups and samples, whatever the plane's size.
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
 *   GROUPS
 *   FILTER_HEIGHT
 *   FILTER_WIDTH
 *   STRIDE_Y
 *   STRIDE_X
 *   DILATION_Y
 *   DILATION_X
 *   PAD_TOP
 *   PAD_LEFT
 *   STRIP       rows a work-item, at most those of the output
 * Global:
 *   width  strips, of the whole batch
 */
#include "blob.h"
#include "convolution/epilogue.h"

#define STRIPS ((OUTPUT_UNIT_HEIGHT + STRIP - 1) / STRIP)

__kernel void convolution_forward_strip(READ_BLOB(input), WRITE_BLOB(output), EPILOGUE_BLOBS,
                                        READ_ARRAY(weight_t, weight), EPILOGUE_ARRAYS, const int count)
{
    const int item = get_global_id(0);
    const int x = item % OUTPUT_UNIT_WIDTH;
    const int strip = item / OUTPUT_UNIT_WIDTH % STRIPS * STRIP;
    const int group = item / (OUTPUT_UNIT_WIDTH * STRIPS) % GROUPS;
    const int n = item / (OUTPUT_UNIT_WIDTH * STRIPS * GROUPS);
    if (n >= count) {
        return;
    }
    /* The last strip moves up to end with the last row; rows that it shares with the one before are not stored. */
    const int first = min(strip, OUTPUT_UNIT_HEIGHT - STRIP);
    __global const input_t *from = input
                                   + BLOB_INDEX(INPUT, n, group * GROUP_INPUT_UNITS,
                                                first * STRIDE_Y - PAD_TOP, x * STRIDE_X - PAD_LEFT);
    __global const weight_t *factors =
        ARRAY(weight) + group * (GROUP_OUTPUT_UNITS * GROUP_INPUT_UNITS * FILTER_HEIGHT * FILTER_WIDTH);
    real_t sums[GROUP_OUTPUT_UNITS][STRIP];
#pragma unroll
    for (int u = 0; u < GROUP_OUTPUT_UNITS; u++) {
#pragma unroll
        for (int r = 0; r < STRIP; r++) {
            sums[u][r] = 0;
        }
    }
    for (int depth = 0; depth < GROUP_INPUT_UNITS; depth++) {
#pragma unroll
        for (int a = 0; a < FILTER_HEIGHT; a++) {
#pragma unroll
            for (int b = 0; b < FILTER_WIDTH; b++) {
                const int shift = a * DILATION_Y * INPUT_UNIT_MEMORY_WIDTH + b * DILATION_X;
#pragma unroll
                for (int u = 0; u < GROUP_OUTPUT_UNITS; u++) {
                    const real_t factor = READ_VALUE(
                        factors, ((u * GROUP_INPUT_UNITS + depth) * FILTER_HEIGHT + a) * FILTER_WIDTH + b);
#pragma unroll
                    for (int r = 0; r < STRIP; r++) {
                        sums[u][r] = MULTIPLY_ADD(
                            factor, READ_VALUE(from, r * STRIDE_Y * INPUT_UNIT_MEMORY_WIDTH + shift),
                            sums[u][r]);
                    }
                }
            }
        }
        from += INPUT_UNIT_MEMORY_ELEMENTS;
    }
#pragma unroll
    for (int u = 0; u < GROUP_OUTPUT_UNITS; u++) {
        const int unit = group * GROUP_OUTPUT_UNITS + u;
        const real_t bias = UNIT_BIAS(unit);
        __global output_t *to = output + BLOB_INDEX(OUTPUT, n, unit, first, x);
#pragma unroll
        for (int r = 0; r < STRIP; r++) {
            if (first + r >= strip) {
                const real_t value = CELL_EPILOGUE(BIASED(sums[u][r], bias, unit), n, unit, first + r, x);
                WRITE_VALUE(to, r * OUTPUT_UNIT_MEMORY_WIDTH, FINISHED(value, unit));
            }
        }
    }
}
