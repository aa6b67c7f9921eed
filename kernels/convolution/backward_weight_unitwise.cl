/*
 * Convolution, backward, gradient of the weights, any stride: gradient[o][i][tap] = sum over samples and positions of
 * delta[o] * input[i] at the tap's shift. A vector is LANES input units of one tap, which convolution/pack_units.cl
 * laid side by side: small planes fill vectors too, sums need not be added up over lanes, and no tap reads padding.
 * A work-item takes RANGE output units, and goes through them for each sample: the sample's part of its panel then
 * comes from a near cache, its deltas lie one after the other, and the sums, in memory meanwhile, are few.
 * Splits, of whole samples, go to a partial sum each.
 *
 * Blobs:
 *   OUTPUT_DELTA read
 * Arrays:
 *   PANELS   read    the input, see convolution/pack_units.cl
 *   PARTIALS update  (SPLITS, taps, output units, units of a group's panels)
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   GROUP_INPUT_UNITS
 *   GROUP_OUTPUT_UNITS
 *   GROUPS
 *   FILTER_HEIGHT
 *   FILTER_WIDTH
 *   STRIDE_Y
 *   STRIDE_X
 *   DILATION_Y
 *   DILATION_X
 *   PAD_TOP
 *   PAD_LEFT
 *   INPUT_HEIGHT   the input's planes
 *   INPUT_WIDTH
 *   PHASES_Y
 *   PHASES_X
 *   PHASE_HEIGHT
 *   PHASE_WIDTH
 *   PANEL_UNITS    BLOCK_VECTORS * LANES
 *   SPLITS
 *   PIECE_ROWS     rows of deltas between two sums in memory
 *   RANGE          output units a work-item, a multiple of BLOCK_UNITS
 *   LANES          input units in a vector
 *   BLOCK_VECTORS  vectors of a panel
 *   BLOCK_UNITS    output units at once
 * Tunables:
 *   MAXIMUM_LANES        loops 16 of 1 2 4 8 16: most lanes
 *   MAXIMUM_VECTORS      loops 4 of 1 2 3 4: most vectors of a panel
 *   MAXIMUM_UNITS        loops 6 of 1 2 3 4 5 6 8 12: most output units at once
 *   MAXIMUM_ACCUMULATORS loops 24 of 8 12 16 20 24 28: most vectors of sums
 *   PIECE_POSITIONS      loops 98 of 49 98 196 392 784: most positions of a piece
 *   RANGE_BLOCKS         loops 8 of 1 2 4 8 16 32: blocks of output units a work-item
 *   TARGET_GROUPS        loops 32 of 1 2 4 8 16 32 64 128 256 512 1024: groups worth splitting for
 *   MAXIMUM_SPLITS       loops 64 of 1 2 4 8 16 32 64 128: most splits
 * Global:
 *   width   ranges of output units
 *   height  taps
 *   units   panels * SPLITS
 */
#include "blob.h"
#include "vector.h"
#include "convolution/inside.h"
#include "convolution/input_phases.h"

#define TAPS (FILTER_HEIGHT * FILTER_WIDTH)
#define PHASE_ELEMENTS (PHASE_HEIGHT * PHASE_WIDTH)
#define PHASES_ELEMENTS (PHASES_Y * PHASES_X * PHASE_ELEMENTS)
#define GROUP_PANELS ((GROUP_INPUT_UNITS + PANEL_UNITS - 1) / PANEL_UNITS)
#define COLUMNS (GROUP_PANELS * PANEL_UNITS)
/* Whether the cells that a tap reads, and the deltas, are one run of memory. */
#define ONE_RUN                                                                                      \
    (FILTER_WIDTH == 1 && PAD_LEFT == 0 && OUTPUT_DELTA_UNIT_WIDTH == OUTPUT_DELTA_UNIT_MEMORY_WIDTH \
     && OUTPUT_DELTA_UNIT_WIDTH == PHASE_WIDTH && (OUTPUT_DELTA_UNIT_WIDTH - 1) * STRIDE_X < INPUT_WIDTH)

