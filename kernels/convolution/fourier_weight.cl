/*
 * Spectra of filters (convolution/fourier.h), at half of the points: of few taps, so the sums are made as they stand.
 *
 * Arrays:
 *   WEIGHT      read   OIHW
 *   TRANSFORMED write  (POINTS, GROUPS, 2 DEPTH, UNITS)
 * Scalars:
 *   GROUPS
 *   GROUP_UNITS   units of a group of the result
 *   GROUP_DEPTH   those of the source
 *   UNITS         GROUP_UNITS or more
 *   DEPTH         GROUP_DEPTH or more
 *   UNIT_STRIDE   from the weights of a unit to those of the next
 *   DEPTH_STRIDE  the same for a unit of the source
 * Macros:
 *   TAPS          of a filter on a side
 *   ROTATED       1: the filter is turned by 180 degrees
 * Moves:
 *   spectra of weights
 * Global:
 *   width  UNITS * DEPTH * groups
 */
#include "blob.h"
#include "convolution/filter.h"
#include "convolution/fourier.h"

__kernel void convolution_fourier_weight(READ_ARRAY(weight_t, weight), WRITE_ARRAY(real_t, transformed),
                                         const int groups, const int group_units, const int group_depth,
                                         const int units, const int depth, const int unit_stride,
                                         const int depth_stride)
{
    const int item = get_global_id(0);
    const int unit = item % UNITS;
    const int row = item / UNITS % DEPTH;
    const int group = item / UNITS / DEPTH;
    if (group >= GROUPS) {
        return;
    }
    real_t filter[TAPS * TAPS];
    load_filter(filter, FILTER(group, unit, row), unit < GROUP_UNITS && row < GROUP_DEPTH);
    __global real_t *to = ARRAY(transformed) + (group * DEPTH + row) * 2 * UNITS + unit;
    for (int x = 0; x <= HALF; x++) {
        real_t real[TAPS];
        real_t imaginary[TAPS];
#pragma unroll
        for (int i = 0; i < TAPS; i++) {
            real[i] = imaginary[i] = 0;
#pragma unroll
            for (int j = 0; j < TAPS; j++) {
                real[i] = MULTIPLY_ADD(filter[i * TAPS + j], COSINE(x * j), real[i]);
                imaginary[i] = MULTIPLY_ADD(-filter[i * TAPS + j], SINE(x * j), imaginary[i]);
            }
        }
#pragma unroll
        for (int y = 0; y < SIDE; y++) {
            real_t sum = 0;
            real_t imaginary_sum = 0;
#pragma unroll
            for (int i = 0; i < TAPS; i++) {
                sum += real[i] * COSINE(y * i) + imaginary[i] * SINE(y * i);
                imaginary_sum += imaginary[i] * COSINE(y * i) - real[i] * SINE(y * i);
            }
            if (IS_POINT(y, x)) {
                to[POINT(y, x) * (GROUPS * DEPTH * 2 * UNITS)] = sum;
                to[POINT(y, x) * (GROUPS * DEPTH * 2 * UNITS) + UNITS] = imaginary_sum;
            }
        }
    }
}
