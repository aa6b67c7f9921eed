/*
 * Dense, backward, delta of the input, through local memory (dense/product.h): input_delta[n][k] = sum over units o of
 * output_delta[n][o] * weight[o][k].
 *
 * Blobs:
 *   OUTPUT_DELTA read
 *   INPUT_DELTA  update  without padding
 * Arrays:
 *   WEIGHT read   OI
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   ACCUMULATE    1: add to INPUT_DELTA
 *   TILE_UNITS    samples a work-group
 *   TILE_COLUMNS  elements a work-group
 *   TILE_DEPTH    output units in local memory
 *   ITEM_UNITS    samples a work-item
 *   ITEM_COLUMNS  elements a work-item
 * Global:
 *   width  work-items a tile * tiles of elements * tiles of samples
 */
#include "blob.h"
#include "put.h"

#define ELEMENTS BLOB_ELEMENTS(INPUT_DELTA)
#define LEFT_AT(n) ((n) * OUTPUT_DELTA_MEMORY_ELEMENTS)
#define LEFT_STEP OUTPUT_DELTA_UNIT_MEMORY_ELEMENTS
#define RIGHT_AT(k) (k)
#define RIGHT_STEP ELEMENTS
#include "dense/product.h"

#define COLUMN_TILES ((ELEMENTS + TILE_COLUMNS - 1) / TILE_COLUMNS)

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void
dense_backward_data_tiled(READ_BLOB(output_delta), WRITE_BLOB(input_delta), READ_ARRAY(real_t, weight),
                          const int count)
{
    __local real_t left[2][TILE_DEPTH * UNIT_PITCH] __attribute__((aligned(128)));
    __local real_t right[2][TILE_DEPTH * COLUMN_PITCH] __attribute__((aligned(128)));
    const int first_sample = get_group_id(0) / COLUMN_TILES * TILE_UNITS;
    const int first_element = get_group_id(0) % COLUMN_TILES * TILE_COLUMNS;
    real_t sums[ITEM_UNITS][ITEM_COLUMNS];
    accumulate(sums, 0, OUTPUT_DELTA_UNIT_COUNT, count, ELEMENTS, first_sample, first_element,
               output_delta + BLOB_INDEX(OUTPUT_DELTA, 0, 0, 0, 0), ARRAY(weight), left, right);
#pragma unroll
    for (int u = 0; u < ITEM_UNITS; u++) {
        const int n = first_sample + ITEM_UNIT(u);
#pragma unroll
        for (int c = 0; c < ITEM_COLUMNS; c++) {
            const int k = first_element + ITEM_COLUMN(c);
            if (n < count && k < ELEMENTS) {
                PUT(sums[u][c], input_delta + BLOB_INDEX(INPUT_DELTA, n, 0, 0, k));
            }
        }
    }
}
