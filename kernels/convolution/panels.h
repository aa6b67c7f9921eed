/*
 * Convolutions as products with panels: a work-item copies what a tile of dense positions reads into local memory, in
 * the order of reading, and multiplies all its units with that. Vectors are full at any plane and stride, and the loop
 * reads two streams: the panel, which a cache holds, and the weights.
 *
 * sums[unit][position] = sum over DEPTH source units and their taps of weight * source. Tap (a, b) of the result's cell
 * (y, x) is the source's cell (y * STRIDE_Y + ROW_FIRST + a * ROW_STEP, x * STRIDE_X + COLUMN_FIRST + b * COLUMN_STEP).
 * A panel has DEPTHS source units; sums stay in local memory from one panel to the next.
 */
#include "blob.h"
#define STRIDED_TYPE source_t
#include "vector.h"

#define TILE (BLOCK_VECTORS * LANES)
#define TAPS (TAPS_Y * TAPS_X)
#define ROWS (DEPTH * TAPS)
#define POSITIONS (RESULT_HEIGHT * RESULT_WIDTH)
#define CHUNKS ((UNITS + UNITS_AT_ONCE - 1) / UNITS_AT_ONCE)
#include "convolution/pieces.h"

/*
 * What a work-item does, `units` from `unit` on and the positions from `start` to `end` after that; and what it keeps:
 * a panel, its sums, and a tile of what else a result is made of. What is after the last position is no result, but is
 * computed with, and so it is set.
 */
#define PANEL_PART                                                                   \
    const int chunk = get_global_id(0) % (GROUPS * CHUNKS);                          \
    const int group = chunk / CHUNKS;                                                \
    const int first = chunk % CHUNKS * UNITS_AT_ONCE;                                \
    const int units = min(UNITS_AT_ONCE, UNITS - first);                             \
    const int unit = group * UNITS + first;                                          \
    const int start = get_global_id(0) / (GROUPS * CHUNKS) * TILE;                   \
    const int end = min(TILE, count * POSITIONS - start);                            \
    __local real_t panel[DEPTHS * TAPS * TILE + LANES] __attribute__((aligned(64))); \
    __local real_t sums[UNITS_AT_ONCE * TILE + LANES] __attribute__((aligned(64)));  \
    __local real_t tile[TILE] __attribute__((aligned(64)));                          \
    if (end < TILE) {                                                                \
        clear(panel, DEPTHS * TAPS * TILE);                                          \
        clear(tile, TILE);                                                           \
    }

/* Clears whole vectors. */
INLINE void clear(__local real_t *to, const int size)
{
    for (int i = 0; i < size; i += LANES) {
        VECTOR_STORE(0, to + i);
    }
}

/* Copies the rows of `depths` source units from `source` on, the first sample's first cell. */
INLINE void load_panel(__local real_t *panel, __global const source_t *source, const int depths,
                       const pieces_t *pieces)
{
    for (int depth = 0; depth < depths; depth++) {
        for (int a = 0; a < TAPS_Y; a++) {
            for (int b = 0; b < TAPS_X; b++) {
                const int shift = (ROW_FIRST + a * ROW_STEP) * SOURCE_PITCH + COLUMN_FIRST + b * COLUMN_STEP;
                /* NOTE: what this leaves after the tile's end lies where the next row comes. */
                load_tile_strided(panel, source + shift, pieces);
                panel += TILE;
            }
        }
        source += SOURCE_PLANE;
    }
}

/* Adds the products of `rows` rows of a panel and the weights of a block of `units` units. */
INLINE void multiply_panel(__local real_t *sums, __local const real_t *panel, __global const weight_t *weight,
                           const int rows, const int units)
{
    vector_t accumulators[BLOCK_UNITS][BLOCK_VECTORS];
#pragma unroll
    for (int u = 0; u < BLOCK_UNITS; u++) {
#pragma unroll
        for (int v = 0; v < BLOCK_VECTORS; v++) {
            accumulators[u][v] = VECTOR_LOAD(sums + u * TILE + v * LANES);
        }
    }
    for (int row = 0; row < rows; row++) {
        vector_t values[BLOCK_VECTORS];
#pragma unroll
        for (int v = 0; v < BLOCK_VECTORS; v++) {
            values[v] = VECTOR_LOAD(panel + v * LANES);
        }
#pragma unroll
        for (int u = 0; u < BLOCK_UNITS; u++) {
            /* Units past the last one repeat it; their sums are of no use. */
            const int unit = UNITS % BLOCK_UNITS == 0 || u < units ? u : units - 1;
            const real_t factor = READ_VALUE(weight, unit * ROWS);
#pragma unroll
            for (int v = 0; v < BLOCK_VECTORS; v++) {
                accumulators[u][v] = MULTIPLY_ADD((vector_t)(factor), values[v], accumulators[u][v]);
            }
        }
        panel += TILE;
        weight++;
    }
#pragma unroll
    for (int u = 0; u < BLOCK_UNITS; u++) {
#pragma unroll
        for (int v = 0; v < BLOCK_VECTORS; v++) {
            VECTOR_STORE(accumulators[u][v], sums + u * TILE + v * LANES);
        }
    }
}

/* Makes the sums of a tile of `end` positions from `start` on, and of `units` units from `weight` on. */
INLINE void multiply_panels(__local real_t *sums, __local real_t *panel, __global const source_t *source,
                            __global const weight_t *weight, const int units, const int start, const int end)
{
    pieces_t pieces;
    find_pieces(&pieces, SOURCE_SAMPLE, STRIDE_Y * SOURCE_PITCH, STRIDE_X, start, end);
    clear(sums, UNITS_AT_ONCE * TILE);
    for (int depth = 0; depth < DEPTH; depth += DEPTHS) {
        const int depths = min(DEPTHS, DEPTH - depth);
        load_panel(panel, source + depth * SOURCE_PLANE, depths, &pieces);
        for (int unit = 0; unit < units; unit += BLOCK_UNITS) {
            multiply_panel(sums + unit * TILE, panel, weight + unit * ROWS + depth * TAPS, depths * TAPS,
                           min(BLOCK_UNITS, units - unit));
        }
    }
}

/* Adds a tile to another. */
INLINE void add_tile(__local real_t *to, __local const real_t *tile)
{
#pragma unroll
    for (int v = 0; v < BLOCK_VECTORS; v++) {
        VECTOR_STORE(VECTOR_LOAD(to + v * LANES) + VECTOR_LOAD(tile + v * LANES), to + v * LANES);
    }
}
