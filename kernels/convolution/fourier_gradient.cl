/*
 * The gradient of the weights by discrete Fourier transforms (convolution/fourier.h): of few taps, so the sums are made as
 * they stand, over half of the points, and over the splits in their order.
 *
 * Arrays:
 *   PRODUCTS        read   (SPLITS, POINTS, GROUPS, UNITS, 2 COLUMNS)
 *   WEIGHT_GRADIENT write  OIHW
 * Scalars:
 *   SPLITS
 *   GROUPS
 *   GROUP_INPUT_UNITS
 *   GROUP_OUTPUT_UNITS
 *   UNITS               GROUP_OUTPUT_UNITS or more
 *   COLUMNS             GROUP_INPUT_UNITS or more
 * Macros:
 *   TAPS                of a filter on a side
 *   LOCAL_WIDTH         input units a work-group
 *   LOCAL_UNITS         work-items that share the points of a sum
 * Global:
 *   width   input units of a group, or more
 *   height  output units of a group
 *   units   groups * LOCAL_UNITS
 */
#include "blob.h"
#include "convolution/fourier.h"

__kernel void convolution_fourier_gradient(READ_ARRAY(real_t, products), WRITE_ARRAY(real_t, weight_gradient),
                                           const int splits, const int groups, const int group_input_units,
                                           const int group_output_units, const int units, const int columns)
{
    __local real_t staged[LOCAL_UNITS][TAPS][LOCAL_WIDTH];
    const int column = get_global_id(0);
    const int unit = get_global_id(1);
    const int slice = get_local_id(2);
    const int group = get_group_id(2);
    const int matrices = GROUPS * UNITS * 2 * COLUMNS;
    /* Work-items after the last column repeat it, and store nothing. */
    __global const real_t *from =
        ARRAY(products) + (group * UNITS + unit) * 2 * COLUMNS + min(column, GROUP_INPUT_UNITS - 1);
    real_t filter[TAPS][TAPS];
#pragma unroll
    for (int tap = 0; tap < TAPS * TAPS; tap++) {
        filter[tap / TAPS][tap % TAPS] = 0;
    }
    for (int x = slice; x <= HALF; x += LOCAL_UNITS) {
        real_t real[TAPS];
        real_t imaginary[TAPS];
#pragma unroll
        for (int i = 0; i < TAPS; i++) {
            real[i] = imaginary[i] = 0;
        }
        for (int split = 0; split < SPLITS; split++) {
#pragma unroll
            for (int y = 0; y < SIDE; y++) {
                /* A point adds as much as its opposite, which is not here: twice, but where it is its own. */
                const real_t scale = IS_POINT(y, x) ? (y % HALF || x % HALF ? 2.f : 1.f) : 0;
                const int point = IS_POINT(y, x) ? POINT(y, x) : 0;
                const real_t r = from[(split * POINTS + point) * matrices] * scale;
                const real_t s = from[(split * POINTS + point) * matrices + COLUMNS] * scale;
#pragma unroll
                for (int i = 0; i < TAPS; i++) {
                    real[i] += r * COSINE(y * i) - s * SINE(y * i);
                    imaginary[i] += s * COSINE(y * i) + r * SINE(y * i);
                }
            }
        }
#pragma unroll
        for (int tap = 0; tap < TAPS * TAPS; tap++) {
            const int turn = x * (tap % TAPS);
            filter[tap / TAPS][tap % TAPS] +=
                real[tap / TAPS] * COSINE(turn) - imaginary[tap / TAPS] * SINE(turn);
        }
    }
    __global real_t *to =
        ARRAY(weight_gradient)
        + ((group * GROUP_OUTPUT_UNITS + unit) * GROUP_INPUT_UNITS + column) * (TAPS * TAPS);
#pragma unroll
    for (int i = 0; i < TAPS; i++) {
        barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
        for (int j = 0; j < TAPS; j++) {
            staged[slice][j][get_local_id(0)] = filter[i][j];
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int j = slice; j < TAPS && column < GROUP_INPUT_UNITS; j += LOCAL_UNITS) {
            real_t sum = 0;
            for (int other = 0; other < LOCAL_UNITS; other++) {
                sum += staged[other][j][get_local_id(0)];
            }
            to[i * TAPS + j] = sum / (SIDE * SIDE);
        }
    }
}
