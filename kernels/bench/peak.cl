/*
 * The most multiply-adds that a device does: chains of a = a * b + c in registers, none waiting for another.
 *
 * Arrays:
 *   RESULT write  one value a work-item
 * Scalars:
 *   COUNT  rounds of the loop
 * Macros:
 *   LANES   values in a vector
 *   CHAINS  vectors a work-item
 *   STEPS   multiply-adds a chain and round
 * Tunables:
 *   MAXIMUM_LANES  loops 16, lanes 1 of 1 2 4 8 16: most lanes
 *   MAXIMUM_CHAINS loops 12, lanes 16 of 8 12 16 24: most chains
 * Global:
 *   width  work-items
 */
#include "blob.h"
#include "vector.h"

__kernel void bench_peak(WRITE_ARRAY(real_t, result), const int count)
{
    const real_t start = get_global_id(0);
    const vector_t factor = (vector_t)(0.9999f) - start * 1e-9f;
    const vector_t term = (vector_t)(0.0001f) + start * 1e-9f;
    vector_t chains[CHAINS];
#pragma unroll
    for (int chain = 0; chain < CHAINS; chain++) {
        chains[chain] = (vector_t)(start + chain);
    }
    for (int round = 0; round < count; round++) {
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
#pragma unroll
            for (int chain = 0; chain < CHAINS; chain++) {
                /* NOTE: compilers fuse this; mad() is slow on drivers that make a function call of it. */
                chains[chain] = chains[chain] * factor + term;
            }
        }
    }
    vector_t sum = chains[0];
#pragma unroll
    for (int chain = 1; chain < CHAINS; chain++) {
        sum += chains[chain];
    }
    ARRAY(result)[get_global_id(0)] = VECTOR_SUM(sum);
}
