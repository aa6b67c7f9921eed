/*
 * Convolution, forward, any stride, on the matrix unit of a processor: output = epilogue(sum over input units and taps of
 * weight * input), as products of fragments of bfloat16 (convolution/fragment_product.h).
 *
 * Blobs:
 *   OUTPUT write
 * Arrays:
 *   CELLS  read   the input, see pack_fragments.cl
 *   PACKED read   weights, see pack_weight_fragments.cl
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   GROUPS
 *   UNITS          output units of a group
 *   RESULT_HEIGHT
 *   RESULT_WIDTH
 *   TAPS           of the filter
 *   DEPTH_STEPS    steps of the depth
 *   STEP_PAIRS     pairs of units of a step
 *   PLANE          positions of a pair in CELLS
 *   ROW_POSITIONS  positions of a row
 *   PHASE_TAPS     taps
 *   TAP_TABLE      shift and number of each
 *   UNIT_TILES     1 or 2: fragments of units
 *   TILES_AT_ONCE  tiles of positions a work-item
 * Global:
 *   width  blocks of units * groups * blocks of tiles
 *   units  COUNT
 */
#include "blob.h"
#include "convolution/fragment_product.h"
#include "convolution/epilogue.h"

__kernel void convolution_forward_fragments(WRITE_BLOB(output), EPILOGUE_BLOBS, READ_ARRAY(real_t, cells),
                                            READ_ARRAY(real_t, packed), EPILOGUE_ARRAYS, const int count)
{
    FRAGMENT_PART
#if HAS_CELL_TERM
    __local real_t terms[FRAGMENT_COLUMNS] __attribute__((aligned(64)));
#endif
    for (int t = tile; t < end; t++) {
        runs_t runs;
        find_runs(&runs, t * FRAGMENT_COLUMNS);
        MULTIPLY_TILE(t)
        for (int u = 0; u < units; u++) {
            const real_t bias = UNIT_BIAS(unit + u);
            __local real_t *results = staged + u * SUMS_PITCH;
#if HAS_CELL_TERM
            for (int r = 0; r < runs.count; r++) {
                for (int i = 0; i < runs.length[r]; i++) {
                    terms[runs.start[r] + i] = CELL_TERM(n, unit + u, runs.y[r], runs.x[r] + i);
                }
            }
#endif
#pragma unroll
            for (int i = 0; i < FRAGMENT_COLUMNS; i += LANES) {
                vector_t value = BIASED(VECTOR_LOAD(results + i), bias, unit + u);
#if HAS_CELL_TERM
                value = JOINED(value, VECTOR_LOAD(terms + i), unit + u);
#endif
                VECTOR_STORE(FINISHED(value, unit + u), results + i);
            }
            for (int r = 0; r < runs.count; r++) {
                COPY_PIECE(results + runs.start[r],
                           output + BLOB_INDEX(OUTPUT, n, unit + u, runs.y[r], runs.x[r]), runs.length[r])
            }
        }
    }
    END_FRAGMENTS
}
