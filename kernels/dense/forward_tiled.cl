/*
 * Dense (perceptron), forward, the products: output[n][o] = sum over elements k of weight[o][k] * input[n][k], through
 * local memory (dense/tiled.h), in splits of the elements that dense/split_sum.cl adds.
 *
 * Blobs:
 *   INPUT  read   without padding
 * Arrays:
 *   WEIGHT   read   OI
 *   PARTIALS write  (SPLITS, samples, UNITS)
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   UNITS         output units
 *   SPLITS        of the elements
 *   TILE_UNITS    samples a work-group
 *   TILE_COLUMNS  output units a work-group
 *   TILE_DEPTH    elements in local memory
 *   ITEM_UNITS    samples a work-item
 *   ITEM_COLUMNS  output units a work-item
 *   CHEAP_ADDRESSES 1: in few instructions, see place.h
 * Global:
 *   width   work-items a tile * tiles of output units * tiles of samples
 *   height  SPLITS
 */
#include "blob.h"

#define ELEMENTS BLOB_ELEMENTS(INPUT)
#define LEFT_AT(n) ((n) * INPUT_MEMORY_ELEMENTS)
#define LEFT_STEP 1
#define RIGHT_AT(o) ((o) * ELEMENTS)
#define RIGHT_STEP 1
#define left_t input_t
#define right_t weight_t
#include "dense/tiled.h"

#define COLUMN_TILES ((UNITS + TILE_COLUMNS - 1) / TILE_COLUMNS)

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void
dense_forward_tiled(READ_BLOB(input), READ_ARRAY(weight_t, weight), WRITE_ARRAY(real_t, partials),
                    const int count)
{
    __local real_t left[2][TILE_DEPTH * UNIT_PITCH] __attribute__((aligned(128)));
    __local real_t right[2][TILE_DEPTH * COLUMN_PITCH] __attribute__((aligned(128)));
    const int split = GLOBAL_ID_OF_GROUP(1);
    const int first_sample = get_group_id(0) / COLUMN_TILES * TILE_UNITS;
    const int first_unit = get_group_id(0) % COLUMN_TILES * TILE_COLUMNS;
    real_t sums[ITEM_UNITS][ITEM_COLUMNS];
    accumulate(sums, (int)((long)ELEMENTS * split / SPLITS), (int)((long)ELEMENTS * (split + 1) / SPLITS),
               count, UNITS, first_sample, first_unit, input + BLOB_INDEX(INPUT, 0, 0, 0, 0), ARRAY(weight),
               left, right);
    store_matrix(ARRAY(partials) + (size_t)split * count * UNITS, sums, count, UNITS, first_sample,
                 first_unit);
}
