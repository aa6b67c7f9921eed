/*
 * Convolution, forward, for few positions: output = epilogue(sum over input units and taps of weight * input), bound by
 * reading each weight once, as it lies (after the 1-D convolution of seed 002). A work-group makes BLOCK_UNITS output
 * units at all positions of a sample; its work-items share the input units.
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
 *   FILTER_HEIGHT
 *   FILTER_WIDTH
 *   STRIDE_Y
 *   STRIDE_X
 *   DILATION_Y
 *   DILATION_X
 *   PAD_TOP
 *   PAD_LEFT
 *   BLOCK_UNITS  output units a work-group
 *   LOCAL_WIDTH  work-items that share the input units, at least BLOCK_UNITS * positions
 * Global:
 *   width   LOCAL_WIDTH
 *   height  blocks of output units, group by group
 *   units   COUNT
 */
#include "blob.h"
#include "convolution/epilogue.h"

#define TAPS (FILTER_HEIGHT * FILTER_WIDTH)
#define BLOCKS ((GROUP_OUTPUT_UNITS + BLOCK_UNITS - 1) / BLOCK_UNITS)
#define POSITIONS (OUTPUT_UNIT_HEIGHT * OUTPUT_UNIT_WIDTH)
#define VALUES (BLOCK_UNITS * POSITIONS)
/* The sums of a value are added in PARTS parts of PART each. */
#define PARTS (LOCAL_WIDTH / VALUES)
#define PART ((LOCAL_WIDTH + PARTS - 1) / PARTS)

__kernel void convolution_forward_dot(READ_BLOB(input), WRITE_BLOB(output), EPILOGUE_BLOBS,
                                      READ_ARRAY(real_t, weight), EPILOGUE_ARRAYS, const int count)
{
    __local real_t shared[VALUES][LOCAL_WIDTH];
    __local real_t parts[VALUES][PARTS];
    const int item = get_local_id(0);
    const int n = get_global_id(2);
    const int group = get_global_id(1) / BLOCKS;
    const int first = get_global_id(1) % BLOCKS * BLOCK_UNITS;
    real_t sums[BLOCK_UNITS][POSITIONS];
    __global const real_t *factors[BLOCK_UNITS];
#pragma unroll
    for (int u = 0; u < BLOCK_UNITS; u++) {
        /* Units past the last one repeat it; their sums are not stored. */
        const int unit = group * GROUP_OUTPUT_UNITS + min(first + u, GROUP_OUTPUT_UNITS - 1);
        factors[u] = ARRAY(weight) + unit * (GROUP_INPUT_UNITS * TAPS);
#pragma unroll
        for (int p = 0; p < POSITIONS; p++) {
            sums[u][p] = 0;
        }
    }
    __global const real_t *from =
        input + BLOB_INDEX(INPUT, n, group * GROUP_INPUT_UNITS, -PAD_TOP, -PAD_LEFT);
    for (int depth = item; depth < GROUP_INPUT_UNITS; depth += LOCAL_WIDTH) {
        __global const real_t *values = from + depth * INPUT_UNIT_MEMORY_ELEMENTS;
#pragma unroll
        for (int tap = 0; tap < TAPS; tap++) {
            const int row = tap / FILTER_WIDTH * DILATION_Y;
            const int column = tap % FILTER_WIDTH * DILATION_X;
#pragma unroll
            for (int u = 0; u < BLOCK_UNITS; u++) {
                const real_t factor = factors[u][depth * TAPS + tap];
#pragma unroll
                for (int p = 0; p < POSITIONS; p++) {
                    const int y = p / OUTPUT_UNIT_WIDTH * STRIDE_Y + row;
                    const int x = p % OUTPUT_UNIT_WIDTH * STRIDE_X + column;
                    sums[u][p] = MULTIPLY_ADD(factor, values[y * INPUT_UNIT_MEMORY_WIDTH + x], sums[u][p]);
                }
            }
        }
    }

    /* All values at once: first each part, then the parts. */
#pragma unroll
    for (int u = 0; u < BLOCK_UNITS; u++) {
#pragma unroll
        for (int p = 0; p < POSITIONS; p++) {
            shared[u * POSITIONS + p][item] = sums[u][p];
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (item < VALUES * PARTS) {
        real_t sum = 0;
        for (int i = item % PARTS * PART; i < min(item % PARTS * PART + PART, LOCAL_WIDTH); i++) {
            sum += shared[item / PARTS][i];
        }
        parts[item / PARTS][item % PARTS] = sum;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    const int unit = group * GROUP_OUTPUT_UNITS + first + item / POSITIONS;
    const int p = item % POSITIONS;
    if (item < VALUES && first + item / POSITIONS < GROUP_OUTPUT_UNITS) {
        real_t sum = 0;
        for (int part = 0; part < PARTS; part++) {
            sum += parts[item][part];
        }
        const int y = p / OUTPUT_UNIT_WIDTH;
        const int x = p % OUTPUT_UNIT_WIDTH;
        const unit_terms_t terms = UNIT_TERMS(unit);
        const real_t value = CELL_EPILOGUE(UNIT_EPILOGUE(sum, terms), n, unit, y, x);
        output[BLOB_INDEX(OUTPUT, n, unit, y, x)] = ACTIVATE(value);
    }
}
