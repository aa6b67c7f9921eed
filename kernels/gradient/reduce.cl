/*
 * The second stage of a split sum: gradient[i] = sum over splits of partials[split][i], in the order of the splits.
 *
 * Arrays:
 *   PARTIALS read   (SPLITS, ELEMENTS)
 *   GRADIENT write  ELEMENTS
 * Scalars:
 *   SPLITS
 *   ELEMENTS
 *   RUN       elements for one work-item, as far apart as its group is wide
 * Combined:
 *   sums of gradients
 * Global:
 *   width  runs
 */
#include "blob.h"
#include "combined.h"

/* Elements that are summed side by side, whose loads are under way at once. */
#define SIDE 4

COMBINABLE void gradient_reduce(READ_ARRAY(real_t, partials), WRITE_ARRAY(real_t, gradient), const int splits,
                                const int elements, const int run OF_ITEM)
{
    const int lane = get_local_id(0);
    const int width = get_local_size(0);
    int i = (WORK_ITEM - lane) * RUN + lane;
    const int end = min(i + RUN * width, ELEMENTS);
    for (; i + (SIDE - 1) * width < end; i += SIDE * width) {
        accumulator_t sums[SIDE] = {0};
        int split = 0;
        do {
            __global const real_t *from = ARRAY(partials) + (size_t)split * ELEMENTS + i;
#pragma unroll
            for (int side = 0; side < SIDE; side++) {
                sums[side] += from[side * width];
            }
        } while (++split < SPLITS);
#pragma unroll
        for (int side = 0; side < SIDE; side++) {
            ARRAY(gradient)[i + side * width] = sums[side];
        }
    }
    for (; i < end; i += width) {
        // NOTE: no test before the first split. LLVM 16 keeps such a test's outcome in a register that it then uses for
        // carries (gfx10 and gfx11, waves of 32): all elements of a work-item but its first came out as 0.
        accumulator_t sum = 0;
        int split = 0;
        do {
            sum += ARRAY(partials)[(size_t)split * ELEMENTS + i];
        } while (++split < SPLITS);
        ARRAY(gradient)[i] = sum;
    }
}
