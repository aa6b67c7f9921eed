/*
 * The gradient of the weights by minimal filtering (convolution/winograd.h), on processors: gradient = G^T products G.
 *
 * Arrays:
 *   PRODUCTS        read  (POINTS, GROUPS, GROUP_UNITS, COLUMNS), points PRODUCTS_PITCH apart
 *   WEIGHT_GRADIENT write OIHW
 * Macros:
 *   GROUP_DEPTH     input units of a group
 *   COLUMNS         GROUP_DEPTH in whole vectors
 *   PRODUCTS_PITCH
 *   CELLS           results of a patch on a side
 *   TAPS            of a filter on a side
 *   LANES           input units in a vector
 * Moves:
 *   Winograd weights
 * Global:
 *   width   output units of all groups
 */
#include "blob.h"
#include "vector.h"
#include "convolution/winograd.h"

__kernel void convolution_winograd_filters(READ_ARRAY(real_t, products), WRITE_ARRAY(real_t, weight_gradient))
{
    const int unit = get_global_id(0);
    __global real_t *to = ARRAY(weight_gradient) + unit * (GROUP_DEPTH * TAPS * TAPS);
    for (int column = 0; column < GROUP_DEPTH; column += LANES) {
        vector_t points[POINTS];
        vector_t filters[TAPS * TAPS];
#pragma unroll
        for (int point = 0; point < POINTS; point++) {
            points[point] = VECTOR_LOAD(ARRAY(products) + point * PRODUCTS_PITCH + unit * COLUMNS + column);
        }
        TRANSFORM_GRADIENT(filters, points);
        real_t lanes[TAPS * TAPS][LANES];
        for (int tap = 0; tap < TAPS * TAPS; tap++) {
            VECTOR_STORE(filters[tap], lanes[tap]);
        }
        for (int lane = 0; lane < min(LANES, GROUP_DEPTH - column); lane++) {
            for (int tap = 0; tap < TAPS * TAPS; tap++) {
                to[(column + lane) * (TAPS * TAPS) + tap] = lanes[tap][lane];
            }
        }
    }
}
