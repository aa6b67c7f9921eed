/*
 * Convolution, backward, delta of the input, through local memory: one phase of a convolution of any stride. Input cells
 * (i * STRIDE_Y + PHASE_Y, j * STRIDE_X + PHASE_X) see the same subset of taps at fixed shifts of the output's delta
 * (see backward_data.cl), as a product of packed weights and the delta at all positions (convolution/tiled.h).
 *
 * Blobs:
 *   OUTPUT_DELTA read   with a halo of zeros
 *   INPUT_DELTA  update
 * Arrays:
 *   PACKED read   weights, see pack_weight.cl; or as they are, where they lie so
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   GROUP_INPUT_UNITS
 *   GROUP_OUTPUT_UNITS
 *   FILTER_HEIGHT
 *   FILTER_WIDTH
 *   STRIDE_Y
 *   STRIDE_X
 *   PHASE_Y
 *   PHASE_X
 *   BESIDE_Y        phases side by side, see phase_positions.h
 *   BESIDE_X
 *   TAPS_Y          taps of this phase
 *   TAPS_X
 *   TAP_Y_FIRST     the first one's filter row
 *   TAP_Y_STEP
 *   TAP_X_FIRST
 *   TAP_X_STEP
 *   ROW_FIRST       the first one's shift in rows of the delta
 *   ROW_STEP
 *   COLUMN_FIRST
 *   COLUMN_STEP
 *   DEPTH_ROWS      rows a tap in PACKED
 *   ZERO_ROWS       rows of zeros after the last tap in PACKED
 *   UNIT_COLUMNS    columns of PACKED
 *   ROW_POSITIONS   positions a row: its width, or the pitch of the delta where that may be
 *   ACCUMULATE      1: add to INPUT_DELTA
 *   TILE_UNITS      input units a work-group
 *   TILE_COLUMNS    positions a work-group
 *   TILE_DEPTH      rows in local memory
 *   ITEM_UNITS      input units a work-item
 *   ITEM_COLUMNS    positions a work-item
 *   CHEAP_ADDRESSES 1 or 2: in few instructions, see place.h and tiled.h
 * Global:
 *   width   work-items a tile of positions * blocks of input units
 *   height  groups
 *   units   SPLITS
 */
#include "blob.h"
#include "put.h"
#include "convolution/splits.h"
#include "convolution/phase_taps.h"
#define source_t output_delta_t
#include "convolution/tiled.h"
#include "convolution/phase_columns.h"
#include "convolution/phase_positions.h"

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void
convolution_backward_data_tiled(READ_BLOB(output_delta), WRITE_BLOB(input_delta), READ_ARRAY(real_t, packed),
                                WRITE_ARRAY(real_t, partials), const int count)
{
    __local real_t weights[2][TILE_DEPTH * TILE_UNITS] __attribute__((aligned(128)));
    __local real_t sources[STAGED_STEPS * TILE_COLUMNS] __attribute__((aligned(128)));
    DECLARE_SHIFTS
    PLACE_OF(output_delta_t) columns[SOURCE_COLUMNS];
    find_columns(columns, output_delta, output_delta_unit_offset, count);
    sums_t sums;
    accumulate_tiles(sums, SOURCE_ARGUMENTS(output_delta),
                     ARRAY(packed) + (size_t)GROUP * (DEPTH_ROWS_ALL + ZERO_ROWS) * UNIT_COLUMNS + FIRST_UNIT,
                     weights, sources);
    store_sums(sums, input_delta, input_delta_unit_offset, partials_array, partials_offset, sources, count,
               OWN_TILE);
}
