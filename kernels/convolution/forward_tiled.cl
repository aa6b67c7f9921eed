/*
 * Convolution, forward, any stride, through local memory: output = epilogue(sum over input units and taps of weight *
 * input), as a product of packed weights and the input at all positions of the batch (convolution/tiled.h).
 *
 * Blobs:
 *   INPUT  read   its halo is the padding
 *   OUTPUT write
 * Arrays:
 *   PACKED read   weights, see pack_weight.cl
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
 *   ZERO_ROWS       rows of zeros after the last tap in PACKED
 *   UNIT_COLUMNS    columns of PACKED
 *   ROW_POSITIONS   positions a row: its width, or the pitch of the input where that may be
 *   TILE_UNITS      output units a work-group
 *   TILE_COLUMNS    positions a work-group
 *   TILE_DEPTH      rows in local memory
 *   ITEM_UNITS      output units a work-item
 *   ITEM_COLUMNS    positions a work-item
 *   CHEAP_ADDRESSES 1 or 2: in few instructions, see place.h and tiled.h
 * Global:
 *   width   work-items a tile of positions * blocks of output units
 *   height  groups
 *   units   SPLITS
 */
#include "blob.h"
#include "convolution/epilogue.h"
#include "convolution/splits.h"
#include "convolution/forward_taps.h"
#define source_t input_t
#include "convolution/tiled.h"
#include "convolution/forward_columns.h"
#include "convolution/forward_positions.h"

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void
convolution_forward_tiled(READ_BLOB(input), WRITE_BLOB(output), EPILOGUE_BLOBS, READ_ARRAY(real_t, packed),
                          EPILOGUE_ARRAYS, WRITE_ARRAY(real_t, partials), const int count)
{
    __local real_t weights[2][TILE_DEPTH * TILE_UNITS] __attribute__((aligned(128)));
    __local real_t sources[STAGED_STEPS * TILE_COLUMNS] __attribute__((aligned(128)));
    DECLARE_SHIFTS
    PLACE_OF(input_t) columns[SOURCE_COLUMNS];
    find_columns(columns, input, input_unit_offset, count);
    sums_t sums;
    accumulate_tiles(sums, SOURCE_ARGUMENTS(input),
                     ARRAY(packed) + (size_t)GROUP * (DEPTH_ROWS_ALL + ZERO_ROWS) * UNIT_COLUMNS + FIRST_UNIT,
                     weights, sources);
    store_sums(sums, output, output_unit_offset, EPILOGUE_ARGUMENTS, partials_array, partials_offset, sources,
               count, OWN_TILE);
}
