/*
 * The gradient of the weights from the sums of convolution/backward_weight_unitwise.cl:
 * gradient[o][i][tap] = sum over splits of partials[split][tap][o][i], in the order of the splits.
 *
 * Arrays:
 *   PARTIALS read   (SPLITS, TAPS, output units, COLUMNS)
 *   GRADIENT write  OIHW
 * Macros:
 *   UNITS              output units
 *   GROUP_INPUT_UNITS
 *   COLUMNS            GROUP_INPUT_UNITS or more, a multiple of LANES
 *   TAPS
 *   SPLITS
 *   LANES
 * Global:
 *   width   vectors of input units
 *   height  output units
 */
#include "blob.h"
#include "vector.h"

__kernel void convolution_unitwise_gradient(READ_ARRAY(real_t, partials), WRITE_ARRAY(real_t, gradient))
{
    const int first = get_global_id(0) * LANES;
    const int unit = get_global_id(1);
    real_t sums[TAPS][LANES];
    for (int tap = 0; tap < TAPS; tap++) {
        vector_t sum = 0;
        for (int split = 0; split < SPLITS; split++) {
            sum += VECTOR_LOAD(ARRAY(partials) + (((size_t)split * TAPS + tap) * UNITS + unit) * COLUMNS
                               + first);
        }
        VECTOR_STORE(sum, sums[tap]);
    }
    __global real_t *to = ARRAY(gradient) + ((size_t)unit * GROUP_INPUT_UNITS + first) * TAPS;
    const int lanes = min(LANES, GROUP_INPUT_UNITS - first);
    for (int lane = 0; lane < lanes; lane++) {
        for (int tap = 0; tap < TAPS; tap++) {
            to[lane * TAPS + tap] = sums[tap][lane];
        }
    }
}
