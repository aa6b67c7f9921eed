/*
 * Copies a blob so that its samples or its units lie side by side, for kernels whose lanes run over them. Position q is
 * a cell of a plane as one long row at the blob's pitch.
 * SAMPLES_INSIDE: gathered[group][run][q][unit in the run][sample], runs of RUN units, the last one of a group may be
 * shorter. Else: gathered[sample][q][unit]. Samples and units behind the last one, up to INNER, are 0.
 *
 * Blobs:
 *   INPUT read
 * Arrays:
 *   GATHERED write
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   SAMPLES_INSIDE
 *   GROUP_UNITS  units of a group
 *   RUN
 *   INNER        samples, or units, side by side, a multiple of LANES
 *   LANES        values in a vector
 * Global:
 *   width  vectors of INNER
 *   units  units, or samples
 */
#include "blob.h"
#include "vector.h"

#define POSITIONS ((INPUT_UNIT_HEIGHT - 1) * INPUT_UNIT_MEMORY_WIDTH + INPUT_UNIT_WIDTH)
#define RUNS ((GROUP_UNITS + RUN - 1) / RUN)

__kernel void blob_gather(READ_BLOB(input), WRITE_ARRAY(real_t, gathered), const int count)
{
    const int first = get_global_id(0) * LANES;
    const int outer = get_global_id(2);
#if SAMPLES_INSIDE
    const int rows = min(LANES, count - first);
    const size_t row_stride = INPUT_MEMORY_ELEMENTS;
    __global const real_t *from = input + BLOB_INDEX(INPUT, first, outer, 0, 0);
    const int run = outer / GROUP_UNITS * RUNS + outer % GROUP_UNITS / RUN;
    __global real_t *to =
        ARRAY(gathered) + ((size_t)run * POSITIONS * RUN + outer % GROUP_UNITS % RUN) * INNER + first;
    const size_t column_stride = RUN * INNER;
#else
    const int rows = min(LANES, INPUT_UNIT_COUNT - first);
    const size_t row_stride = INPUT_UNIT_MEMORY_ELEMENTS;
    __global const real_t *from = input + BLOB_INDEX(INPUT, outer, first, 0, 0);
    __global real_t *to = ARRAY(gathered) + (size_t)outer * POSITIONS * INNER + first;
    const size_t column_stride = INNER;
#endif
    for (int start = 0; start < POSITIONS; start += LANES) {
        real_t block[LANES][LANES];
        for (int row = 0; row < LANES; row++) {
            VECTOR_STORE(row < rows ? VECTOR_LOAD(from + row * row_stride + start) : 0, block[row]);
        }
        const int columns = min(LANES, POSITIONS - start);
        for (int column = 0; column < columns; column++) {
            real_t lanes[LANES];
            for (int row = 0; row < LANES; row++) {
                lanes[row] = block[row][column];
            }
            VECTOR_STORE(VECTOR_LOAD(lanes), to + (start + column) * column_stride);
        }
    }
}
