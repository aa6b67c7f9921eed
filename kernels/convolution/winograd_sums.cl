/*
 * Products of minimal filtering (convolution/winograd.h) on processors, and what they are results of, forward and backward
 * data: result = epilogue(A^T (sum of left * right over the depth) A). A work-item makes the sums of a tile of patches and
 * a block of units at all points, keeps them near, and stores results row by row.
 *
 * Blobs:
 *   RESULT update
 * Arrays:
 *   LEFT  read   (POINTS, GROUPS, UNITS / BLOCK_UNITS, DEPTH, BLOCK_UNITS), the weights, points WEIGHTS_PITCH apart
 *   RIGHT read   (POINTS, GROUPS, DEPTH, PATCHES), points PATCHES_PITCH apart
 * Scalars:
 *   COUNT  samples in this launch
 *   FIRST  the first one
 * Macros:
 *   SAMPLE_PATCHES  patches of a sample
 *   ROW_PATCHES     side by side
 *   GROUPS
 *   GROUP_UNITS     units of a group
 *   UNITS           whole blocks: GROUP_UNITS or more
 *   DEPTH           source units of a group
 *   PATCHES         patches of all samples, whole tiles, or more
 *   WEIGHTS_PITCH
 *   PATCHES_PITCH
 *   CELLS           results of a patch on a side, 2 or 4
 *   TAPS            of a filter on a side
 *   ACCUMULATE      1: add to RESULT
 *   LANES           patches in a vector
 *   BLOCK_VECTORS   vectors a work-item
 *   BLOCK_UNITS     units a work-item
 * Tunables:
 *   MAXIMUM_LANES        loops 16 of 1 2 4 8 16: most lanes
 *   MAXIMUM_VECTORS      loops 3 of 1 2 3 4: most vectors a work-item
 *   MAXIMUM_UNITS        loops 16 of 4 8 12 16 24: most units a work-item
 *   MAXIMUM_ACCUMULATORS loops 24 of 8 12 16 24 28: most vectors of sums
 * Global:
 *   width   blocks of units * groups * tiles of patches
 */
#include "blob.h"
#include "convolution/result.h"
#include "vector.h"
#include "convolution/winograd.h"
#include "put.h"

#define BLOCKS (UNITS / BLOCK_UNITS)
#define TILE (BLOCK_VECTORS * LANES)
#define ROW (LANES * CELLS)

/* The sums of one point. */
INLINE void multiply(__local real_t *sums, __global const real_t *left, __global const real_t *right)
{
    vector_t accumulators[BLOCK_UNITS][BLOCK_VECTORS];
#pragma unroll
    for (int u = 0; u < BLOCK_UNITS; u++) {
#pragma unroll
        for (int v = 0; v < BLOCK_VECTORS; v++) {
            accumulators[u][v] = 0;
        }
    }
    for (int depth = 0; depth < DEPTH; depth++) {
        vector_t values[BLOCK_VECTORS];
#pragma unroll
        for (int v = 0; v < BLOCK_VECTORS; v++) {
            values[v] = VECTOR_LOAD(right + v * LANES);
        }
#pragma unroll
        for (int u = 0; u < BLOCK_UNITS; u++) {
#pragma unroll
            for (int v = 0; v < BLOCK_VECTORS; v++) {
                accumulators[u][v] = MULTIPLY_ADD((vector_t)(left[u]), values[v], accumulators[u][v]);
            }
        }
        left += BLOCK_UNITS;
        right += PATCHES;
    }
#pragma unroll
    for (int u = 0; u < BLOCK_UNITS; u++) {
#pragma unroll
        for (int v = 0; v < BLOCK_VECTORS; v++) {
            VECTOR_STORE(accumulators[u][v], sums + u * TILE + v * LANES);
        }
    }
}

/* Stores the lanes of two vectors in turn. */
#if LANES > 1
INLINE void weave(__local real_t *to, const vector_t even, const vector_t odd)
{
    vector_t both;
    both.even = even.lo;
    both.odd = odd.lo;
    VECTOR_STORE(both, to);
    both.even = even.hi;
    both.odd = odd.hi;
    VECTOR_STORE(both, to + LANES);
}
#endif

