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
#include "place.h"

#define STRIPS ((OUTPUT_DELTA_UNIT_HEIGHT + STRIP - 1) / STRIP)
#define TAPS (FILTER_HEIGHT * FILTER_WIDTH)
/* Rows of the input that a strip meets. */
#define ROWS ((STRIP - 1) * STRIDE_Y + (FILTER_HEIGHT - 1) * DILATION_Y + 1)
/*
 * With CHEAP_ADDRESSES numbers have 32 bits without a sign, and nothing that is read depends on a branch: compilers of AMD
 * and Intel make one of a choice between a load and 0. All of a row of the input is multiplied before the next one is read,
 * in the same order for each tap; on AMD's GPUs in pairs, which CDNA's multiply at once: left to itself the compiler moves
 * a part of them first.
 */
#if CHEAP_ADDRESSES
#define NUMBER(value) (uint)(value)
#define AT(name, index) \
    (__global const name##_t *)((__global const char *)name + PLACE(name##_t, name, index))
#else
/* clang-format off */
#define NUMBER(value) value
#define AT(name, index) name + index
/* clang-format on */
#endif
#ifdef __AMDGCN__
#define PAIRED (FILTER_WIDTH / 2 * 2)
#else
#define PAIRED 0
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
        __global const output_delta_t *deltas = AT(output_delta, BLOB_INDEX(OUTPUT_DELTA, n, unit, first, x));
        __global const input_t *values =
            AT(input, BLOB_INDEX(INPUT, n, input_unit, first * STRIDE_Y - PAD_TOP, x * STRIDE_X - PAD_LEFT));
#if CHEAP_ADDRESSES
        real_t delta_rows[STRIP];
#pragma unroll
        for (int r = 0; r < STRIP; r++) {
            const real_t delta = READ_VALUE(deltas, r * OUTPUT_DELTA_UNIT_MEMORY_WIDTH);
            delta_rows[r] = first + r >= strip ? delta : 0;
        }
#pragma unroll
        for (int row = 0; row < ROWS; row++) {
            real_t values_of_row[FILTER_WIDTH];
#pragma unroll
            for (int x = 0; x < FILTER_WIDTH; x++) {
                values_of_row[x] = READ_VALUE(values, row * INPUT_UNIT_MEMORY_WIDTH + x * DILATION_X);
            }
#pragma unroll
            for (int y = 0; y < FILTER_HEIGHT; y++) {
                const int at = row - y * DILATION_Y;
                if (at < 0 || at % STRIDE_Y != 0 || at / STRIDE_Y >= STRIP) {
                    continue;
                }
                const real_t delta = delta_rows[at / STRIDE_Y];
                real_t *const of_row = sums + y * FILTER_WIDTH;
#pragma unroll
                for (int x = 0; x < PAIRED; x += 2) {
                    vstore2(
                        MULTIPLY_ADD((float2)(delta), vload2(0, values_of_row + x), vload2(0, of_row + x)), 0,
                        of_row + x);
                }
#pragma unroll
                for (int x = PAIRED; x < FILTER_WIDTH; x++) {
                    of_row[x] = MULTIPLY_ADD(delta, values_of_row[x], of_row[x]);
                }
            }
        }
#else
#pragma unroll
        for (int r = 0; r < STRIP; r++) {
            const real_t delta =
                first + r >= strip ? READ_VALUE(deltas, r * OUTPUT_DELTA_UNIT_MEMORY_WIDTH) : 0;
#pragma unroll
            for (int tap = 0; tap < TAPS; tap++) {
                const int row = r * STRIDE_Y + tap / FILTER_WIDTH * DILATION_Y;
                const int column = tap % FILTER_WIDTH * DILATION_X;
                sums[tap] = MULTIPLY_ADD(delta, READ_VALUE(values, row * INPUT_UNIT_MEMORY_WIDTH + column),
                                         sums[tap]);
            }
        }
#endif
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
