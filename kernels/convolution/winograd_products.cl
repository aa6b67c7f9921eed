/*
 * Sums over patches for the gradient of the weights by minimal filtering (convolution/winograd.h), on processors:
 * products[point][group][unit][column] = sum of left * right over the patches of all samples. A work-item takes a block of
 * units at one point, whose patches stay in a cache, and all columns, block by block; lanes are patches until the end.
 *
 * Arrays:
 *   LEFT     read   (POINTS, GROUPS, GROUP_UNITS, PATCHES), of the delta, points DELTAS_PITCH apart
 *   RIGHT    read   (POINTS, GROUPS, GROUP_DEPTH, PATCHES), of the input, points PATCHES_PITCH apart
 *   PRODUCTS update (POINTS, GROUPS, GROUP_UNITS, COLUMNS), points PRODUCTS_PITCH apart
 * Scalars:
 *   COUNT  samples in this launch
 * Macros:
 *   SAMPLE_PATCHES  patches of a sample
 *   GROUP_UNITS     output units of a group
 *   GROUP_DEPTH     input units of a group
 *   COLUMNS         GROUP_DEPTH or more
 *   PATCHES         patches of all samples, or more; zeros behind the last, up to a whole vector
 *   DELTAS_PITCH
 *   PATCHES_PITCH
 *   PRODUCTS_PITCH
 *   ACCUMULATE      1: add to PRODUCTS
 *   LANES           patches in a vector
 *   BLOCK_UNITS     output units a work-item
 *   BLOCK_COLUMNS   input units at once
 * Tunables:
 *   MAXIMUM_LANES        loops 16 of 1 2 4 8 16: most lanes
 *   MAXIMUM_UNITS        loops 8 of 1 2 3 4 6 8: most output units a work-item
 *   MAXIMUM_COLUMNS      loops 8 of 1 2 3 4 6 8: most input units at once
 *   MAXIMUM_ACCUMULATORS loops 24 of 8 12 16 24 28: most vectors of sums
 * Global:
 *   width   blocks of units * groups
 *   height  POINTS
 */
#include "blob.h"
#include "vector.h"
#include "put.h"

#define BLOCKS ((GROUP_UNITS + BLOCK_UNITS - 1) / BLOCK_UNITS)

__kernel void convolution_winograd_products(READ_ARRAY(real_t, left), READ_ARRAY(real_t, right),
                                            WRITE_ARRAY(real_t, products), const int count)
{
    const int point = get_global_id(1);
    const int group = (int)get_global_id(0) / BLOCKS;
    const int first_unit = (int)get_global_id(0) % BLOCKS * BLOCK_UNITS;
    __global const real_t *deltas = ARRAY(left) + point * DELTAS_PITCH + group * (GROUP_UNITS * PATCHES);
    __global const real_t *patches = ARRAY(right) + point * PATCHES_PITCH + group * (GROUP_DEPTH * PATCHES);
    __global real_t *to = ARRAY(products) + point * PRODUCTS_PITCH + group * (GROUP_UNITS * COLUMNS);
    for (int first_column = 0; first_column < GROUP_DEPTH; first_column += BLOCK_COLUMNS) {
        vector_t sums[BLOCK_UNITS][BLOCK_COLUMNS];
#pragma unroll
        for (int u = 0; u < BLOCK_UNITS; u++) {
#pragma unroll
            for (int c = 0; c < BLOCK_COLUMNS; c++) {
                sums[u][c] = 0;
            }
        }
        for (int patch = 0; patch < count * SAMPLE_PATCHES; patch += LANES) {
            vector_t values[BLOCK_COLUMNS];
            /* What is past the last unit or column repeats it; those sums are of no use. */
#pragma unroll
            for (int c = 0; c < BLOCK_COLUMNS; c++) {
                values[c] = VECTOR_LOAD(patches + min(first_column + c, GROUP_DEPTH - 1) * PATCHES + patch);
            }
#pragma unroll
            for (int u = 0; u < BLOCK_UNITS; u++) {
                const vector_t delta =
                    VECTOR_LOAD(deltas + min(first_unit + u, GROUP_UNITS - 1) * PATCHES + patch);
#pragma unroll
                for (int c = 0; c < BLOCK_COLUMNS; c++) {
                    sums[u][c] = MULTIPLY_ADD(delta, values[c], sums[u][c]);
                }
            }
        }
#pragma unroll
        for (int u = 0; u < BLOCK_UNITS; u++) {
#pragma unroll
            for (int c = 0; c < BLOCK_COLUMNS; c++) {
                if (first_unit + u < GROUP_UNITS && first_column + c < GROUP_DEPTH) {
                    PUT(VECTOR_SUM(sums[u][c]), to + (first_unit + u) * COLUMNS + first_column + c);
                }
            }
        }
    }
}
