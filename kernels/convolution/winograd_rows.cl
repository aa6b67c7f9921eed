/*
 * Patches of a blob for minimal filtering (convolution/winograd.h) on processors: transformed[point][group][unit][patch] =
 * (B^T source B)[point], or (A delta A^T)[point], patches of all samples side by side, a vector of those of a row at a
 * time. Cells outside the data are 0. A vector may reach beyond its row's end: what follows is written later, by the same
 * work-item; behind the last patch are zeros up to whole vectors of SUM_LANES, if they are summed over.
 *
 * Blobs:
 *   SOURCE read data alone
 * Arrays:
 *   TRANSFORMED write  (POINTS, groups, units, PATCHES), points PATCHES_PITCH apart
 * Scalars:
 *   COUNT  samples in this launch
 *   FIRST  the first one
 * Macros:
 *   SAMPLE_PATCHES  patches of a sample
 *   ROW_PATCHES     side by side
 *   FIRST_Y         the first patch's first cell
 *   FIRST_X
 *   PATCHES         patches of all samples, or more
 *   PATCHES_PITCH
 *   CELLS           results of a patch on a side, 2 or 4
 *   TAPS            of a filter on a side
 *   DELTA           0: B^T source B of overlapping patches, 1: A delta A^T of CELLS x CELLS cells
 *   LANES           patches in a vector
 *   SUM_LANES       1 where nothing sums over patches
 * Moves:
 *   Winograd patches
 * Global:
 *   width   units of all groups
 */
#include "blob.h"
#include "vector.h"
#include "convolution/copy_piece.h"
#include "convolution/winograd.h"

/* Patches beside a vector's that its last one shares cells with, and the cells of a row of all these. */
#define BESIDE ((SIDE - 1) / CELLS)
#define SEGMENT (CELLS * (LANES + BESIDE))

/* Puts the cells of a segment whose numbers leave the same remainder by CELLS side by side. */
INLINE void deal(__local real_t dealt[CELLS][LANES + BESIDE], __local const real_t *segment)
{
#if LANES > 1
    vector_t halves[CELLS];
#pragma unroll
    for (int i = 0; i < CELLS; i += 2) {
        const vector_t low = VECTOR_LOAD(segment + i * LANES);
        const vector_t high = VECTOR_LOAD(segment + (i + 1) * LANES);
        halves[i] = (vector_t)(low.even, high.even);
        halves[i + 1] = (vector_t)(low.odd, high.odd);
    }
#if CELLS == 4
    VECTOR_STORE((vector_t)(halves[0].even, halves[2].even), dealt[0]);
    VECTOR_STORE((vector_t)(halves[1].even, halves[3].even), dealt[1]);
    VECTOR_STORE((vector_t)(halves[0].odd, halves[2].odd), dealt[2]);
    VECTOR_STORE((vector_t)(halves[1].odd, halves[3].odd), dealt[3]);
#else
    VECTOR_STORE(halves[0], dealt[0]);
    VECTOR_STORE(halves[1], dealt[1]);
#endif
    const int first = LANES;
#else
    const int first = 0;
#endif
    for (int p = first; p < LANES + BESIDE; p++) {
        for (int i = 0; i < CELLS; i++) {
            dealt[i][p] = segment[p * CELLS + i];
        }
    }
}

__kernel void convolution_winograd_rows(READ_BLOB(source), WRITE_ARRAY(real_t, transformed), const int count,
                                        const int first)
{
    const int unit = get_global_id(0);
    __local real_t segment[SEGMENT + LANES] __attribute__((aligned(64)));
    __local real_t dealt[CELLS][LANES + BESIDE] __attribute__((aligned(64)));
    for (int row = 0; row < count * SAMPLE_PATCHES / ROW_PATCHES; row++) {
        const int n = first + row / (SAMPLE_PATCHES / ROW_PATCHES);
        const int y = FIRST_Y + row % (SAMPLE_PATCHES / ROW_PATCHES) * CELLS;
        for (int patch = 0; patch < ROW_PATCHES; patch += LANES) {
            const int x = FIRST_X + patch * CELLS;
            const int begin = max(0, -x);
            const int end = min(SEGMENT, SOURCE_UNIT_WIDTH - x);
            vector_t cells[SIDE * SIDE];
            for (int i = 0; i < SEGMENT; i += LANES) {
                VECTOR_STORE(0, segment + i);
            }
            for (int i = 0; i < SIDE; i++) {
                if (y + i >= 0 && y + i < SOURCE_UNIT_HEIGHT) {
                    __global const source_t *from = source + BLOB_INDEX(SOURCE, n, unit, y + i, x);
                    for (int at = begin; at < end; at += LANES) {
                        const int length = min(LANES, end - at);
                        COPY_PIECE(from + at, segment + at, length)
                    }
                    deal(dealt, segment);
                    for (int j = 0; j < SIDE; j++) {
                        cells[i * SIDE + j] = VECTOR_LOAD(dealt[j % CELLS] + j / CELLS);
                    }
                } else {
                    for (int j = 0; j < SIDE; j++) {
                        cells[i * SIDE + j] = 0;
                    }
                }
            }
            vector_t points[POINTS];
#if DELTA
            TRANSFORM_DELTA(points, cells);
#else
            TRANSFORM_SOURCE(points, cells);
#endif
            __global real_t *to = ARRAY(transformed) + unit * PATCHES + row * ROW_PATCHES + patch;
#pragma unroll
            for (int point = 0; point < POINTS; point++) {
                VECTOR_STORE(points[point], to + point * PATCHES_PITCH);
            }
        }
    }
    for (int patch = count * SAMPLE_PATCHES; patch % SUM_LANES; patch++) {
        for (int point = 0; point < POINTS; point++) {
            ARRAY(transformed)[point * PATCHES_PITCH + unit * PATCHES + patch] = 0;
        }
    }
}
