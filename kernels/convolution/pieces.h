/*
 * Tiles of dense positions: TILE positions of the result, one sample's after the other's and none of them padding. In
 * memory a tile is pieces of up to LANES cells side by side: parts of rows, or of whole planes if rows follow each
 * other. Files that include it say what source_t and target_t are: the numbers of the blob that panels are made of, and
 * of the result.
 */

/* Piece p holds positions at[p] to at[p + 1] - 1 of a tile, offset[p] elements after the first sample's first cell. */
typedef struct {
    int count;
    int at[TILE + 1];
    size_t offset[TILE];
} pieces_t;

/* Where the `end` positions from `start` on lie; `sample`, `pitch` and `stride` are how far samples, rows, cells are apart. */
INLINE void find_pieces(pieces_t *pieces, const size_t sample, const int pitch, const int stride,
                        const int start, const int end)
{
    const int width = stride == 1 && pitch == RESULT_WIDTH ? POSITIONS : RESULT_WIDTH;
    int n = start / POSITIONS;
    int row = start % POSITIONS / width;
    int column = start % POSITIONS % width;
    int at = 0;
    pieces->count = 0;
    while (at < end) {
        pieces->at[pieces->count] = at;
        pieces->offset[pieces->count++] = n * sample + row * pitch + column * stride;
        const int length = min(min(width - column, LANES), end - at);
        at += length;
        column += length;
        if (column == width) {
            column = 0;
            if (++row == POSITIONS / width) {
                row = 0;
                n++;
            }
        }
    }
    pieces->at[pieces->count] = end;
}

#include "convolution/copy_piece.h"

/* Reads a tile, and nothing that another work-item may be writing. */
#define LOAD_TILE(type)                                                               \
    INLINE void OVERLOADED load_tile(__local real_t *tile, __global const type *from, \
                                     const pieces_t *pieces)                          \
    {                                                                                 \
        for (int p = 0; p < pieces->count; p++) {                                     \
            const int length = pieces->at[p + 1] - pieces->at[p];                     \
            COPY_PIECE(from + pieces->offset[p], tile + pieces->at[p], length)        \
        }                                                                             \
    }
EACH_STORAGE(LOAD_TILE)

/* Reads a tile of cells STRIDE_X apart, and up to LANES - 1 values of no meaning after it. */
INLINE void load_tile_strided(__local real_t *tile, __global const source_t *from, const pieces_t *pieces)
{
    for (int p = 0; p < pieces->count; p++) {
        VECTOR_STORE(VECTOR_LOAD_STRIDED(from + pieces->offset[p]), tile + pieces->at[p]);
    }
}

INLINE void store_tile(__local const real_t *tile, __global target_t *to, const pieces_t *pieces)
{
    for (int p = 0; p < pieces->count; p++) {
        const int length = pieces->at[p + 1] - pieces->at[p];
        COPY_PIECE(tile + pieces->at[p], to + pieces->offset[p], length)
    }
}
