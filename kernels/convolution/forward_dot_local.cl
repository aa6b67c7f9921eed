/*
 * Convolution, forward, for few positions: output = epilogue(sum over input units and taps of weight * input), bound by
 * reading each weight once (after the 1-D convolution of seed 002). The weights of an output unit pass through local
 * memory as they lie, in rounds of input units. A warp copies the weights that it needs, so that it waits for no other:
 * each of its lanes has ITEM_UNITS input units in registers, all that the positions read of them. Neighbours have
 * neighbouring units, and so read different banks (if the taps are odd in number) and the same lines of the input.
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
 *   ITEM_UNITS   input units a work-item and round
 *   RUN          weights that are copied at once, 1 or 4: divides the weights of an output unit
 *   LANES        values of a run of the input: divides the elements of a unit's memory, so that runs are aligned
 *   READS        runs that hold all that the positions read of an input unit
 *   SKEW         values in the first of them that none reads
 *   LOCAL_WIDTH  work-items, a multiple of 32
 * Global:
 *   width   LOCAL_WIDTH x output units
 *   height  1
 *   units   COUNT
 */
#define BLOCK_UNITS 1
#include "blob.h"
#include "convolution/epilogue.h"
#include "convolution/dot.h"
#include "local_copy.h"
#include "vector.h"

#define TAPS (FILTER_HEIGHT * FILTER_WIDTH)
/* Input units that a warp, and a group, takes in a round; whether the last round is whole; a warp's runs of weights. */
#define WARP_UNITS (WARP_ITEMS * ITEM_UNITS)
#define ROUND (LOCAL_WIDTH * ITEM_UNITS)
#define ALL_THERE (GROUP_INPUT_UNITS % ROUND == 0)
#define WARP_RUNS (WARP_UNITS * TAPS / RUN)

/* Row and column, counted from the padding's first, of the value that meets a tap at a position. */
#define ROW_OF(p, tap) ((p) / OUTPUT_UNIT_WIDTH * STRIDE_Y + (tap) / FILTER_WIDTH * DILATION_Y)
#define COLUMN_OF(p, tap) ((p) % OUTPUT_UNIT_WIDTH * STRIDE_X + (tap) % FILTER_WIDTH * DILATION_X)
/* Where it lies among those of its input unit, and whether it is more than a zero of the padding. */
#define VALUE_AT(p, tap) (SKEW + COLUMN_OF(p, tap) + ROW_OF(p, tap) * INPUT_UNIT_MEMORY_WIDTH)
#define IS_WITHIN(place, size) ((place) >= 0 && (place) < (size))
#define IS_DATA(p, tap)                                     \
    (IS_WITHIN(ROW_OF(p, tap) - PAD_TOP, INPUT_UNIT_HEIGHT) \
     && IS_WITHIN(COLUMN_OF(p, tap) - PAD_LEFT, INPUT_UNIT_WIDTH))

/* NOTE: promised that nothing writes to the input (READ_BLOB), NVIDIA's compiler makes 1024x4:1024k5p2 5 % slower. */
__kernel void convolution_forward_dot_local(SHARED_BLOB(input), WRITE_BLOB(output), EPILOGUE_BLOBS,
                                            READ_ARRAY(weight_t, weight), EPILOGUE_ARRAYS, const int count)
{
    __local real_t weights[ROUND * TAPS] __attribute__((aligned(16)));
    __local real_t room[SUMS * LOCAL_WIDTH];
    __local real_t parts[SUMS][WARPS];
    const int unit = get_group_id(0);
    const int n = get_global_id(2);
    const int group = unit / GROUP_OUTPUT_UNITS;
    const int warp_unit = WARP * WARP_UNITS;
    __local real_t *staged = weights + warp_unit * TAPS;
    __global const weight_t *factors = ARRAY(weight) + unit * (GROUP_INPUT_UNITS * TAPS);
    __global const input_t *from =
        input + BLOB_INDEX(INPUT, n, group * GROUP_INPUT_UNITS, -PAD_TOP, -PAD_LEFT) - SKEW;
    real_t sums[SUMS];
    clear_sums(sums);
    for (int round = 0; round < GROUP_INPUT_UNITS; round += ROUND) {
        const int first = round + warp_unit;
        real_t values[ITEM_UNITS][READS * LANES];
#pragma unroll
        for (int k = 0; k < ITEM_UNITS; k++) {
            const int depth = first + k * WARP_ITEMS + LANE;
            const bool is_there = ALL_THERE || depth < GROUP_INPUT_UNITS;
            __global const input_t *unit_from = from + depth * INPUT_UNIT_MEMORY_ELEMENTS;
#pragma unroll
            for (int i = 0; i < READS; i++) {
                VECTOR_STORE(is_there ? VECTOR_LOAD_ALIGNED(unit_from + i * LANES) : 0,
                             values[k] + i * LANES);
            }
        }
        /* NOTE: so that the compiler does not load the input after the weights. */
        WARP_BARRIER();
        __local real_t *to_lane = staged + LANE * RUN;
        __global const weight_t *of_lane = factors + first * TAPS + LANE * RUN;
        const int runs_left = (GROUP_INPUT_UNITS - first) * TAPS / RUN - LANE;
#pragma unroll
        for (int i = 0; i < WARP_RUNS; i += WARP_ITEMS) {
            if (i + WARP_ITEMS <= WARP_RUNS || i + LANE < WARP_RUNS) {
                COPY_RUN_ONCE(RUN, to_lane + i * RUN, of_lane + i * RUN, ALL_THERE || i < runs_left);
            }
        }
        END_COPIES();
        AWAIT_COPIES(0);
        WARP_BARRIER();
#pragma unroll
        for (int k = 0; k < ITEM_UNITS; k++) {
#pragma unroll
            for (int tap = 0; tap < TAPS; tap++) {
                const real_t factor = staged[(k * WARP_ITEMS + LANE) * TAPS + tap];
#pragma unroll
                for (int p = 0; p < POSITIONS; p++) {
                    if (IS_DATA(p, tap)) {
                        sums[p] = MULTIPLY_ADD(factor, values[k][VALUE_AT(p, tap)], sums[p]);
                    }
                }
            }
        }
        /* NOTE: the next round copies over what this one reads. */
        WARP_BARRIER();
    }
    store_sums(sums, n, group, unit % GROUP_OUTPUT_UNITS, room, parts, output, output_unit_offset,
               EPILOGUE_ARGUMENTS);
}
