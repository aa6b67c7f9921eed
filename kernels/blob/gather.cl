/*
 * Copies a blob so that its samples lie side by side, for kernels whose lanes run over them. Position q is a cell of a
 * plane as one long row at the blob's pitch: gathered[group][run][q][unit in the run][sample], runs of RUN units, the
 * last one of a group may be shorter. Samples after the last one, up to SAMPLES, are 0.
 *
 * Blobs:
 *   INPUT read
 * Arrays:
 *   GATHERED write
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   GROUP_UNITS  units of a group
 *   RUN
 *   SAMPLES      samples side by side, a multiple of LANES
 *   LANES        values in a vector
 * Moves:
 *   gathering
 * Global:
 *   width  vectors of SAMPLES
 *   units  units
 */
#include "blob.h"
#include "vector.h"
#include "transpose.h"

#define POSITIONS ((INPUT_UNIT_HEIGHT - 1) * INPUT_UNIT_MEMORY_WIDTH + INPUT_UNIT_WIDTH)
#define RUNS ((GROUP_UNITS + RUN - 1) / RUN)

__kernel void blob_gather(READ_BLOB(input), WRITE_ARRAY(gathered_t, gathered), const int count)
{
    const int first = get_global_id(0) * LANES;
    const int unit = get_global_id(2);
    const int samples = min(LANES, count - first);
    __global const input_t *from = input + BLOB_INDEX(INPUT, first, unit, 0, 0);
    const int run = unit / GROUP_UNITS * RUNS + unit % GROUP_UNITS / RUN;
    __global gathered_t *to =
        ARRAY(gathered) + ((size_t)run * POSITIONS * RUN + unit % GROUP_UNITS % RUN) * SAMPLES + first;
    for (int start = 0; start < POSITIONS; start += LANES) {
        vector_t rows[LANES];
#pragma unroll
        for (int row = 0; row < LANES; row++) {
            rows[row] = 0;
            if (row < samples) {
                rows[row] = VECTOR_LOAD(from + (size_t)row * INPUT_MEMORY_ELEMENTS + start);
            }
        }
        transpose(rows);
#pragma unroll
        for (int row = 0; row < LANES; row++) {
            if (start + row < POSITIONS) {
                VECTOR_STORE(rows[row], to + (start + row) * (RUN * SAMPLES));
            }
        }
    }
}
