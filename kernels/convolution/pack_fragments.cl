/*
 * A blob for products of fragments (fragment.h), rounded to bfloat16: units, or pairs of them, position by position, the
 * next unit's number behind that of the first. Rows of a plane, ROW_POSITIONS each, begin at the first position that a tap
 * reads. Positions of the padding are 0, and those right of a row are the left ones of the next row; so are units after
 * the last one of a group.
 *
 * A blob that is read with a stride is packed as its phases, a plane each: cell (y, x) of phase (i, j) is cell
 * (FIRST_Y + y * STRIDE_Y + i, FIRST_X + x * STRIDE_X + j) of the blob.
 *
 * Blobs:
 *   SOURCE read data alone
 * Arrays:
 *   CELLS write  (COUNT, GROUPS, GROUP_CELLS, PLANE) of CELL numbers
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   GROUP_UNITS
 *   GROUP_CELLS    so many planes, also where there are no more units
 *   CELL           units in each, 1 or 2
 *   STRIDE_Y
 *   STRIDE_X
 *   FIRST_Y        the first row and column that a tap reads
 *   FIRST_X
 *   PHASES_Y
 *   PHASES_X
 *   ROWS           of a phase
 *   ROW_POSITIONS
 *   PLANE          positions of all phases, and more
 *   IS_BFLOAT      1: the blob's numbers are of bfloat16
 *   LANES          positions in a vector, 2 or more
 * Moves:
 *   packing pairs
 * Global:
 *   width  GROUPS * GROUP_CELLS
 *   units  COUNT
 */
#include "blob.h"
#ifndef NARROW_STORAGE
#include "narrow.h"
#endif
#define STRIDED_TYPE source_t
#include "vector.h"

#define BITS_BY(float_n, uint_n, value) BFLOAT_BITS(float_n, uint_n, value)
#if IS_BFLOAT
#define BITS_OF(value) (VECTOR_JOIN(as_uint, LANES)(value) >> 16)
#define BITS_OF_ONE(value) (as_uint(value) >> 16)
#else
#define BITS_OF(value) BITS_BY(VECTOR_JOIN(float, LANES), VECTOR_JOIN(uint, LANES), value)
#define BITS_OF_ONE(value) BFLOAT_BITS(float, uint, value)
#endif
#if CELL == 2
typedef uint cell_t;
typedef VECTOR_JOIN(uint, LANES) bits_t;
typedef bits_t unaligned_bits_t __attribute__((aligned(4)));
#else
typedef bfloat_t cell_t;
#endif

/* Packs the positions from `begin` to `end` of a row, which are `units` units' data, and clears the others. */
INLINE void pack_row(__global cell_t *to, __global const source_t *from, const int units, const int begin,
                     const int end)
{
    for (int x = 0; x < begin; x++) {
        to[x] = 0;
    }
    int x = begin;
    /* With a stride a vector reads as far as the position after it. */
    const int vectors_end = end - LANES - (STRIDE_X > 1);
#if CELL == 2
    __global const source_t *next = units > 1 ? from + SOURCE_UNIT_MEMORY_ELEMENTS : from;
    const uint mask = units > 1 ? 0xFFFFFFFF : 0x0000FFFF;
    for (; x <= vectors_end; x += LANES) {
        const bits_t low = BITS_OF(VECTOR_LOAD_STRIDED(from + x * STRIDE_X));
        const bits_t high = BITS_OF(VECTOR_LOAD_STRIDED(next + x * STRIDE_X));
        *(__global unaligned_bits_t *)(to + x) = (low | high << 16) & mask;
    }
    for (; x < end; x++) {
        to[x] =
            (BITS_OF_ONE(READ_VALUE(from, x * STRIDE_X)) | BITS_OF_ONE(READ_VALUE(next, x * STRIDE_X)) << 16)
            & mask;
    }
#else
    for (; x <= vectors_end; x += LANES) {
        VECTOR_JOIN(store_narrow, LANES)(VECTOR_LOAD_STRIDED(from + x * STRIDE_X), to + x);
    }
    for (; x < end; x++) {
        store_narrow(READ_VALUE(from, x * STRIDE_X), to + x);
    }
#endif
    for (; x < ROW_POSITIONS; x++) {
        to[x] = 0;
    }
}

__kernel void convolution_pack_fragments(READ_BLOB(source), WRITE_ARRAY(real_t, cells), const int count)
{
    const int group = get_global_id(0) / GROUP_CELLS;
    const int unit = get_global_id(0) % GROUP_CELLS * CELL;
    const int n = get_global_id(2);
    const int units = min(GROUP_UNITS - unit, CELL);
    __global cell_t *to =
        (__global cell_t *)ARRAY(cells) + ((size_t)n * get_global_size(0) + get_global_id(0)) * PLANE;
    for (int phase = 0; phase < PHASES_Y * PHASES_X; phase++) {
        const int first_x = FIRST_X + phase % PHASES_X;
        const int begin = max(0, (-first_x + STRIDE_X - 1) / STRIDE_X);
        const int last = SOURCE_UNIT_WIDTH - 1 - first_x;
        const int end = last < 0 ? begin : max(begin, min(ROW_POSITIONS, last / STRIDE_X + 1));
        for (int row = 0; row < ROWS; row++) {
            const int y = FIRST_Y + phase / PHASES_X + row * STRIDE_Y;
            const bool is_there = units > 0 && y >= 0 && y < SOURCE_UNIT_HEIGHT;
            __global const source_t *from =
                source
                + BLOB_INDEX(SOURCE, n, group * GROUP_UNITS + (is_there ? unit : 0), is_there ? y : 0, 0);
            pack_row(to, from + first_x, units, is_there ? begin : 0, is_there ? end : 0);
            to += ROW_POSITIONS;
        }
    }
    for (int x = 0; x < PLANE - PHASES_Y * PHASES_X * ROWS * ROW_POSITIONS; x++) {
        to[x] = 0;
    }
}
