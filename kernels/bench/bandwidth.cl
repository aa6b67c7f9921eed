/*
 * The bytes that a device moves from and to its memory: a copy, or with WRITES 0 a sum that only reads.
 *
 * Arrays:
 *   SOURCE read   RUNS * LANES values a work-item, those of a group interleaved vector by vector
 *   TARGET write  as many, or one value a work-item
 * Scalars:
 *   COUNT  times that all of it is done
 * Macros:
 *   LANES        values in a vector
 *   RUNS         vectors a work-item
 *   WRITES       whether to copy
 *   LOCAL_WIDTH  work-items of a group
 * Tunables:
 *   MAXIMUM_LANES loops 16, lanes 4 of 1 2 4 8 16: most lanes
 *   GROUP_WIDTH   loops 1, lanes 256 of 1 64 128 256: LOCAL_WIDTH
 * Global:
 *   width  work-items
 */
#include "blob.h"
#include "vector.h"

__kernel void bench_bandwidth(READ_ARRAY(real_t, source), WRITE_ARRAY(real_t, target), const int count)
{
    const size_t first = ((size_t)get_group_id(0) * RUNS * LOCAL_WIDTH + get_local_id(0)) * LANES;
    vector_t sum = (vector_t)(0);
    for (int time = 0; time < count; time++) {
#pragma unroll 8
        for (int run = 0; run < RUNS; run++) {
            const size_t position = first + (size_t)run * LOCAL_WIDTH * LANES;
#if WRITES
            VECTOR_STORE(VECTOR_LOAD(ARRAY(source) + position), ARRAY(target) + position);
#else
            sum += VECTOR_LOAD(ARRAY(source) + position);
#endif
        }
    }
#if !WRITES
    ARRAY(target)[get_global_id(0)] = VECTOR_SUM(sum);
#endif
}
