/*
 * Convolution, backward, gradient of the weights, for few units a group (depthwise: one): a work-group sums all taps of
 * one pair of an output and an input unit over a share of the batch; its work-items lie side by side over columns and
 * strips of STRIP rows, whatever the plane's size.
 * Splits of the strips go to a partial sum each; gradient/reduce.cl adds them in a fixed order.
 *
 * Blobs:
 *   INPUT        read  its halo is the padding
 *   OUTPUT_DELTA read
 * Arrays:
 *   PARTIALS write  (SPLITS, OIHW)
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
 *   SPLITS
 *   STRIP            rows a work-item takes at a time, at most those of the delta
 *   LOCAL_WIDTH      work-items that share the strips
 *   CHEAP_ADDRESSES  1: in few instructions, see below
 * Global:
 *   width   LOCAL_WIDTH
 *   height  SPLITS
 *   units   pairs, in the order of the weights
 */
#include "blob.h"
#include "group_sum.h"

#define STRIPS ((OUTPUT_DELTA_UNIT_HEIGHT + STRIP - 1) / STRIP)
#define TAPS (FILTER_HEIGHT * FILTER_WIDTH)
/*
 * With CHEAP_ADDRESSES numbers have 32 bits without a sign, and nothing that is read depends on a branch: compilers of AMD
 * and Intel make one of a choice between a load and 0.
 */
#if CHEAP_ADDRESSES
#define NUMBER(value) (uint)(value)
#else
#define NUMBER(value) value
#endif

__kernel void convolution_backward_weight_strip(READ_BLOB(input), READ_BLOB(output_delta),
                                                WRITE_ARRAY(real_t, partials), const int count)
{
    const int split = get_global_id(1);
    const int pair = get_global_id(2);
    const int unit = pair / GROUP_INPUT_UNITS;
    const int input_unit = unit / GROUP_OUTPUT_UNITS * GROUP_INPUT_UNITS + pair % GROUP_INPUT_UNITS;
    real_t sums[TAPS];
#pragma unroll
    for (int tap = 0; tap < TAPS; tap++) {
        sums[tap] = 0;
    }
    const int all = count * STRIPS * OUTPUT_DELTA_UNIT_WIDTH;
    const int last = (int)((long)all * (split + 1) / SPLITS);
    for (int item = (int)((long)all * split / SPLITS) + get_local_id(0); item < last; item += LOCAL_WIDTH) {
        const int x = NUMBER(item) % OUTPUT_DELTA_UNIT_WIDTH;
        const int strip = NUMBER(item) / OUTPUT_DELTA_UNIT_WIDTH % STRIPS * STRIP;
        const int n = NUMBER(item) / (OUTPUT_DELTA_UNIT_WIDTH * STRIPS);
        /* The last strip moves up to end with the last row; rows of the one before count once. */
        const int first = min(strip, OUTPUT_DELTA_UNIT_HEIGHT - STRIP);
        __global const output_delta_t *deltas =
            output_delta + NUMBER(BLOB_INDEX(OUTPUT_DELTA, n, unit, first, x));
        __global const input_t *values =
            input
            + NUMBER(BLOB_INDEX(INPUT, n, input_unit, first * STRIDE_Y - PAD_TOP, x * STRIDE_X - PAD_LEFT));
#pragma unroll
        for (int r = 0; r < STRIP; r++) {
#if CHEAP_ADDRESSES
            const real_t there = READ_VALUE(deltas, r * OUTPUT_DELTA_UNIT_MEMORY_WIDTH);
            const real_t delta = first + r >= strip ? there : 0;
#else
            const real_t delta =
                first + r >= strip ? READ_VALUE(deltas, r * OUTPUT_DELTA_UNIT_MEMORY_WIDTH) : 0;
#endif
#pragma unroll
            for (int tap = 0; tap < TAPS; tap++) {
                const int row = r * STRIDE_Y + tap / FILTER_WIDTH * DILATION_Y;
                const int column = tap % FILTER_WIDTH * DILATION_X;
                sums[tap] = MULTIPLY_ADD(delta, READ_VALUE(values, row * INPUT_UNIT_MEMORY_WIDTH + column),
                                         sums[tap]);
            }
        }
    }
    __local accumulator_t shared[LOCAL_WIDTH];
    __global real_t *results = ARRAY(partials) + ((size_t)split * get_global_size(2) + pair) * TAPS;
#pragma unroll
    for (int tap = 0; tap < TAPS; tap++) {
        const real_t sum = GROUP_SUM(sums[tap], shared);
        if (get_local_id(0) == 0) {
            results[tap] = sum;
        }
    }
}
