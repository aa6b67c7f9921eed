/*
 * Weights with their two kinds of units the other way round: transposed[group][input unit][output unit][tap], so that
 * what makes one unit of the input's delta lies together. A work-item does LANES output units.
 *
 * Arrays:
 *   WEIGHT     read   OIHW, I counted within a group
 *   TRANSPOSED write
 * Macros:
 *   GROUP_INPUT_UNITS
 *   GROUP_OUTPUT_UNITS
 *   TAPS
 *   LANES
 * Moves:
 *   packing weights
 * Global:
 *   width   blocks of LANES output units of a group
 *   height  groups
 */
#include "blob.h"
#include "vector.h"
#include "transpose.h"

__kernel void convolution_transpose_weight(READ_ARRAY(weight_t, weight), WRITE_ARRAY(real_t, transposed))
{
    const int first = get_global_id(0) * LANES;
    const int units = min(LANES, GROUP_OUTPUT_UNITS - first);
    const size_t group = get_global_id(1) * (size_t)(GROUP_INPUT_UNITS * GROUP_OUTPUT_UNITS * TAPS);
    __global const weight_t *from = ARRAY(weight) + group + (size_t)first * GROUP_INPUT_UNITS * TAPS;
    __global real_t *to = ARRAY(transposed) + group + first * TAPS;
    int input = 0;
#if TAPS == 1 && LANES > 1
    for (; units == LANES && input + LANES <= GROUP_INPUT_UNITS; input += LANES) {
        vector_t rows[LANES];
#pragma unroll
        for (int i = 0; i < LANES; i++) {
            rows[i] = VECTOR_LOAD(from + i * GROUP_INPUT_UNITS + input);
        }
        transpose(rows);
#pragma unroll
        for (int i = 0; i < LANES; i++) {
            VECTOR_STORE(rows[i], to + (size_t)(input + i) * GROUP_OUTPUT_UNITS);
        }
    }
#endif
    for (; input < GROUP_INPUT_UNITS; input++) {
        for (int unit = 0; unit < units; unit++) {
            for (int tap = 0; tap < TAPS; tap++) {
                to[((size_t)input * GROUP_OUTPUT_UNITS + unit) * TAPS + tap] =
                    READ_VALUE(from, ((size_t)unit * GROUP_INPUT_UNITS + input) * TAPS + tap);
            }
        }
    }
}