/* Stores the results of a vector of patches in the order of their rows, each a number of cells side by side. */
INLINE void put_rows(__local real_t rows[CELLS][ROW], __local real_t halves[2][2 * LANES],
                     const vector_t *cells)
{
#pragma unroll
    for (int i = 0; i < CELLS; i++) {
        const vector_t *row = cells + i * CELLS;
#if LANES > 1 && CELLS == 2
        weave(rows[i], row[0], row[1]);
#elif LANES > 1 && CELLS == 4
        weave(halves[0], row[0], row[2]);
        weave(halves[1], row[1], row[3]);
        weave(rows[i], VECTOR_LOAD(halves[0]), VECTOR_LOAD(halves[1]));
        weave(rows[i] + 2 * LANES, VECTOR_LOAD(halves[0] + LANES), VECTOR_LOAD(halves[1] + LANES));
#else
        for (int j = 0; j < CELLS; j++) {
            rows[i][j] = row[j];
        }
#endif
    }
}

__kernel void convolution_winograd_sums(WRITE_BLOB(result), EPILOGUE_BLOBS, READ_ARRAY(real_t, left),
                                        READ_ARRAY(real_t, right), EPILOGUE_ARRAYS, const int count,
                                        const int first)
{
    const int block = get_global_id(0) % (GROUPS * BLOCKS);
    const int start = get_global_id(0) / (GROUPS * BLOCKS) * TILE;
    const int group = block / BLOCKS;
    const int unit = group * GROUP_UNITS + block % BLOCKS * BLOCK_UNITS;
    const int units = min(BLOCK_UNITS, GROUP_UNITS - block % BLOCKS * BLOCK_UNITS);
    __local real_t sums[POINTS][BLOCK_UNITS * TILE] __attribute__((aligned(64)));
    __local real_t rows[CELLS][ROW] __attribute__((aligned(64)));
    __local real_t halves[2][2 * LANES] __attribute__((aligned(64)));
    for (int point = 0; point < POINTS; point++) {
        multiply(sums[point], ARRAY(left) + point * WEIGHTS_PITCH + block * (DEPTH * BLOCK_UNITS),
                 ARRAY(right) + point * PATCHES_PITCH + group * (DEPTH * PATCHES) + start);
    }
    for (int u = 0; u < units; u++) {
        const real_t bias = UNIT_BIAS(unit + u);
        for (int v = 0; v < BLOCK_VECTORS; v++) {
            vector_t points[POINTS];
            vector_t cells[CELLS * CELLS];
#pragma unroll
            for (int point = 0; point < POINTS; point++) {
                points[point] = VECTOR_LOAD(sums[point] + u * TILE + v * LANES);
            }
            TRANSFORM_RESULT(cells, points);
            put_rows(rows, halves, cells);
            const int end = min(start + (v + 1) * LANES, count * SAMPLE_PATCHES);
            for (int patch = start + v * LANES; patch < end;) {
                const int n = first + patch / SAMPLE_PATCHES;
                const int y = patch % SAMPLE_PATCHES / ROW_PATCHES * CELLS;
                const int x = patch % ROW_PATCHES * CELLS;
                const int run = min(ROW_PATCHES - patch % ROW_PATCHES, end - patch);
                const int width = min(run * CELLS, RESULT_UNIT_WIDTH - x);
                for (int i = 0; i < min(CELLS, RESULT_UNIT_HEIGHT - y); i++) {
                    __local const real_t *row = rows[i] + patch % LANES * CELLS;
                    __global result_t *to = result + BLOB_INDEX(RESULT, n, unit + u, y + i, x);
                    int at = 0;
                    for (; at + LANES <= width; at += LANES) {
                        vector_t value = BIASED(VECTOR_LOAD(row + at), bias, unit + u);
#if HAS_CELL_TERM
                        value = JOINED(value, CELL_TERMS(n, unit + u, y + i, x + at), unit + u);
#endif
                        value = FINISHED(value, unit + u);
#if ACCUMULATE
                        value += VECTOR_LOAD(to + at);
#endif
                        VECTOR_STORE(value, to + at);
                    }
                    for (; at < width; at++) {
                        const real_t value = BIASED(row[at], bias, unit + u);
                        PUT(FINISHED(CELL_EPILOGUE(value, n, unit + u, y + i, x + at), unit + u), to + at);
                    }
                }
                patch += run;
            }
        }
    }
}
