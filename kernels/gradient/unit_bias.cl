/*
 * The gradient of a bias per unit: gradient[z] = sum over samples and positions of delta[z].
 * Splits of the samples go to a partial sum each; gradient/reduce.cl adds them in a fixed order.
 *
 * Blobs, sizes as arguments:
 *   OUTPUT_DELTA read data alone
 * Arrays:
 *   PARTIALS write  (SPLITS, units)
 * Scalars:
 *   COUNT  samples in this batch
 *   SPLITS
 * Macros:
 *   LOCAL_WIDTH  work-items that share a unit and split
 * Tunables:
 *   GROUP_WIDTH   loops 1, lanes 256 of 1 32 64 128 256: LOCAL_WIDTH
 *   TARGET_GROUPS loops 1, lanes 2048 of 1 2 4 8 16 64 256 512 1024 2048 4096: groups worth splitting for
 * Global:
 *   width   LOCAL_WIDTH
 *   height  SPLITS
 *   units   units
 */
#include "blob.h"
#define GROUP_SUM_TYPE number_t
#include "group_sum.h"

#if LOCAL_WIDTH > 1
#define SUMS 1
#else
#define SUMS 16
#endif

__kernel void gradient_unit_bias(READ_BLOB(output_delta), WRITE_ARRAY(real_t, partials), const int count,
                                 const int splits)
{
    __local number_t group[LOCAL_WIDTH];
    const int z = get_global_id(2);
    const int split = get_global_id(1);
    const int first = (int)((long)count * split / SPLITS);
    const int last = (int)((long)count * (split + 1) / SPLITS);
    /* NOTE: partial sums in an array let a compiler vectorize what it may not reorder by itself. */
    number_t sums[SUMS];
    for (int i = 0; i < SUMS; i++) {
        sums[i] = 0;
    }
#if LOCAL_WIDTH > 1
    /* NOTE: samples and positions are counted apart, since all together may be more than an int holds. */
    const int item = get_local_id(0);
    int n = first + item / OUTPUT_DELTA_UNIT_ELEMENTS;
    int position = item % OUTPUT_DELTA_UNIT_ELEMENTS;
    while (n < last) {
        sums[0] +=
            READ_VALUE(output_delta, UNIT_ROW_INDEX(OUTPUT_DELTA, n, z, position / OUTPUT_DELTA_UNIT_WIDTH,
                                                    position % OUTPUT_DELTA_UNIT_WIDTH));
        n += LOCAL_WIDTH / OUTPUT_DELTA_UNIT_ELEMENTS;
        position += LOCAL_WIDTH % OUTPUT_DELTA_UNIT_ELEMENTS;
        if (position >= OUTPUT_DELTA_UNIT_ELEMENTS) {
            position -= OUTPUT_DELTA_UNIT_ELEMENTS;
            n++;
        }
    }
#else
    for (int n = first; n < last; n++) {
        for (int y = 0; y < UNIT_ROWS(OUTPUT_DELTA); y++) {
            __global const output_delta_t *row = output_delta + UNIT_ROW_INDEX(OUTPUT_DELTA, n, z, y, 0);
            for (int x = 0; x + SUMS <= OUTPUT_DELTA_UNIT_WIDTH; x += SUMS) {
                for (int i = 0; i < SUMS; i++) {
                    sums[i] += READ_VALUE(row, x + i);
                }
            }
            for (int x = OUTPUT_DELTA_UNIT_WIDTH / SUMS * SUMS; x < OUTPUT_DELTA_UNIT_WIDTH; x++) {
                sums[x % SUMS] += READ_VALUE(row, x);
            }
        }
    }
#endif
    number_t sum = 0;
    for (int i = 0; i < SUMS; i++) {
        sum += sums[i];
    }
    sum = GROUP_SUM(sum, group);
    if (get_local_id(0) == 0) {
        SET_UNIT_NUMBERS(sum, ARRAY(partials), split * OUTPUT_DELTA_UNIT_COUNT + z);
    }
}
