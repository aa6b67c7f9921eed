/*
 * Where the columns of a product lie in one phase of a convolution's backward pass to its input (phase_positions.h), for kernels that read the source where it is.
 */
#include "place.h"

/* The delta at this work-item's columns. */
INLINE void find_columns(PLACE_OF(output_delta_t) columns[SOURCE_COLUMNS], READ_BLOB(output_delta),
                         const int count)
{
#pragma unroll
    for (int j = 0; j < SOURCE_COLUMNS; j++) {
        /* Positions past the last one repeat it; their sums are not stored. */
        const int p = min(FIRST_POSITION + SOURCE_COLUMN(j), count * POSITIONS - SOURCE_RUN);
        columns[j] = PLACE(output_delta_t, output_delta,
                           BLOB_INDEX(OUTPUT_DELTA, p / POSITIONS, GROUP * GROUP_OUTPUT_UNITS, POSITION_Y(p),
                                      POSITION_X(p)));
    }
}
