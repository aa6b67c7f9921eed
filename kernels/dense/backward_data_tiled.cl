/*
 * Dense, backward, delta of the input, the products: input_delta[n][k] = sum over units o of output_delta[n][o] *
 * weight[o][k], through local memory (dense/tiled.h), in splits of the units that dense/split_sum.cl adds.
 *
 * Blobs:
 *   OUTPUT_DELTA read
 * Arrays:
 *   WEIGHT   read   OI
 *   PARTIALS write  (SPLITS, samples, ELEMENTS)
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   ELEMENTS      of a sample of the input
 *   SPLITS        of the output units
 *   TILE_UNITS    samples a work-group
 *   TILE_COLUMNS  elements a work-group
 *   TILE_DEPTH    output units in local memory
 *   ITEM_UNITS    samples a work-item
 *   ITEM_COLUMNS  elements a work-item
 *   CHEAP_ADDRESSES 1: in few instructions, see place.h
 * Global:
 *   width   work-items a tile * tiles of elements * tiles of samples
 *   height  SPLITS
 */
#include "blob.h"

#define UNITS OUTPUT_DELTA_UNIT_COUNT
#define LEFT_AT(n) ((n) * OUTPUT_DELTA_MEMORY_ELEMENTS)
#define LEFT_STEP OUTPUT_DELTA_UNIT_MEMORY_ELEMENTS
#define RIGHT_AT(k) (k)
#define RIGHT_STEP ELEMENTS
#define left_t output_delta_t
#define right_t weight_t
#include "dense/tiled.h"

#define COLUMN_TILES ((ELEMENTS + TILE_COLUMNS - 1) / TILE_COLUMNS)

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void
dense_backward_data_tiled(READ_BLOB(output_delta), READ_ARRAY(weight_t, weight),
                          WRITE_ARRAY(real_t, partials), const int count)
{
    __local real_t left[2][TILE_DEPTH * UNIT_PITCH] __attribute__((aligned(128)));
    __local real_t right[2][TILE_DEPTH * COLUMN_PITCH] __attribute__((aligned(128)));
    const int split = GLOBAL_ID_OF_GROUP(1);
    const int first_sample = get_group_id(0) / COLUMN_TILES * TILE_UNITS;
    const int first_element = get_group_id(0) % COLUMN_TILES * TILE_COLUMNS;
    real_t sums[ITEM_UNITS][ITEM_COLUMNS];
    accumulate(sums, (int)((long)UNITS * split / SPLITS), (int)((long)UNITS * (split + 1) / SPLITS), count,
               ELEMENTS, first_sample, first_element, output_delta + BLOB_INDEX(OUTPUT_DELTA, 0, 0, 0, 0),
               ARRAY(weight), left, right);
    store_matrix(ARRAY(partials) + (size_t)split * count * ELEMENTS, sums, count, ELEMENTS, first_sample,
                 first_element);
}
