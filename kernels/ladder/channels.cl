/*
 * 1-D convolution for many input units and few positions (seed 002): a work-group makes one output unit at POSITIONS
 * positions. Each of its work-items takes CHANNELS neighbouring input units in a round, in registers, and multiplies
 * them with their filters; then the sums of all work-items are added up, in a fixed order instead of atomically.
 *
 * With STAGED, neighbours load neighbours into local memory first, from which each then takes its own. An item's share
 * there has an odd length, so that work-items side by side read different banks.
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
 *   FILTER_WIDTH
 *   STRIDE_X
 *   DILATION_X
 *   PAD_LEFT
 *   BIAS_MODE            0 none, 1 one a unit, 2 one a position
 *   STORE_PREACTIVATION  0 or 1
 *   POSITIONS            positions of a tile, at most those of the output
 *   CHANNELS             input units a work-item and round
 *   STAGED               whether input and weights come through local memory
 *   LOCAL_WIDTH          work-items, a power of two
 *   GLOBAL_UNITS         output units
 * Global:
 *   width   LOCAL_WIDTH
 *   height  tiles of positions
 *   units   output units x COUNT
 */
#include "blob.h"
#include "activation/functions.h"
#include "ladder/epilogue.h"

/* Values of a row of the input that a tile reads, and the shares of a work-item in local memory. */
#define RUN ((POSITIONS - 1) * STRIDE_X + (FILTER_WIDTH - 1) * DILATION_X + 1)
#define VALUES_PITCH (CHANNELS * RUN | 1)
#define WEIGHTS_PITCH (CHANNELS * FILTER_WIDTH | 1)
#if STAGED
#define SHARED (LOCAL_WIDTH * (VALUES_PITCH > WEIGHTS_PITCH ? VALUES_PITCH : WEIGHTS_PITCH))
#else
#define SHARED (LOCAL_WIDTH * POSITIONS)
#endif
#define ROUND (LOCAL_WIDTH * CHANNELS)

__kernel __attribute__((reqd_work_group_size(LOCAL_WIDTH, 1, 1))) void
ladder_channels(READ_BLOB(input), WRITE_BLOB(output), READ_ARRAY(real_t, weight), READ_ARRAY(real_t, bias),
                WRITE_ARRAY(real_t, preactivation), const int count)
{
    __local real_t shared[SHARED];
    const int item = get_local_id(0);
    const int unit = get_global_id(2) % GLOBAL_UNITS;
    const int n = get_global_id(2) / GLOBAL_UNITS;
    /* The last tile moves up to end with the last position; those of the tile before are not stored again. */
    const int start = get_global_id(1) * POSITIONS;
    const int x = min(start, OUTPUT_UNIT_WIDTH - POSITIONS);
    __global const real_t *from = input + BLOB_INDEX(INPUT, n, 0, 0, x * STRIDE_X - PAD_LEFT);
    __global const real_t *factors = ARRAY(weight) + unit * (GROUP_INPUT_UNITS * FILTER_WIDTH);
    real_t sums[POSITIONS];
#pragma unroll
    for (int p = 0; p < POSITIONS; p++) {
        sums[p] = 0;
    }
    for (int first = 0; first < GROUP_INPUT_UNITS; first += ROUND) {
        real_t values[CHANNELS * RUN];
        real_t weights[CHANNELS * FILTER_WIDTH];
#if STAGED
        /* Units behind the last one are 0. */
        for (int i = item; i < ROUND * RUN; i += LOCAL_WIDTH) {
            const int depth = first + i / RUN;
            shared[i / (CHANNELS * RUN) * VALUES_PITCH + i % (CHANNELS * RUN)] =
                depth < GROUP_INPUT_UNITS ? from[depth * INPUT_UNIT_MEMORY_ELEMENTS + i % RUN] : 0;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
        for (int i = 0; i < CHANNELS * RUN; i++) {
            values[i] = shared[item * VALUES_PITCH + i];
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int i = item; i < ROUND * FILTER_WIDTH; i += LOCAL_WIDTH) {
            const int tap = first * FILTER_WIDTH + i;
            shared[i / (CHANNELS * FILTER_WIDTH) * WEIGHTS_PITCH + i % (CHANNELS * FILTER_WIDTH)] =
                tap < GROUP_INPUT_UNITS * FILTER_WIDTH ? factors[tap] : 0;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
        for (int i = 0; i < CHANNELS * FILTER_WIDTH; i++) {
            weights[i] = shared[item * WEIGHTS_PITCH + i];
        }
        barrier(CLK_LOCAL_MEM_FENCE);
#else
#pragma unroll
        for (int channel = 0; channel < CHANNELS; channel++) {
            /* Units behind the last one repeat it, with weights of 0. */
            const int wanted = first + item * CHANNELS + channel;
            const int depth = min(wanted, GROUP_INPUT_UNITS - 1);
#pragma unroll
            for (int i = 0; i < RUN; i++) {
                values[channel * RUN + i] = from[depth * INPUT_UNIT_MEMORY_ELEMENTS + i];
            }
#pragma unroll
            for (int b = 0; b < FILTER_WIDTH; b++) {
                weights[channel * FILTER_WIDTH + b] = wanted == depth ? factors[depth * FILTER_WIDTH + b] : 0;
            }
        }
#endif
#pragma unroll
        for (int p = 0; p < POSITIONS; p++) {
#pragma unroll
            for (int b = 0; b < FILTER_WIDTH; b++) {
#pragma unroll
                for (int channel = 0; channel < CHANNELS; channel++) {
                    sums[p] = MULTIPLY_ADD(values[channel * RUN + p * STRIDE_X + b * DILATION_X],
                                           weights[channel * FILTER_WIDTH + b], sums[p]);
                }
            }
        }
    }

#pragma unroll
    for (int p = 0; p < POSITIONS; p++) {
        shared[p * LOCAL_WIDTH + item] = sums[p];
    }
    for (int distance = LOCAL_WIDTH / 2; distance > 0; distance /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (item < distance) {
#pragma unroll
            for (int p = 0; p < POSITIONS; p++) {
                shared[p * LOCAL_WIDTH + item] += shared[p * LOCAL_WIDTH + item + distance];
            }
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int p = item; p < POSITIONS; p += LOCAL_WIDTH) {
        if (x + p >= start) {
            STORE_OUTPUT(shared[p * LOCAL_WIDTH], n, unit, 0, x + p);
        }
    }
}
