/*
 * Global average pooling, forward: output(z) = epilogue(the mean of unit z).
 *
 * Blobs, sizes as arguments:
 *   INPUT  read
 *   OUTPUT write
 * Scalars:
 *   COUNT  samples in this batch
 *   GLOBAL_UNITS  units
 * Global:
 *   units  units * COUNT
 */
#include "blob.h"
#include "epilogue.h"

__kernel void pooling_global_average_forward(READ_BLOB(input), WRITE_BLOB(output) MORE_ARRAYS,
                                             const int count, const int global_units)
{
    const int n = (int)get_global_id(2) / GLOBAL_UNITS;
    const int z = (int)get_global_id(2) % GLOBAL_UNITS;
    if (n >= count) {
        return;
    }
#if CELL_UNITS > 1
    number_t sums = 0;
    for (int y = 0; y < INPUT_UNIT_HEIGHT; ++y) {
        __global const input_t *from = input + BLOB_INDEX(INPUT, n, z, y, 0);
        for (int x = 0; x < INPUT_UNIT_WIDTH; ++x) {
            sums += READ_VALUE(from, x);
        }
    }
#define OF_UNIT (z * CELL_UNITS + unit)
    EACH_UNIT(sums / INPUT_UNIT_ELEMENTS,
              WRITE_VALUE(output, BLOB_INDEX(OUTPUT, n, OF_UNIT, 0, 0), FINISHED(unit_number, OF_UNIT)));
#else
    const int8 lane = (int8)(0, 1, 2, 3, 4, 5, 6, 7);
    float8 sums = 0;
    for (int y = 0; y < UNIT_ROWS(INPUT); ++y) {
        __global const input_t *from = input + UNIT_ROW_INDEX(INPUT, n, z, y, 0);
        for (int x = 0; x < INPUT_UNIT_WIDTH; x += 8) {
            /* What lies after the row, perhaps NaN, is loaded and thrown away. */
            sums += select((float8)0, EIGHT_VALUES(from + x), lane < INPUT_UNIT_WIDTH - x);
        }
    }
    const float4 fours = sums.lo + sums.hi;
    const float2 twos = fours.lo + fours.hi;
    const real_t mean = (twos.x + twos.y) / INPUT_UNIT_ELEMENTS;
    WRITE_VALUE(output, BLOB_INDEX(OUTPUT, n, z, 0, 0), FINISHED(mean, z));
#endif
}
