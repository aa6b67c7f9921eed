/*
 * Copies a blob into another of as many elements, in the order (unit, y, x), or adds it to what is there.
 * Launched only where the planner could not let two blobs share memory; the plan's report lists it.
 *
 * Blobs:
 *   INPUT  read
 *   OUTPUT update
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   ACCUMULATE    1: add to OUTPUT
 *   GLOBAL_WIDTH  step along the elements of a sample
 *   GLOBAL_UNITS  runs of elements for one sample
 * Global:
 *   width  elements of a run
 *   units  runs * COUNT
 */
#include "blob.h"

#define ELEMENTS (OUTPUT_UNIT_COUNT * OUTPUT_UNIT_ELEMENTS)
#define AT(ROLE, n, element)                              \
    BLOB_INDEX(ROLE, n, (element) / ROLE##_UNIT_ELEMENTS, \
               (element) % ROLE##_UNIT_ELEMENTS / ROLE##_UNIT_WIDTH, (element) % ROLE##_UNIT_WIDTH)

__kernel void blob_copy(SHARED_BLOB(input), MUTABLE_BLOB(output), const int count)
{
    const int n = get_global_id(2) / GLOBAL_UNITS;
    const int run = get_global_id(2) % GLOBAL_UNITS;
    if (n >= count) {
        return;
    }
    for (int element = run * GLOBAL_WIDTH + get_global_id(0); element < ELEMENTS;
         element += GLOBAL_WIDTH * GLOBAL_UNITS) {
        const real_t value = input[AT(INPUT, n, element)];
#if ACCUMULATE
        output[AT(OUTPUT, n, element)] += value;
#else
        output[AT(OUTPUT, n, element)] = value;
#endif
    }
}
