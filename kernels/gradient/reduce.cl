/*
 * The second stage of a split sum: gradient[i] = sum over splits of partials[split][i], in the order of the splits.
 *
 * Arrays:
 *   PARTIALS read   (SPLITS, ELEMENTS)
 *   GRADIENT write  ELEMENTS
 * Scalars:
 *   SPLITS
 *   ELEMENTS
 * Macros:
 *   RUN       elements side by side for one work-item
 * Combined:
 *   sums of gradients
 * Global:
 *   width  runs
 */
#include "blob.h"
#include "combined.h"

COMBINABLE void gradient_reduce(READ_ARRAY(real_t, partials), WRITE_ARRAY(real_t, gradient), const int splits,
                                const int elements OF_ITEM)
{
    const int start = WORK_ITEM * RUN;
    const int end = min(start + RUN, ELEMENTS);
    for (int i = start; i < end; i++) {
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
