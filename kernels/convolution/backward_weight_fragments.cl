/*
 * Convolution, backward, gradient of the weights, on the matrix unit of a processor: sums[tap][o][i] = sum over samples and
 * positions of input[i] at the tap's shift * delta[o], as products of fragments of bfloat16 (fragment.h). Rows of a product
 * are input units, whose positions lie side by side, so that a tap is the same rows from another position on; columns are
 * output units. A work-item makes the sums of one tap, a block of input and 32 output units; splits, of whole samples, go
 * to a partial sum each.
 *
 * Arrays:
 *   CELLS    read   the input, a unit each, see pack_fragments.cl
 *   DELTAS   read   see pack_fragment_deltas.cl
 *   PARTIALS write  (SPLITS, taps, output units, COLUMNS)
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   GROUPS
 *   GROUP_OUTPUT_UNITS
 *   GROUP_CELLS    planes of input units of a group
 *   GROUP_BLOCKS   blocks of 16 output units of a group
 *   COLUMNS        input units of a group, whole blocks
 *   PLANE          numbers of an input unit
 *   TILES          tiles of positions of a sample
 *   TILE_PAIRS     pairs of positions of a tile
 *   PHASE_TAPS     taps
 *   TAP_TABLE      shift and number of each
 *   UNIT_TILES     1 or 2: fragments of input units
 *   SPLITS
 * Global:
 *   width  taps * blocks of input units * blocks of output units * groups
 *   units  SPLITS
 */
#include "blob.h"
#define LANES 16
#define FRAGMENT_ROWS UNIT_TILES
#define PAIRS TILE_PAIRS
#define LEFT_BYTES (2 * PLANE)
#define RIGHT_BYTES (4 * FRAGMENT)
#define RIGHT_NEXT (TILES * TILE_PAIRS * RIGHT_BYTES)
#include "vector.h"
#include "transpose.h"
#include "fragment.h"

#define COLUMN_BLOCKS (COLUMNS / (UNIT_TILES * FRAGMENT))
#define UNIT_BLOCKS (GROUP_BLOCKS / 2)
/* Tiles of positions that are multiplied together. */
#define PLACES (TILES < 64 ? TILES : 64)
__constant int tap_table[][2] = TAP_TABLE;

__kernel void convolution_backward_weight_fragments(READ_ARRAY(real_t, cells), READ_ARRAY(real_t, deltas),
                                                    WRITE_ARRAY(real_t, partials), const int count)
{
    __local real_t staged[UNIT_TILES * FRAGMENT * SUMS_PITCH] __attribute__((aligned(64)));
    const int tap = get_global_id(0) % PHASE_TAPS;
    const int column_block = get_global_id(0) / PHASE_TAPS % COLUMN_BLOCKS;
    const int unit_block = get_global_id(0) / (PHASE_TAPS * COLUMN_BLOCKS) % UNIT_BLOCKS;
    const int group = get_global_id(0) / (PHASE_TAPS * COLUMN_BLOCKS * UNIT_BLOCKS);
    const int split = get_global_id(2);
    const int column = column_block * UNIT_TILES * FRAGMENT;
    const int begin = (int)((long)count * split / SPLITS);
    const int end = (int)((long)count * (split + 1) / SPLITS);

    int2 places[PLACES];
    for (int i = 0; i < PLACES; i++) {
        places[i] = (int2)(i * TILE_PAIRS, i * TILE_PAIRS * FRAGMENT);
    }
    BEGIN_FRAGMENTS
    CLEAR_SUMS(staged)
    for (int n = begin; n < end; n++) {
        __global const ushort *left = (__global const ushort *)ARRAY(cells)
                                      + ((size_t)(n * GROUPS + group) * GROUP_CELLS + column) * PLANE
                                      + tap_table[tap][0];
        __global const real_t *right =
            ARRAY(deltas)
            + ((size_t)(n * GROUPS + group) * GROUP_BLOCKS + unit_block * 2) * TILES * TILE_PAIRS * FRAGMENT;
        for (int tile = 0; tile < TILES; tile += PLACES) {
            ADD_PRODUCTS(staged, 2, left + tile * 2 * TILE_PAIRS, right + tile * TILE_PAIRS * FRAGMENT,
                         places, min(TILES - tile, PLACES))
        }
    }
    STORE_SUMS(staged)
    END_FRAGMENTS

    __global real_t *results =
        ARRAY(partials)
        + ((size_t)split * PHASE_TAPS + tap_table[tap][1]) * GROUPS * GROUP_OUTPUT_UNITS * COLUMNS;
    for (int j = 0; j < 2; j++) {
        const int unit = (unit_block * 2 + j) * FRAGMENT;
        for (int i = 0; i < UNIT_TILES; i++) {
            vector_t rows[LANES];
#pragma unroll
            for (int row = 0; row < LANES; row++) {
                rows[row] = VECTOR_LOAD(staged + (i * FRAGMENT + row) * SUMS_PITCH + j * FRAGMENT);
            }
            transpose(rows);
#pragma unroll
            for (int row = 0; row < LANES; row++) {
                if (unit + row < GROUP_OUTPUT_UNITS) {
                    VECTOR_STORE(rows[row], results
                                                + (size_t)(group * GROUP_OUTPUT_UNITS + unit + row) * COLUMNS
                                                + column + i * FRAGMENT);
                }
            }
        }
    }
}
