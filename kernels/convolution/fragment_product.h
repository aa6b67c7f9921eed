/*
 * Convolutions as products of fragments (fragment.h) for the matrix units of processors: packed weights
 * (pack_weight_fragments.cl) times pairs of the source's units at all positions of a sample (pack_fragments.cl). A tap is the
 * same pairs from another position on: TAP_TABLE has that shift, and the number of the tap in the filter.
 *
 * A work-item makes a block of UNIT_TILES * FRAGMENT units at TILES_AT_ONCE tiles of positions, one after the other, whose
 * sums leave through local memory.
 */
#define LANES 16
#define FRAGMENT_ROWS UNIT_TILES
#define PAIRS STEP_PAIRS
#define LEFT_BYTES (4 * STEP_PAIRS)
#define RIGHT_BYTES (4 * PLANE)
#define RIGHT_NEXT (4 * FRAGMENT)
#include "vector.h"
#include "fragment.h"
#include "convolution/copy_piece.h"
#include "convolution/fragment_rows.h"

#define BLOCK_UNITS (UNIT_TILES * FRAGMENT)
#define BLOCKS ((UNITS + BLOCK_UNITS - 1) / BLOCK_UNITS)
#define GROUP_PAIRS (DEPTH_STEPS * STEP_PAIRS)
#define LEFT_NUMBERS (2 * STEP_PAIRS * BLOCK_UNITS)
#define POSITIONS ((RESULT_HEIGHT - 1) * ROW_POSITIONS + RESULT_WIDTH)
#define TILES ((POSITIONS + FRAGMENT_COLUMNS - 1) / FRAGMENT_COLUMNS)
#define PLACES (DEPTH_STEPS * PHASE_TAPS)
__constant int tap_table[][2] = TAP_TABLE;

/* What a work-item does: of sample n, `units` units from `unit` on, at the tiles from `tile` to `end`. */
#define FRAGMENT_PART                                                                                        \
    __local real_t staged[BLOCK_UNITS * SUMS_PITCH] __attribute__((aligned(64)));                            \
    const int block = get_global_id(0) % BLOCKS;                                                             \
    const int group = get_global_id(0) / BLOCKS % GROUPS;                                                    \
    const int tile = get_global_id(0) / (BLOCKS * GROUPS) * TILES_AT_ONCE;                                   \
    const int end = min(tile + TILES_AT_ONCE, TILES);                                                        \
    const int n = get_global_id(2);                                                                          \
    const int unit = group * UNITS + block * BLOCK_UNITS;                                                    \
    const int units = min(BLOCK_UNITS, UNITS - block * BLOCK_UNITS);                                         \
    __global const uint *source =                                                                            \
        (__global const uint *)ARRAY(cells) + (size_t)(n * GROUPS + group) * GROUP_PAIRS * PLANE;            \
    __global const ushort *weights = (__global const ushort *)ARRAY(packed)                                  \
                                     + (size_t)(group * BLOCKS + block) * DEPTH_STEPS * TAPS * LEFT_NUMBERS; \
    int2 places[PLACES + 1];                                                                                 \
    for (int step = 0; step < DEPTH_STEPS; step++) {                                                         \
        for (int i = 0; i < PHASE_TAPS; i++) {                                                               \
            const int right = step * STEP_PAIRS * PLANE + tap_table[i][0];                                   \
            places[step * PHASE_TAPS + i] =                                                                  \
                (int2)((step * TAPS + tap_table[i][1]) * LEFT_NUMBERS / 2, right);                           \
        }                                                                                                    \
    }                                                                                                        \
    BEGIN_FRAGMENTS

/* staged[unit][position] = the sums of a tile, over the depth and taps. */
#define MULTIPLY_TILE(number)                                                                        \
    CLEAR_SUMS(staged)                                                                               \
    if (PLACES > 0) {                                                                                \
        const int columns = POSITIONS - (number) * FRAGMENT_COLUMNS > FRAGMENT ? 2 : 1;              \
        ADD_PRODUCTS(staged, columns, weights, source + (number) * FRAGMENT_COLUMNS, places, PLACES) \
    }                                                                                                \
    STORE_SUMS(staged)
