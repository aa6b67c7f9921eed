/*
 * Convolution, backward, delta of the input, on tensor cores: one phase of a convolution of any stride. Input cells
 * (i * STRIDE_Y + PHASE_Y, j * STRIDE_X + PHASE_X) see the same subset of taps at fixed shifts of the output's delta
 * (see backward_data.cl), as a product of packed weights and the delta at all positions (convolution/tensor.h).
 *
 * Blobs:
 *   OUTPUT_DELTA read   with a halo of zeros
 *   INPUT_DELTA  update
 * Arrays:
 *   PACKED read   weights, see pack_weight_tensor.cl
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
 *   UNIT_COLUMNS    columns of PACKED
 *   ROW_POSITIONS   positions a row: its width, or the pitch of the delta where that may be
 *   ACCUMULATE      1: add to INPUT_DELTA
 *   TILE_UNITS      input units a work-group
 *   TILE_COLUMNS    positions a work-group
 *   TILE_DEPTH      rows a step
 *   WARP_UNITS      input units a warp
 *   WARP_COLUMNS    positions a warp
 *   STAGES          steps in local memory
 *   CHEAP_ADDRESSES 1: in few instructions, see place.h
 * Global:
 *   width   work-items a tile of positions * blocks of input units
 *   height  groups
 *   units   SPLITS
 */
#include "blob.h"
#include "put.h"
#include "convolution/splits.h"
#include "convolution/phase_taps.h"
typedef output_delta_t source_t;
#include "convolution/tensor.h"
#include "convolution/phase_columns.h"
#include "convolution/phase_positions.h"

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void
convolution_backward_data_tensor(READ_BLOB(output_delta), WRITE_BLOB(input_delta), READ_ARRAY(real_t, packed),
                                 WRITE_ARRAY(real_t, partials), const int count)
{
    __local real_t memory[LOCAL_ELEMENTS] __attribute__((aligned(128)));
    __global const source_t *columns[SOURCE_COLUMNS];
    find_columns(columns, output_delta, output_delta_unit_offset, count);
    sums_t sums;
    accumulate_tiles(sums, columns, ARRAY(packed) + FIRST_FRAGMENT(GROUP, FIRST_UNIT), memory);
    store_sums(sums, input_delta, input_delta_unit_offset, partials_array, partials_offset, memory, count,
               OWN_TILE);
}
