/*
 * Where the columns of a product lie in a forward convolution (forward_positions.h), for kernels that read the source where it is.
 */
#include "place.h"

/* The input at this work-item's columns. */
INLINE void find_columns(PLACE_OF(input_t) columns[SOURCE_COLUMNS], READ_BLOB(input), const int count)
{
#pragma unroll
    for (int j = 0; j < SOURCE_COLUMNS; j++) {
        /* Positions past the last one repeat it; their sums are not stored. */
        const int p = min(FIRST_POSITION + SOURCE_COLUMN(j), count * POSITIONS - SOURCE_RUN);
        const int y = POSITION_Y(p);
        const int x = POSITION_X(p);
        columns[j] =
            PLACE(input_t, input,
                  BLOB_INDEX(INPUT, p / POSITIONS, GROUP * GROUP_INPUT_UNITS, y * STRIDE_Y, x * STRIDE_X));
    }
}
