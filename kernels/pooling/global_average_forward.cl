/*
 * Global average pooling, forward: output(z) = epilogue(the mean of unit z).
 *
 * A processor's work-item takes a unit; on a GPU the LOCAL_WIDTH work-items along the width share one.
 *
 * Blobs, sizes as arguments:
 *   INPUT  read
 *   OUTPUT write
 * Scalars:
 *   COUNT  samples in this batch
 *   GLOBAL_UNITS  units
 * Macros:
 *   LOCAL_WIDTH  work-items that share a unit
 *   LOCAL_UNITS  units of a work-group
 * Global:
 *   width  work-items that share a unit
 *   units  units * COUNT
 * Local:
 *   width  all of the global width
 *   units  units
 */
#include "blob.h"
#include "epilogue.h"
#define GROUP_SUM_TYPE number_t
#include "group_sum.h"

__kernel void pooling_global_average_forward(READ_BLOB(input), WRITE_BLOB(output) MORE_ARRAYS,
                                             const int count, const int global_units)
{
    const int n = (int)get_global_id(2) / GLOBAL_UNITS;
    const int z = (int)get_global_id(2) % GLOBAL_UNITS;
    /* NOTE: sums of a group need every work-item: those after the last sample repeat it and write nothing. */
    const int sample = min(n, count - 1);
#if LOCAL_WIDTH == 1 && CELL_UNITS == 1
    const int8 lane = (int8)(0, 1, 2, 3, 4, 5, 6, 7);
    float8 sums = 0;
    for (int y = 0; y < UNIT_ROWS(INPUT); ++y) {
        __global const input_t *from = input + UNIT_ROW_INDEX(INPUT, sample, z, y, 0);
        for (int x = 0; x < INPUT_UNIT_WIDTH; x += 8) {
            /* What lies after the row, perhaps NaN, is loaded and thrown away. */
            sums += select((float8)0, EIGHT_VALUES(from + x), lane < INPUT_UNIT_WIDTH - x);
        }
    }
    const float4 fours = sums.lo + sums.hi;
    const float2 twos = fours.lo + fours.hi;
    const real_t total = twos.x + twos.y;
#else
    __local number_t group[LOCAL_WIDTH * LOCAL_UNITS];
    number_t own = 0;
#pragma unroll 4
    for (int i = get_local_id(0); i < INPUT_UNIT_ELEMENTS; i += LOCAL_WIDTH) {
        const int y = QUOTIENT(i, INPUT, UNIT_WIDTH);
        own += READ_VALUE(input, UNIT_ROW_INDEX(INPUT, sample, z, y, i - y * INPUT_UNIT_WIDTH));
    }
    const number_t total = GROUP_SUM(own, group);
#endif
    if (n < count && get_local_id(0) == 0) {
#define OF_UNIT (z * CELL_UNITS + unit)
        EACH_UNIT(total / INPUT_UNIT_ELEMENTS,
                  WRITE_VALUE(output, BLOB_INDEX(OUTPUT, n, OF_UNIT, 0, 0), FINISHED(unit_number, OF_UNIT)));
    }
}
