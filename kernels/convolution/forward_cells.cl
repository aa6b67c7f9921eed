/*
 * Convolution, forward, any stride, on tensor cores that take cells: output = epilogue(sum over input units and taps of
 * weight * input), as a product of the input's cells and packed weights (convolution/cell_product.h).
 *
 * Blobs:
 *   OUTPUT write
 *   CELLS  read   the input, see cell_lists.h
 * Arrays:
 *   PACKED read   weights, see pack_weight_cells.cl
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   GROUP_OUTPUT_UNITS
 *   FILTER_TAPS       taps of the filter, or rows of them
 *   CELL              8 for numbers of 16 bits, 4 for tf32
 *   HALVES            1: these are float16, else bfloat16
 *   DEPTH_STEPS       blocks of the depth
 *   DEPTH_CELLS       cells of a block
 *   UNIT_COLUMNS      units of PACKED
 *   SAMPLE_POSITIONS  positions of a sample, zeros included
 *   ROW_POSITIONS     positions of a row
 *   SOURCE_CELLS      lists of a group
 *   SOURCE_LIST       cells from list to list
 *   SOURCE_SAMPLE     cells from sample to sample
 *   RUNS              runs of a block
 *   RUN_TABLE         place and first position of each run
 *   SPAN              positions of a run beyond a tile's
 *   RUN_PHASES        phases of the source side by side in a run
 *   SCATTERED         1: the source's cells are copied one by one, see cell_lists.h
 *   WHOLE_SAMPLES     1: samples of the source are copied whole
 *   SOURCE_STRIDE_Y   from row to row of a run, in the source
 *   SOURCE_STRIDE_X
 *   SOURCE_BASE       the cell of the first position
 *   FIRST_CELL        the first cell that the taps of the first position read
 *   PHASE_TAPS        taps
 *   TAP_TABLE         run, shift and number of each tap
 *   TILE_UNITS        units a work-group
 *   TILE_COLUMNS      positions a work-group
 *   GROUP_POSITIONS   positions a warp group
 *   STAGES            taps whose weights lie in local memory
 *   RUN_STAGES        runs that do
 * Global:
 *   width   work-items of a tile * blocks of output units * tiles of positions, or fewer of these
 *   height  groups
 *   units   SPLITS
 */
#include "blob.h"
#include "convolution/epilogue.h"
#include "convolution/splits.h"
#define RESULT_HEIGHT OUTPUT_UNIT_HEIGHT
#define RESULT_WIDTH OUTPUT_UNIT_WIDTH
#include "convolution/cell_product.h"
#include "convolution/forward_positions.h"

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void
convolution_forward_cells(WRITE_BLOB(output), READ_BLOB(cells), EPILOGUE_BLOBS, READ_ARRAY(real_t, packed),
                          EPILOGUE_ARRAYS, WRITE_ARRAY(real_t, partials), const int count)
{
    __local cell_t memory[LOCAL_CELLS] __attribute__((aligned(128)));
    __local real_t staged[STAGED_ELEMENTS];
    __local signal_t signals[SIGNALS];
    __global const cell_t *lists = LISTS_OF(cells, SOURCE_LIST);
    __global const cell_t *weights = (__global const cell_t *)ARRAY(packed);
    begin_copies(lists, weights, memory, signals, count);
    for (int turn = 0; turn < OWN_TILES; turn++) {
        sums_t sums;
        accumulate_tile(sums, turn, lists, weights, memory, signals, count);
        store_sums(sums, output, output_unit_offset, EPILOGUE_ARGUMENTS, partials_array, partials_offset,
                   staged, count, TILE_OF(turn));
    }
}
