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
 * Global:
 *   width  runs
 */
#include "blob.h"

__kernel void gradient_reduce(READ_ARRAY(real_t, partials), WRITE_ARRAY(real_t, gradient), const int splits,
                              const int elements)
{
    const int start = get_global_id(0) * RUN;
    const int end = min(start + RUN, ELEMENTS);
    for (int i = start; i < end; i++) {
        accumulator_t sum = 0;
        for (int split = 0; split < SPLITS; split++) {
            sum += ARRAY(partials)[(size_t)split * ELEMENTS + i];
        }
        ARRAY(gradient)[i] = sum;
    }
}
