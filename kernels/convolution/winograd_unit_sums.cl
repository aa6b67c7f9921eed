/*
 * Products of minimal filtering (convolution/winograd.h) of blobs of cells on processors, and what they are results of:
 * output = epilogue(A^T (sum of weight * patch over the depth) A). A work-item makes the sums of a block of vectors of units
 * for some runs of patches, keeps them near, and stores results; the weights of a point serve all runs, one after the other.
 *
 * Blobs:
 *   OUTPUT write
 * Arrays:
 *   LEFT  read   (POINTS, vectors of units, DEPTH, LANES), the weights, points WEIGHTS_PITCH apart
 *   RIGHT read   (POINTS, DEPTH / CELL_UNITS, PATCHES, CELL_UNITS), points PATCHES_PITCH apart
 * Scalars:
 *   COUNT  samples in this launch
 *   FIRST  the first one
 * Macros:
 *   SAMPLE_PATCHES  patches of a sample
 *   ROW_PATCHES     side by side
 *   UNITS           whole blocks: units of the output or more
 *   DEPTH           units of the source
 *   PATCHES         patches of all samples, in whole runs
 *   WEIGHTS_PITCH
 *   PATCHES_PITCH
 *   CELLS           results of a patch on a side, 2 or 4
 *   TAPS            of a filter on a side
 *   LANES           units of a vector, a multiple of a cell's
 *   BLOCK_VECTORS   vectors a work-item
 *   RUN             patches at once
 *   RUNS_AT_ONCE    runs a work-item
 * Tunables:
 *   MAXIMUM_LANES        loops 16 of 8 16: most lanes
 *   MAXIMUM_VECTORS      loops 4 of 1 2 3 4: most vectors a work-item
 *   MAXIMUM_RUN          loops 14 of 4 6 7 8 12 14 28: most patches at once
 *   MAXIMUM_ACCUMULATORS loops 28 of 8 12 20 24 28: most vectors of sums
 *   TARGET_ITEMS         loops 2 of 1 2 4 8 32: work-items a compute unit, if there are so many runs
 * Global:
 *   width   blocks of units * runs of patches
 */
#define SOURCE_CELL CELL_UNITS
#include "blob.h"
#include "vector.h"
#include "convolution/epilogue.h"
#include "convolution/unit_vectors.h"
#include "convolution/winograd.h"

#define BLOCK_UNITS (BLOCK_VECTORS * LANES)
#define BLOCKS (UNITS / BLOCK_UNITS)
/* Vectors of the next point's weights that a run asks for, in each of its steps. */
#define ASKS (RUNS_AT_ONCE == 1 ? 0 : (BLOCK_VECTORS * SOURCE_CELL + RUNS_AT_ONCE - 1) / RUNS_AT_ONCE)
#define MOST_PATCHES (RUN * RUNS_AT_ONCE)

/* The sums of a run at one point. */
INLINE void multiply(__local real_t sums[RUN][BLOCK_VECTORS][LANES], __global const real_t *left,
                     __global const real_t *right, const int run)
{
    vector_t near[BLOCK_VECTORS][RUN];
    clear_sums(near);
    for (int c = 0; c < DEPTH / SOURCE_CELL; c++) {
#pragma unroll
        for (int i = 0; i < ASKS; i++) {
            const int at = run * ASKS + i;
            PREFETCH_TO_KEEP(left + WEIGHTS_PITCH + at / SOURCE_CELL * (DEPTH * LANES)
                             + (c * SOURCE_CELL + at % SOURCE_CELL) * LANES);
        }
        add_products(near, right + c * PATCHES * SOURCE_CELL, 1, left + c * SOURCE_CELL * LANES,
                     DEPTH * LANES);
    }
#pragma unroll
    for (int v = 0; v < BLOCK_VECTORS; v++) {
#pragma unroll
        for (int i = 0; i < RUN; i++) {
            VECTOR_STORE(near[v][i], sums[i][v]);
        }
    }
}

__kernel void convolution_winograd_unit_sums(WRITE_BLOB(output), EPILOGUE_BLOBS, READ_ARRAY(real_t, left),
                                             READ_ARRAY(real_t, right), EPILOGUE_ARRAYS, const int count,
                                             const int first)
{
    const int vector = (int)get_global_id(0) % BLOCKS * BLOCK_VECTORS;
    const int start = (int)get_global_id(0) / BLOCKS * MOST_PATCHES;
    const int patches = min(MOST_PATCHES, count * SAMPLE_PATCHES - start);
    __local real_t sums[POINTS][MOST_PATCHES][BLOCK_VECTORS][LANES] __attribute__((aligned(64)));
    for (int point = 0; point < POINTS; point++) {
        for (int i = 0; i < patches; i += RUN) {
            multiply(sums[point] + i, ARRAY(left) + point * WEIGHTS_PITCH + vector * (DEPTH * LANES),
                     ARRAY(right) + point * PATCHES_PITCH + (start + i) * SOURCE_CELL, i / RUN);
        }
    }
    for (int v = 0; v < BLOCK_VECTORS; v++) {
        const int z = (vector + v) * VECTOR_ELEMENTS;
        for (int i = 0; i < patches; i++) {
            vector_t points[POINTS];
            vector_t cells[CELLS * CELLS];
#pragma unroll
            for (int point = 0; point < POINTS; point++) {
                points[point] = VECTOR_LOAD(sums[point][i][v]);
            }
            TRANSFORM_RESULT(cells, points);
            const int n = first + (start + i) / SAMPLE_PATCHES;
            const int y = (start + i) % SAMPLE_PATCHES / ROW_PATCHES * CELLS;
            const int x = (start + i) % ROW_PATCHES * CELLS;
            for (int e = 0; e < min(VECTOR_ELEMENTS, OUTPUT_UNIT_COUNT - z); e++) {
                const number_t bias = UNIT_BIAS(z + e);
#pragma unroll
                for (int a = 0; a < CELLS; a++) {
#pragma unroll
                    for (int b = 0; b < CELLS; b++) {
                        if (y + a < OUTPUT_UNIT_HEIGHT && x + b < OUTPUT_UNIT_WIDTH) {
                            const number_t sum = BIASED(element_of(cells[a * CELLS + b], e), bias, z + e);
                            const number_t value = CELL_EPILOGUE(sum, n, z + e, y + a, x + b);
                            __global output_t *to = output + BLOB_INDEX(OUTPUT, n, z + e, y + a, x + b);
                            WRITE_VALUE(to, 0, FINISHED(value, z + e));
                        }
                    }
                }
            }
        }
    }
}
