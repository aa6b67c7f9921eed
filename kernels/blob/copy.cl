/*
 * Copies a blob into another of as many elements, in the order (unit, y, x), or adds it to what is there.
 * Launched only where the planner could not let two blobs share memory; the plan's report lists it.
 *
 * Blobs, sizes as arguments:
 *   INPUT  read
 *   OUTPUT update
 * Scalars:
 *   COUNT  samples in this batch
 *   GLOBAL_WIDTH  step along the elements of a sample
 *   GLOBAL_UNITS  runs of elements for one sample
 * Macros:
 *   ACCUMULATE    1: add to OUTPUT
 * Moves:
 *   copying blobs
 * Global:
 *   width  elements of a run
 *   units  runs * COUNT
 */
#include "blob.h"
#include "put.h"

__kernel void blob_copy(SHARED_BLOB(input), MUTABLE_BLOB(output), const int count, const int global_width,
                        const int global_units)
{
    const int n = (int)get_global_id(2) / GLOBAL_UNITS;
    const int run = (int)get_global_id(2) % GLOBAL_UNITS;
    if (n >= count) {
        return;
    }
    __global const input_t *from = input + BLOB_INDEX(INPUT, n, 0, 0, 0);
    __global output_t *to = output + BLOB_INDEX(OUTPUT, n, 0, 0, 0);
    for (int element = run * GLOBAL_WIDTH + get_global_id(0); element < BLOB_ELEMENTS(OUTPUT);
         element += GLOBAL_WIDTH * GLOBAL_UNITS) {
        PUT(READ_VALUE(from, BLOB_ELEMENT_OFFSET(INPUT, element)), to + BLOB_ELEMENT_OFFSET(OUTPUT, element));
    }
}
