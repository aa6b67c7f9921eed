/*
 * Convolution, backward, delta of the input, stride 1, as a product with panels of the output's delta
 * (convolution/panels.h).
 *
 * Blobs:
 *   OUTPUT_DELTA read   with a halo of zeros
 *   INPUT_DELTA  update
 * Arrays:
 *   WEIGHT read   (groups, input units, output units, taps): convolution/transpose_weight.cl
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   GROUPS
 *   UNITS          input units of a group
 *   DEPTH          output units of a group
 *   RESULT_HEIGHT
 *   RESULT_WIDTH
 *   STRIDE_Y       from a result's cell to the next, in cells of the source
 *   STRIDE_X
 *   TAPS_Y
 *   TAPS_X
 *   ROW_FIRST      the first tap's shift
 *   ROW_STEP
 *   COLUMN_FIRST
 *   COLUMN_STEP
 *   ACCUMULATE     1: add to INPUT_DELTA
 *   LANES          positions in a vector
 *   BLOCK_VECTORS  vectors a work-item
 *   BLOCK_UNITS    units whose sums are in registers
 *   UNITS_AT_ONCE  units a work-item, whole blocks
 *   DEPTHS         source units in a panel
 * Tunables:
 *   MAXIMUM_LANES        loops 16 of 1 2 4 8 16: most lanes
 *   MAXIMUM_VECTORS      loops 4 of 1 2 3 4: most vectors a work-item
 *   MAXIMUM_UNITS        loops 12 of 1 2 3 4 6 8 12 16 24: most units whose sums are in registers
 *   MAXIMUM_ACCUMULATORS loops 24 of 8 12 16 24 28: most vectors of them
 * Global:
 *   width  tiles of positions * groups * chunks of UNITS_AT_ONCE
 */
#define SOURCE_PITCH OUTPUT_DELTA_UNIT_MEMORY_WIDTH
#define SOURCE_PLANE OUTPUT_DELTA_UNIT_MEMORY_ELEMENTS
#define SOURCE_SAMPLE OUTPUT_DELTA_MEMORY_ELEMENTS
#define source_t output_delta_t
#define target_t input_delta_t
#include "convolution/panels.h"

__kernel void convolution_backward_data_panels(READ_BLOB(output_delta), WRITE_BLOB(input_delta),
                                               READ_ARRAY(weight_t, weight), const int count)
{
    PANEL_PART
    multiply_panels(sums, panel, output_delta + BLOB_INDEX(OUTPUT_DELTA, 0, group * DEPTH, 0, 0),
                    ARRAY(weight) + (size_t)unit * ROWS, units, start, end);

    pieces_t pieces;
    find_pieces(&pieces, INPUT_DELTA_MEMORY_ELEMENTS, INPUT_DELTA_UNIT_MEMORY_WIDTH, 1, start, end);
    for (int u = 0; u < units; u++) {
        __global input_delta_t *to = input_delta + BLOB_INDEX(INPUT_DELTA, 0, unit + u, 0, 0);
        __local real_t *results = sums + u * TILE;
#if ACCUMULATE
        load_tile(tile, to, &pieces);
        add_tile(results, tile);
#endif
        store_tile(results, to, &pieces);
    }
}
