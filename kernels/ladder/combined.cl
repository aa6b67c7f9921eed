/*
 * Convolution by work-items that make BLOCK_UNITS output units at BLOCK_WIDTH neighbouring columns: an input value is
 * loaded once for all of the units, a vector of weights once for all of the columns. 16 units are the end of seed 000;
 * 4 units, 2 columns and 4 input units in a step (UNROLL) the outer product of seed 004.
 *
 * Blobs:
 *   INPUT  read   its halo is the padding
 *   OUTPUT write
 * Arrays:
 *   PACKED        read   rows of weights for all units side by side: convolution/pack_weight
 *   BIAS          read   nothing, a unit or a position: BIAS_MODE
 *   PREACTIVATION write  what the activation was applied to, densely NCHW, with STORE_PREACTIVATION
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
 *   BIAS_MODE            0 none, 1 one a unit, 2 one a position
 *   STORE_PREACTIVATION  0 or 1
 *   DEPTH_ROWS           rows a tap in PACKED
 *   UNIT_COLUMNS         columns of PACKED, a multiple of BLOCK_UNITS
 *   BLOCK_UNITS          output units a work-item: 2, 4, 8 or 16
 *   BLOCK_WIDTH          columns a work-item
 *   UNROLL               input units a step; what is left over goes one by one
 *   GLOBAL_UNITS         blocks of output units
 * Global:
 *   width   blocks of columns
 *   height  rows
 *   units   blocks of output units x COUNT
 */
#define LANES BLOCK_UNITS
#include "blob.h"
#include "vector.h"
#include "activation/functions.h"
#include "ladder/epilogue.h"
#include "ladder/run.h"

/* Values of a row of the input from the first tap of the first column to the last tap of the last one. */
#define RUN ((BLOCK_WIDTH - 1) * STRIDE_X + (FILTER_WIDTH - 1) * DILATION_X + 1)

/* Adds one input unit. */
INLINE void accumulate(vector_t sums[BLOCK_WIDTH], __global const real_t *from,
                       __global const real_t *factors)
{
#pragma unroll
    for (int a = 0; a < FILTER_HEIGHT; a++) {
        real_t values[RUN];
        load_run(values, from + a * DILATION_Y * INPUT_UNIT_MEMORY_WIDTH, RUN);
#pragma unroll
        for (int b = 0; b < FILTER_WIDTH; b++) {
            const int row = (a * FILTER_WIDTH + b) * DEPTH_ROWS;
            /* Columns begin at multiples of BLOCK_UNITS, so that this is one aligned load. */
            const vector_t weights = *(__global const vector_t *)(factors + row * UNIT_COLUMNS);
#pragma unroll
            for (int p = 0; p < BLOCK_WIDTH; p++) {
                sums[p] = MULTIPLY_ADD((vector_t)(values[p * STRIDE_X + b * DILATION_X]), weights, sums[p]);
            }
        }
    }
}

__kernel void ladder_combined(READ_BLOB(input), WRITE_BLOB(output), READ_ARRAY(real_t, packed),
                              READ_ARRAY(real_t, bias), WRITE_ARRAY(real_t, preactivation), const int count)
{
    const int x = get_global_id(0) * BLOCK_WIDTH;
    const int y = get_global_id(1);
    const int first = get_global_id(2) % GLOBAL_UNITS * BLOCK_UNITS;
    const int n = get_global_id(2) / GLOBAL_UNITS;
    if (x >= OUTPUT_UNIT_WIDTH || n >= count) {
        return;
    }
    __global const real_t *from =
        input + BLOB_INDEX(INPUT, n, 0, y * STRIDE_Y - PAD_TOP, x * STRIDE_X - PAD_LEFT);
    __global const real_t *factors = ARRAY(packed) + first;
    vector_t sums[BLOCK_WIDTH];
#pragma unroll
    for (int p = 0; p < BLOCK_WIDTH; p++) {
        sums[p] = 0;
    }
    int depth = 0;
    for (; depth + UNROLL <= GROUP_INPUT_UNITS; depth += UNROLL) {
#pragma unroll
        for (int step = 0; step < UNROLL; step++) {
            accumulate(sums, from + step * INPUT_UNIT_MEMORY_ELEMENTS, factors + step * UNIT_COLUMNS);
        }
        from += UNROLL * INPUT_UNIT_MEMORY_ELEMENTS;
        factors += UNROLL * UNIT_COLUMNS;
    }
    for (; depth < GROUP_INPUT_UNITS; depth++) {
        accumulate(sums, from, factors);
        from += INPUT_UNIT_MEMORY_ELEMENTS;
        factors += UNIT_COLUMNS;
    }
#pragma unroll
    for (int p = 0; p < BLOCK_WIDTH; p++) {
        real_t lanes[BLOCK_UNITS];
        VECTOR_STORE(sums[p], lanes);
#pragma unroll
        for (int u = 0; u < BLOCK_UNITS; u++) {
            /* Columns behind the last one lie in the halo, or read it into sums that nobody wants. */
            if (x + p < OUTPUT_UNIT_WIDTH && first + u < GROUP_OUTPUT_UNITS) {
                STORE_OUTPUT(lanes[u], n, first + u, y, x + p);
            }
        }
    }
}
