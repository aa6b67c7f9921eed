/*
 * The delta of a convolution's output for the gradient of its weights by products of fragments (fragment.h), rounded to
 * bfloat16: pairs of positions of blocks of 16 units. Rows are ROW_POSITIONS long, as those of the source's planes are;
 * what is no result's is 0.
 *
 * Blobs:
 *   OUTPUT_DELTA read data alone
 * Arrays:
 *   DELTAS write  (COUNT, GROUPS, GROUP_BLOCKS, pairs of positions, 16 units, 2)
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   GROUP_OUTPUT_UNITS
 *   GROUP_BLOCKS   blocks of units of a group
 *   ROW_POSITIONS
 *   TILES          tiles of positions of a sample
 *   TILE_PAIRS     pairs of positions of a tile
 * Moves:
 *   packing deltas
 * Global:
 *   width  groups * GROUP_BLOCKS
 *   units  COUNT
 */
#include "blob.h"
#ifndef NARROW_STORAGE
#include "narrow.h"
#endif
#define LANES 16
#include "vector.h"
#include "transpose.h"
#define FRAGMENT 16
#define RESULT_HEIGHT OUTPUT_DELTA_UNIT_HEIGHT
#define RESULT_WIDTH OUTPUT_DELTA_UNIT_WIDTH
#include "convolution/copy_piece.h"
#include "convolution/fragment_rows.h"

__kernel void convolution_pack_fragment_deltas(READ_BLOB(output_delta), WRITE_ARRAY(real_t, deltas),
                                               const int count)
{
    __local real_t tile[FRAGMENT_COLUMNS] __attribute__((aligned(64)));
    const int n = get_global_id(2);
    const int group = get_global_id(0) / GROUP_BLOCKS;
    const int first = get_global_id(0) % GROUP_BLOCKS * FRAGMENT;
    __global real_t *to =
        ARRAY(deltas) + ((size_t)n * get_global_size(0) + get_global_id(0)) * TILES * TILE_PAIRS * FRAGMENT;
    for (int t = 0; t < TILES; t++) {
        runs_t runs;
        find_runs(&runs, t * 2 * TILE_PAIRS);
        vector_t rows[LANES];
        VECTOR_STORE(0, tile);
        VECTOR_STORE(0, tile + LANES);
#pragma unroll
        for (int u = 0; u < LANES; u++) {
            rows[u] = 0;
            if (first + u < GROUP_OUTPUT_UNITS) {
                for (int r = 0; r < runs.count; r++) {
                    __global const output_delta_t *from =
                        output_delta
                        + BLOB_INDEX(OUTPUT_DELTA, n, group * GROUP_OUTPUT_UNITS + first + u, runs.y[r],
                                     runs.x[r]);
                    COPY_PIECE(from, tile + runs.start[r], runs.length[r])
                }
                const float16 low = VECTOR_LOAD(tile);
                const float16 high = VECTOR_LOAD(tile + LANES);
                const float16 evens = (float16)(low.even, high.even);
                const float16 odds = (float16)(low.odd, high.odd);
                rows[u] = as_float16(BFLOAT_BITS(float16, uint16, evens)
                                     | BFLOAT_BITS(float16, uint16, odds) << 16);
            }
        }
        transpose(rows);
#pragma unroll
        for (int pair = 0; pair < TILE_PAIRS; pair++) {
            VECTOR_STORE(rows[pair], to + pair * LANES);
        }
        to += TILE_PAIRS * FRAGMENT;
    }
}
