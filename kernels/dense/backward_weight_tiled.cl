/*
 * Dense, backward, gradient of the weights, through local memory (dense/tiled.h): weight_gradient[o][k] = sum over
 * samples n of output_delta[n][o] * input[n][k].
 *
 * Blobs:
 *   INPUT        read  without padding
 *   OUTPUT_DELTA read
 * Arrays:
 *   WEIGHT_GRADIENT write  OI
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   TILE_UNITS    output units a work-group
 *   TILE_COLUMNS  elements a work-group
 *   TILE_DEPTH    samples in local memory
 *   ITEM_UNITS    output units a work-item
 *   ITEM_COLUMNS  elements a work-item
 *   CHEAP_ADDRESSES 1: in few instructions, see place.h
 * Global:
 *   width  work-items a tile * tiles of elements * tiles of output units
 */
#include "blob.h"

#define ELEMENTS BLOB_ELEMENTS(INPUT)
#define LEFT_AT(o) ((o) * OUTPUT_DELTA_UNIT_MEMORY_ELEMENTS)
#define LEFT_STEP OUTPUT_DELTA_MEMORY_ELEMENTS
#define RIGHT_AT(k) (k)
#define RIGHT_STEP INPUT_MEMORY_ELEMENTS
#define left_t output_delta_t
#define right_t input_t
#include "dense/tiled.h"

#define COLUMN_TILES ((ELEMENTS + TILE_COLUMNS - 1) / TILE_COLUMNS)

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void
dense_backward_weight_tiled(READ_BLOB(input), READ_BLOB(output_delta), WRITE_ARRAY(real_t, weight_gradient),
                            const int count)
{
    __local real_t left[2][TILE_DEPTH * UNIT_PITCH] __attribute__((aligned(128)));
    __local real_t right[2][TILE_DEPTH * COLUMN_PITCH] __attribute__((aligned(128)));
    const int first_unit = get_group_id(0) / COLUMN_TILES * TILE_UNITS;
    const int first_element = get_group_id(0) % COLUMN_TILES * TILE_COLUMNS;
    real_t sums[ITEM_UNITS][ITEM_COLUMNS];
    accumulate(sums, 0, count, OUTPUT_DELTA_UNIT_COUNT, ELEMENTS, first_unit, first_element,
               output_delta + BLOB_INDEX(OUTPUT_DELTA, 0, 0, 0, 0), input + BLOB_INDEX(INPUT, 0, 0, 0, 0),
               left, right);
    store_matrix(ARRAY(weight_gradient), sums, OUTPUT_DELTA_UNIT_COUNT, ELEMENTS, first_unit, first_element);
}
