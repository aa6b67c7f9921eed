/*
 * Convolution, forward, any stride: output = epilogue(sum over input units and taps of weight * input), as a product
 * with panels of the input (convolution/panels.h).
 *
 * Blobs:
 *   INPUT  read   its halo is the padding
 *   OUTPUT write
 * Arrays:
 *   WEIGHT read   OIHW, I counted within a group
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   GROUPS
 *   UNITS          output units of a group
 *   DEPTH          input units of a group
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
#define SOURCE_PITCH INPUT_UNIT_MEMORY_WIDTH
#define SOURCE_PLANE INPUT_UNIT_MEMORY_ELEMENTS
#define SOURCE_SAMPLE INPUT_MEMORY_ELEMENTS
#define source_t input_t
#define target_t output_t
#include "convolution/panels.h"
#include "convolution/epilogue.h"

#if HAS_RESIDUAL == 2
/* Fills each piece of a tile, a sample's, with one value. */
INLINE void load_residual(__local real_t *tile, __global const residual_t *from, const pieces_t *pieces)
{
    for (int p = 0; p < pieces->count; p++) {
        for (int i = pieces->at[p]; i < pieces->at[p + 1]; i++) {
            WRITE_VALUE(tile, i, VALUE_OF(from + pieces->offset[p]));
        }
    }
}
#define RESIDUAL_STEPS 0, 0
#else
#define load_residual load_tile
#define RESIDUAL_STEPS RESIDUAL_UNIT_MEMORY_WIDTH, 1
#endif

__kernel void convolution_forward_panels(READ_BLOB(input), WRITE_BLOB(output), EPILOGUE_BLOBS,
                                         READ_ARRAY(weight_t, weight), EPILOGUE_ARRAYS, const int count)
{
    PANEL_PART
    multiply_panels(sums, panel, input + BLOB_INDEX(INPUT, 0, group * DEPTH, 0, 0),
                    ARRAY(weight) + (size_t)unit * ROWS, units, start, end);

    pieces_t pieces;
    find_pieces(&pieces, OUTPUT_MEMORY_ELEMENTS, OUTPUT_UNIT_MEMORY_WIDTH, 1, start, end);
#if HAS_RESIDUAL
    pieces_t residual_pieces;
    find_pieces(&residual_pieces, RESIDUAL_MEMORY_ELEMENTS, RESIDUAL_STEPS, start, end);
#endif
#if BIAS_MODE == 2
    pieces_t bias_pieces;
    find_pieces(&bias_pieces, 0, RESULT_WIDTH, 1, start, end);
#endif
    for (int u = 0; u < units; u++) {
        const real_t bias = UNIT_BIAS(unit + u);
        __local real_t *results = sums + u * TILE;
#if BIAS_MODE == 2
        load_tile(tile, ARRAY(bias) + (unit + u) * POSITIONS, &bias_pieces);
        add_tile(results, tile);
#endif
#if HAS_RESIDUAL
        load_residual(tile, RESIDUAL_CELL(0, unit + u, 0, 0), &residual_pieces);
#endif
#pragma unroll
        for (int v = 0; v < BLOCK_VECTORS; v++) {
            vector_t value = BIASED(VECTOR_LOAD(results + v * LANES), bias, unit + u);
#if HAS_RESIDUAL
            value = JOINED(value, VECTOR_LOAD(tile + v * LANES), unit + u);
#endif
            VECTOR_STORE(FINISHED(value, unit + u), results + v * LANES);
        }
        store_tile(results, output + BLOB_INDEX(OUTPUT, 0, unit + u, 0, 0), &pieces);
    }
}
