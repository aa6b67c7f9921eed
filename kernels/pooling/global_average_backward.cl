/*
 * Global average pooling, backward: input_delta = output_delta(z) / the positions of a unit, in all of unit z.
 *
 * Blobs, sizes as arguments:
 *   INPUT_DELTA  update
 *   OUTPUT_DELTA read
 * Scalars:
 *   COUNT  samples in this batch
 *   GLOBAL_WIDTH   step along x
 *   GLOBAL_HEIGHT  step along y
 *   GLOBAL_UNITS   planes of a sample
 * Macros:
 *   ACCUMULATE     1: add to INPUT_DELTA
 * Global:
 *   width   columns
 *   height  rows
 *   units   planes * COUNT
 */
#include "blob.h"
#include "put.h"

__kernel void pooling_global_average_backward(WRITE_BLOB(input_delta), READ_BLOB(output_delta),
                                              const int count, const int global_width,
                                              const int global_height, const int global_units)
{
    const int n = (int)get_global_id(2) / GLOBAL_UNITS;
    const int z = (int)get_global_id(2) % GLOBAL_UNITS;
    if (n >= count) {
        return;
    }
    real_t deltas[CELL_UNITS];
    for (int unit = 0; unit < CELL_UNITS; unit++) {
        deltas[unit] = READ_VALUE(
            output_delta, BLOB_INDEX(OUTPUT_DELTA, n, UNIT_OF(INPUT_DELTA, z) * CELL_UNITS + unit, 0, 0));
    }
    const number_t share = NUMBER_OF(deltas) / INPUT_DELTA_UNIT_ELEMENTS;
    for (int y = get_global_id(1); y < INPUT_DELTA_UNIT_HEIGHT; y += GLOBAL_HEIGHT) {
        __global input_delta_t *to = input_delta + BLOB_INDEX(INPUT_DELTA, n, z, y, 0);
        for (int x = get_global_id(0); x < INPUT_DELTA_UNIT_WIDTH; x += GLOBAL_WIDTH) {
            PUT(share, to + x);
        }
    }
}
