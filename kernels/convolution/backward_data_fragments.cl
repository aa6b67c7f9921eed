/*
 * Convolution, backward, delta of the input, on the matrix unit of a processor: one phase of a convolution of any stride
 * (see backward_data.cl), as products of fragments of bfloat16 (convolution/fragment_product.h).
 *
 * Blobs:
 *   INPUT_DELTA update
 * Arrays:
 *   CELLS  read   the output's delta, see pack_fragments.cl
 *   PACKED read   weights, see pack_weight_fragments.cl
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   GROUPS
 *   UNITS          input units of a group
 *   STRIDE_Y
 *   STRIDE_X
 *   PHASE_Y
 *   PHASE_X
 *   ACCUMULATE     1: add to INPUT_DELTA
 *   TAPS           of the filter
 *   DEPTH_STEPS    steps of the depth
 *   STEP_PAIRS     pairs of units of a step
 *   PLANE          positions of a pair in CELLS
 *   ROW_POSITIONS  positions of a row
 *   PHASE_TAPS     taps of the phase
 *   TAP_TABLE      shift and number of each
 *   UNIT_TILES     1 or 2: fragments of units
 *   TILES_AT_ONCE  tiles of positions a work-item
 * Global:
 *   width  blocks of units * groups * blocks of tiles
 *   units  COUNT
 */
#include "blob.h"
#include "put.h"
#define RESULT_HEIGHT ((INPUT_DELTA_UNIT_HEIGHT - PHASE_Y + STRIDE_Y - 1) / STRIDE_Y)
#define RESULT_WIDTH ((INPUT_DELTA_UNIT_WIDTH - PHASE_X + STRIDE_X - 1) / STRIDE_X)
#include "convolution/fragment_product.h"

__kernel void convolution_backward_data_fragments(WRITE_BLOB(input_delta), READ_ARRAY(real_t, cells),
                                                  READ_ARRAY(real_t, packed), const int count)
{
    FRAGMENT_PART
    for (int t = tile; t < end; t++) {
        runs_t runs;
        find_runs(&runs, t * FRAGMENT_COLUMNS);
        MULTIPLY_TILE(t)
        for (int u = 0; u < units; u++) {
            for (int r = 0; r < runs.count; r++) {
                __local real_t *from = staged + u * SUMS_PITCH + runs.start[r];
                __global input_delta_t *to =
                    input_delta
                    + BLOB_INDEX(INPUT_DELTA, n, unit + u, runs.y[r] * STRIDE_Y + PHASE_Y,
                                 runs.x[r] * STRIDE_X + PHASE_X);
#if STRIDE_X == 1 && !ACCUMULATE
                COPY_PIECE(from, to, runs.length[r])
#else
                for (int i = 0; i < runs.length[r]; i++) {
                    PUT(from[i], to + i * STRIDE_X);
                }
#endif
            }
        }
    }
    END_FRAGMENTS
}
