/*
 * Convolution, forward, any stride, on tensor cores: output = epilogue(sum over input units and taps of
 * weight * input), as a product of packed weights and the input at all positions of the batch (convolution/tensor.h).
 *
 * Blobs:
 *   INPUT  read   its halo is the padding
 *   OUTPUT write
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
 *   DILATION_Y
 *   DILATION_X
 *   PAD_TOP
 *   PAD_LEFT
 *   DEPTH_ROWS      rows a tap in PACKED
 *   UNIT_COLUMNS    columns of PACKED
 *   ROW_POSITIONS   positions a row: its width, or the pitch of the input where that may be
 *   TILE_UNITS      output units a work-group
 *   TILE_COLUMNS    positions a work-group
 *   TILE_DEPTH      rows a step
 *   WARP_UNITS      output units a warp
 *   WARP_COLUMNS    positions a warp
 *   STAGES          steps in local memory
 *   CHEAP_ADDRESSES 1: in few instructions, see place.h
 * Global:
 *   width   work-items a tile of positions * blocks of output units
 *   height  groups
 *   units   SPLITS
 */
#include "blob.h"
#include "convolution/epilogue.h"
#include "convolution/splits.h"
#include "convolution/forward_taps.h"
typedef input_t source_t;
#include "convolution/tensor.h"
#include "convolution/forward_columns.h"
#include "convolution/forward_positions.h"

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void
convolution_forward_tensor(READ_BLOB(input), WRITE_BLOB(output), EPILOGUE_BLOBS, READ_ARRAY(real_t, packed),
                           EPILOGUE_ARRAYS, WRITE_ARRAY(real_t, partials), const int count)
{
    __local real_t memory[LOCAL_ELEMENTS] __attribute__((aligned(128)));
    __global const source_t *columns[SOURCE_COLUMNS];
    find_columns(columns, input, input_unit_offset, count);
    sums_t sums;
    accumulate_tiles(sums, columns, ARRAY(packed) + FIRST_FRAGMENT(GROUP, FIRST_UNIT), memory);
    store_sums(sums, output, output_unit_offset, EPILOGUE_ARGUMENTS, partials_array, partials_offset, memory,
               count, OWN_TILE);
}
