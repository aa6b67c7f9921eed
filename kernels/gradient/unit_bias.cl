/*
 * The gradient of a bias per unit: gradient[z] = sum over samples and positions of delta[z].
 *
 * Blobs:
 *   OUTPUT_DELTA read
 * Arrays:
 *   GRADIENT write  a unit
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   LOCAL_WIDTH  work-items that share a unit
 * Tunables:
 *   GROUP_WIDTH cpu 1, gpu 256 of 1 32 64 128 256: LOCAL_WIDTH
 * Global:
 *   width  LOCAL_WIDTH
 *   units  units
 */
#include "blob.h"
#include "group_sum.h"

#define SUMS 16

__kernel void gradient_unit_bias(READ_BLOB(output_delta), WRITE_ARRAY(real_t, gradient), const int count)
{
    __local accumulator_t group[LOCAL_WIDTH];
    const int z = get_global_id(2);
    /* NOTE: partial sums in an array let a compiler vectorize what it may not reorder by itself. */
    accumulator_t sums[SUMS];
    for (int i = 0; i < SUMS; i++) {
        sums[i] = 0;
    }
#if LOCAL_WIDTH > 1
    /* NOTE: samples and positions are counted apart, since all together may be more than an int holds. */
    const int item = get_local_id(0);
    int n = item / OUTPUT_DELTA_UNIT_ELEMENTS;
    int position = item % OUTPUT_DELTA_UNIT_ELEMENTS;
    while (n < count) {
        sums[0] += output_delta[BLOB_INDEX(OUTPUT_DELTA, n, z, position / OUTPUT_DELTA_UNIT_WIDTH,
                                           position % OUTPUT_DELTA_UNIT_WIDTH)];
        n += LOCAL_WIDTH / OUTPUT_DELTA_UNIT_ELEMENTS;
        position += LOCAL_WIDTH % OUTPUT_DELTA_UNIT_ELEMENTS;
        if (position >= OUTPUT_DELTA_UNIT_ELEMENTS) {
            position -= OUTPUT_DELTA_UNIT_ELEMENTS;
            n++;
        }
    }
#else
    for (int n = 0; n < count; n++) {
        for (int y = 0; y < OUTPUT_DELTA_UNIT_HEIGHT; y++) {
            __global const real_t *row = output_delta + BLOB_INDEX(OUTPUT_DELTA, n, z, y, 0);
            for (int x = 0; x + SUMS <= OUTPUT_DELTA_UNIT_WIDTH; x += SUMS) {
                for (int i = 0; i < SUMS; i++) {
                    sums[i] += row[x + i];
                }
            }
            for (int x = OUTPUT_DELTA_UNIT_WIDTH / SUMS * SUMS; x < OUTPUT_DELTA_UNIT_WIDTH; x++) {
                sums[x % SUMS] += row[x];
            }
        }
    }
#endif
    accumulator_t sum = 0;
    for (int i = 0; i < SUMS; i++) {
        sum += sums[i];
    }
    sum = GROUP_SUM(sum, group);
    if (get_local_id(0) == 0) {
        ARRAY(gradient)[z] = sum;
    }
}
