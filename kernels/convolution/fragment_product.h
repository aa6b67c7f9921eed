/*
 * Convolutions as products of fragments (fragment.h) for the matrix units of processors: packed weights
 * (pack_weight_fragments.cl) times pairs of the source's units at all positions of a sample (pack_fragments.cl). A tap is the
 * same pairs from another position on: TAP_TABLE has that shift, and the number of the tap in the filter.
 *
 * A work-item makes a block of UNIT_TILES * FRAGMENT units at TILES_AT_ONCE tiles of positions, one after the other, whose
 * sums leave through local memory.
 */
#define LANES 16
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
#define STAGED_BYTES (FRAGMENT_COLUMNS * 4)
__constant int tap_table[][2] = TAP_TABLE;

/* What a work-item does: of sample n, `units` units from `unit` on, at the tiles from `tile` to `end`. */
#define FRAGMENT_PART                                                                                        \
    __local real_t staged[BLOCK_UNITS * FRAGMENT_COLUMNS] __attribute__((aligned(64)));                      \
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
    BEGIN_FRAGMENTS(STEP_PAIRS);

#if UNIT_TILES == 2
#define SECOND_UNITS(statements) statements
#else
#define SECOND_UNITS(statements)
#endif

/* staged[unit][position] = the sums of a tile, over the depth and taps. */
#define MULTIPLY_TILE(number)                                                                               \
    CLEAR_SUMS(0, 0);                                                                                       \
    CLEAR_SUMS(0, 1);                                                                                       \
    SECOND_UNITS(CLEAR_SUMS(1, 0); CLEAR_SUMS(1, 1);)                                                       \
    for (int step = 0; step < DEPTH_STEPS; step++) {                                                        \
        for (int i = 0; i < PHASE_TAPS; i++) {                                                              \
            __global const uint *right =                                                                    \
                source + (size_t)step * STEP_PAIRS * PLANE + tap_table[i][0] + (number) * FRAGMENT_COLUMNS; \
            __global const ushort *left = weights + (step * TAPS + tap_table[i][1]) * LEFT_NUMBERS;         \
            LOAD_LEFT(0, left, 4 * STEP_PAIRS);                                                             \
            LOAD_RIGHT(0, right, 4 * PLANE);                                                                \
            LOAD_RIGHT(1, right + FRAGMENT, 4 * PLANE);                                                     \
            MULTIPLY_FRAGMENTS(0, 0);                                                                       \
            MULTIPLY_FRAGMENTS(0, 1);                                                                       \
            SECOND_UNITS(LOAD_LEFT(1, left + FRAGMENT * 2 * STEP_PAIRS, 4 * STEP_PAIRS);                    \
                         MULTIPLY_FRAGMENTS(1, 0); MULTIPLY_FRAGMENTS(1, 1);)                               \
        }                                                                                                   \
    }                                                                                                       \
    STORE_SUMS(0, 0, staged, STAGED_BYTES);                                                                 \
    STORE_SUMS(0, 1, staged + FRAGMENT, STAGED_BYTES);                                                      \
    SECOND_UNITS(STORE_SUMS(1, 0, staged + FRAGMENT * FRAGMENT_COLUMNS, STAGED_BYTES);                      \
                 STORE_SUMS(1, 1, staged + FRAGMENT * FRAGMENT_COLUMNS + FRAGMENT, STAGED_BYTES);)
