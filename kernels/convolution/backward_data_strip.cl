/*
 * Convolution, backward, delta of the input, for few input units a group (depthwise: one; images: three). A work-item
 * makes STRIP blocks, one below the other, of STRIDE_Y x STRIDE_X input cells for all units of a group: all phases at
 * once. Which taps meet which cell of a block is known when the kernel is compiled, so no tap is tested at run time.
 *
 * Blobs:
 *   OUTPUT_DELTA read   with a halo of zeros
 *   INPUT_DELTA  update
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
 *   ACCUMULATE  1: add to INPUT_DELTA
 *   STRIP       blocks a work-item, at most those of a column
 * Global:
 *   width  strips, of the whole batch
 */
#include "blob.h"
#include "put.h"

#define BLOCK_ROWS ((INPUT_DELTA_UNIT_HEIGHT + STRIDE_Y - 1) / STRIDE_Y)
#define BLOCK_COLUMNS ((INPUT_DELTA_UNIT_WIDTH + STRIDE_X - 1) / STRIDE_X)
#define STRIPS ((BLOCK_ROWS + STRIP - 1) / STRIP)
/* Steps of the stride that keep the shifts below, numerators of exact divisions, from being negative. */
#define STEPS_Y (FILTER_HEIGHT * DILATION_Y)
#define STEPS_X (FILTER_WIDTH * DILATION_X)

__kernel void convolution_backward_data_strip(READ_BLOB(output_delta), WRITE_BLOB(input_delta),
                                              READ_ARRAY(weight_t, weight), const int count)
{
    const int item = get_global_id(0);
    const int j = item % BLOCK_COLUMNS;
    const int strip = item / BLOCK_COLUMNS % STRIPS * STRIP;
    const int group = item / (BLOCK_COLUMNS * STRIPS) % GROUPS;
    const int n = item / (BLOCK_COLUMNS * STRIPS * GROUPS);
    if (n >= count) {
        return;
    }
    /* The last strip moves up to end with the last block; blocks that it shares are not stored. */
    const int first = min(strip, BLOCK_ROWS - STRIP);
    __global const output_delta_t *from =
        output_delta + BLOB_INDEX(OUTPUT_DELTA, n, group * GROUP_OUTPUT_UNITS, first, j);
    __global const weight_t *factors =
        ARRAY(weight) + group * (GROUP_OUTPUT_UNITS * GROUP_INPUT_UNITS * FILTER_HEIGHT * FILTER_WIDTH);
    real_t sums[GROUP_INPUT_UNITS][STRIP * STRIDE_Y][STRIDE_X];
#pragma unroll
    for (int u = 0; u < GROUP_INPUT_UNITS; u++) {
#pragma unroll
        for (int y = 0; y < STRIP * STRIDE_Y; y++) {
#pragma unroll
            for (int x = 0; x < STRIDE_X; x++) {
                sums[u][y][x] = 0;
            }
        }
    }
    for (int depth = 0; depth < GROUP_OUTPUT_UNITS; depth++) {
#pragma unroll
        for (int a = 0; a < FILTER_HEIGHT; a++) {
#pragma unroll
            for (int b = 0; b < FILTER_WIDTH; b++) {
                /* The cell of a block, and the shift, of tap (a, b): y + pad - a * dilation = shift * stride. */
                const int y = (a * DILATION_Y + STEPS_Y * STRIDE_Y * (PAD_TOP + 1) - PAD_TOP) % STRIDE_Y;
                const int x = (b * DILATION_X + STEPS_X * STRIDE_X * (PAD_LEFT + 1) - PAD_LEFT) % STRIDE_X;
                const int row = (y + PAD_TOP - a * DILATION_Y + STEPS_Y * STRIDE_Y) / STRIDE_Y - STEPS_Y;
                const int column = (x + PAD_LEFT - b * DILATION_X + STEPS_X * STRIDE_X) / STRIDE_X - STEPS_X;
#pragma unroll
                for (int u = 0; u < GROUP_INPUT_UNITS; u++) {
                    const real_t factor = READ_VALUE(factors, (u * FILTER_HEIGHT + a) * FILTER_WIDTH + b);
#pragma unroll
                    for (int r = 0; r < STRIP; r++) {
                        const real_t delta =
                            READ_VALUE(from, (r + row) * OUTPUT_DELTA_UNIT_MEMORY_WIDTH + column);
                        sums[u][r * STRIDE_Y + y][x] =
                            MULTIPLY_ADD(factor, delta, sums[u][r * STRIDE_Y + y][x]);
                    }
                }
            }
        }
        from += OUTPUT_DELTA_UNIT_MEMORY_ELEMENTS;
        factors += GROUP_INPUT_UNITS * FILTER_HEIGHT * FILTER_WIDTH;
    }
#pragma unroll
    for (int u = 0; u < GROUP_INPUT_UNITS; u++) {
        __global input_delta_t *to =
            input_delta
            + BLOB_INDEX(INPUT_DELTA, n, group * GROUP_INPUT_UNITS + u, first * STRIDE_Y, j * STRIDE_X);
#pragma unroll
        for (int y = 0; y < STRIP * STRIDE_Y; y++) {
#pragma unroll
            for (int x = 0; x < STRIDE_X; x++) {
                if (first * STRIDE_Y + y >= strip * STRIDE_Y && first * STRIDE_Y + y < INPUT_DELTA_UNIT_HEIGHT
                    && j * STRIDE_X + x < INPUT_DELTA_UNIT_WIDTH) {
                    PUT(sums[u][y][x], to + y * INPUT_DELTA_UNIT_MEMORY_WIDTH + x);
                }
            }
        }
    }
}