__kernel void convolution_backward_weight_unitwise(READ_BLOB(output_delta), READ_ARRAY(panels_t, panels),
                                                   WRITE_ARRAY(real_t, partials), const int count)
{
    const int range = get_global_id(0) * RANGE;
    const int tap_row = get_global_id(1) / FILTER_WIDTH * DILATION_Y;
    const int tap_column = get_global_id(1) % FILTER_WIDTH * DILATION_X;
    const int panel = get_global_id(2) / SPLITS;
    const int split = get_global_id(2) % SPLITS;
    const int group = panel / GROUP_PANELS;
    const int range_end = min(range + RANGE, GROUP_OUTPUT_UNITS);

    const int2 rows = inside(tap_row - PAD_TOP, STRIDE_Y, OUTPUT_DELTA_UNIT_HEIGHT, INPUT_HEIGHT);
    const int2 columns = inside(tap_column - PAD_LEFT, STRIDE_X, OUTPUT_DELTA_UNIT_WIDTH, INPUT_WIDTH);
    const int cells = columns.y - columns.x;
    const int shift = PHASE_ROW(tap_row, PHASE_ELEMENTS, PHASE_WIDTH)
                      + PHASE_COLUMN(tap_column, PHASE_ELEMENTS) + columns.x;
    __global const panels_t *values =
        ARRAY(panels) + ((size_t)panel * count * PHASES_ELEMENTS + shift) * PANEL_UNITS;
    __global real_t *results =
        ARRAY(partials)
        + (((size_t)split * TAPS + get_global_id(1)) * GROUPS + group) * GROUP_OUTPUT_UNITS * COLUMNS
        + panel % GROUP_PANELS * PANEL_UNITS;

    const int begin = (int)((long)count * split / SPLITS);
    const int end = (int)((long)count * (split + 1) / SPLITS);
    /* One piece at least, though without rows, sets the sums. */
    const int pieces = max(1, (rows.y - rows.x + PIECE_ROWS - 1) / PIECE_ROWS);
    for (int piece = 0; piece < max(end - begin, 1) * pieces; piece++) {
        const int n = begin + piece / pieces;
        const int row = rows.x + piece % pieces * PIECE_ROWS;
        const int piece_rows = n < end ? min(PIECE_ROWS, rows.y - row) : 0;
        for (int first = range; first < range_end; first += BLOCK_UNITS) {
            int planes[BLOCK_UNITS];
            int stores[BLOCK_UNITS];
            vector_t sums[BLOCK_UNITS][BLOCK_VECTORS];
#pragma unroll
            for (int u = 0; u < BLOCK_UNITS; u++) {
                /* Units past the last one repeat it, and store the same. */
                const int unit = min(first + u, GROUP_OUTPUT_UNITS - 1);
                planes[u] = unit * OUTPUT_DELTA_UNIT_MEMORY_ELEMENTS;
                stores[u] = unit * COLUMNS;
#pragma unroll
                for (int v = 0; v < BLOCK_VECTORS; v++) {
                    sums[u][v] = 0;
                    if (piece > 0) {
                        sums[u][v] = VECTOR_LOAD(results + stores[u] + v * LANES);
                    }
                }
            }
            for (int y = row; y < row + (ONE_RUN ? piece_rows > 0 : piece_rows); y++) {
                __global const panels_t *from =
                    values + ((size_t)n * PHASES_ELEMENTS + y * PHASE_WIDTH) * PANEL_UNITS;
                __global const output_delta_t *deltas =
                    output_delta + BLOB_INDEX(OUTPUT_DELTA, n, group * GROUP_OUTPUT_UNITS, y, columns.x);
                for (int x = 0; x < (ONE_RUN ? piece_rows * cells : cells); x++) {
                    vector_t value[BLOCK_VECTORS];
#pragma unroll
                    for (int v = 0; v < BLOCK_VECTORS; v++) {
                        value[v] = VECTOR_LOAD(from + x * PANEL_UNITS + v * LANES);
                    }
#pragma unroll
                    for (int u = 0; u < BLOCK_UNITS; u++) {
                        const real_t delta = READ_VALUE(deltas, planes[u] + x);
#pragma unroll
                        for (int v = 0; v < BLOCK_VECTORS; v++) {
                            sums[u][v] = MULTIPLY_ADD((vector_t)(delta), value[v], sums[u][v]);
                        }
                    }
                }
            }
#pragma unroll
            for (int u = 0; u < BLOCK_UNITS; u++) {
#pragma unroll
                for (int v = 0; v < BLOCK_VECTORS; v++) {
                    VECTOR_STORE(sums[u][v], results + stores[u] + v * LANES);
                }
            }
        }
    }
}
