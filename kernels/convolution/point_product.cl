/*
 * The products of minimal filtering (convolution/winograd.h), one for each point and group: products[b] = left[b] *
 * right[b], of whole tiles. A work-group makes TILE_UNITS x TILE_COLUMNS sums, a work-item ITEM_UNITS x ITEM_COLUMNS of
 * them; TILE_DEPTH of the depth of both factors lie in local memory while the next ones are on their way.
 *
 * Forward and backward data: units are those of the result, depth is the source units, columns are patches.
 * Gradient of the weights (BY_BATCH): units are output units, depth is the patches of the batch, columns are input
 * units. Splits of the patches go to a partial sum each.
 *
 * Rounded sums of many terms are what errs most. With SUM_ROWS, sums of so many are added to totals.
 *
 * Arrays:
 *   LEFT     read    (batches, DEPTH, UNITS)
 *   RIGHT    read    (batches, DEPTH, COLUMNS)
 *   PRODUCTS update  (SPLITS, batches, UNITS, COLUMNS)
 * Scalars:
 *   COUNT  samples in this launch
 * Macros:
 *   UNITS
 *   COLUMNS
 *   DEPTH
 *   BY_BATCH        1: the depth grows with the batch
 *   SAMPLE_ROWS     then: the depth of a sample
 *   SPLITS
 *   ACCUMULATE      1: add to PRODUCTS
 *   GLOBAL_UNITS    batches
 *   SUM_ROWS        depth of a sum, whole steps; 0: all of it
 *   TILE_UNITS      units a work-group
 *   TILE_COLUMNS    columns a work-group
 *   TILE_DEPTH      depth in local memory
 *   ITEM_UNITS      units a work-item
 *   ITEM_COLUMNS    columns a work-item
 * Global:
 *   width   work-items a tile * tiles, those of the same columns side by side
 *   height  SPLITS
 *   units   points * groups
 */
#include "blob.h"
#include "put.h"

#define ITEM (int)get_local_id(0)
#define UNIT_PITCH TILE_UNITS
#define COLUMN_PITCH TILE_COLUMNS
#include "convolution/local_product.h"

/* Quads of each factor that a work-item brings for a step. */
#define UNIT_QUADS (TILE_DEPTH * TILE_UNITS / 4 / ITEMS)
#define COLUMN_QUADS (TILE_DEPTH * TILE_COLUMNS / 4 / ITEMS)

/* Loads `quads` quads of TILE_DEPTH x `width` values; `size` is that of the whole factor. */
INLINE void fetch(float4 *next, const int quads, __global const real_t *from, const int width, const int size)
{
    UNROLL_ARGUMENT
    for (int i = 0; i < quads; i++) {
        const int quad = ITEM + i * ITEMS;
        next[i] = *(__global const float4 *)(from + quad / (width / 4) * size + quad % (width / 4) * 4);
    }
}

INLINE void put(const float4 *next, const int quads, __local real_t *to)
{
    UNROLL_ARGUMENT
    for (int i = 0; i < quads; i++) {
        *(__local float4 *)(to + (ITEM + i * ITEMS) * 4) = next[i];
    }
}

/* Adds the sums to the totals, and clears them. */
INLINE void add(real_t totals[ITEM_UNITS][ITEM_COLUMNS], real_t sums[ITEM_UNITS][ITEM_COLUMNS])
{
#pragma unroll
    for (int u = 0; u < ITEM_UNITS; u++) {
#pragma unroll
        for (int c = 0; c < ITEM_COLUMNS; c++) {
            totals[u][c] += sums[u][c];
        }
    }
    clear(sums);
}

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void
convolution_point_product(READ_ARRAY(real_t, left), READ_ARRAY(real_t, right), WRITE_ARRAY(real_t, products),
                          const int count)
{
    __local real_t local_left[2][TILE_DEPTH * TILE_UNITS] __attribute__((aligned(128)));
    __local real_t local_right[2][TILE_DEPTH * TILE_COLUMNS] __attribute__((aligned(128)));
    const int first_unit = get_group_id(0) % (UNITS / TILE_UNITS) * TILE_UNITS;
    const int first_column = get_group_id(0) / (UNITS / TILE_UNITS) * TILE_COLUMNS;
    const int split = get_global_id(1);
    const int batch = get_global_id(2);
#if BY_BATCH
    const int all_steps = (count * SAMPLE_ROWS + TILE_DEPTH - 1) / TILE_DEPTH;
#else
    const int all_steps = DEPTH / TILE_DEPTH;
#endif
    const int first_step = all_steps * split / SPLITS;
    const int steps = all_steps * (split + 1) / SPLITS - first_step;
    const int first_row = batch * DEPTH + first_step * TILE_DEPTH;
    __global const real_t *left = ARRAY(left) + first_row * UNITS + first_unit;
    __global const real_t *right = ARRAY(right) + first_row * COLUMNS + first_column;

    real_t sums[ITEM_UNITS][ITEM_COLUMNS];
    clear(sums);
#if SUM_ROWS
    real_t totals[ITEM_UNITS][ITEM_COLUMNS];
    clear(totals);
#endif
    if (steps > 0) {
        float4 next_left[UNIT_QUADS];
        float4 next_right[COLUMN_QUADS];
        fetch(next_left, UNIT_QUADS, left, TILE_UNITS, UNITS);
        fetch(next_right, COLUMN_QUADS, right, TILE_COLUMNS, COLUMNS);
        put(next_left, UNIT_QUADS, local_left[0]);
        put(next_right, COLUMN_QUADS, local_right[0]);
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int step = 0; step < steps - 1; step++) {
            left += TILE_DEPTH * UNITS;
            right += TILE_DEPTH * COLUMNS;
            fetch(next_left, UNIT_QUADS, left, TILE_UNITS, UNITS);
            fetch(next_right, COLUMN_QUADS, right, TILE_COLUMNS, COLUMNS);
            multiply(sums, local_left[step % 2], local_right[step % 2]);
            put(next_left, UNIT_QUADS, local_left[(step + 1) % 2]);
            put(next_right, COLUMN_QUADS, local_right[(step + 1) % 2]);
#if SUM_ROWS
            if ((step + 1) % (SUM_ROWS / TILE_DEPTH) == 0) {
                add(totals, sums);
            }
#endif
            barrier(CLK_LOCAL_MEM_FENCE);
        }
        multiply(sums, local_left[(steps - 1) % 2], local_right[(steps - 1) % 2]);
    }
#if SUM_ROWS
    add(sums, totals);
#endif

    __global real_t *results = ARRAY(products)
                               + ((size_t)(split * GLOBAL_UNITS + batch) * UNITS + first_unit) * COLUMNS
                               + first_column;
#pragma unroll
    for (int u = 0; u < ITEM_UNITS; u++) {
#pragma unroll
        for (int c = 0; c < ITEM_COLUMNS; c += 4) {
            PUT(vload4(0, sums[u] + c),
                (__global float4 *)(results + ITEM_UNIT(u) * COLUMNS + ITEM_COLUMN(c)));
        }
    }
}
