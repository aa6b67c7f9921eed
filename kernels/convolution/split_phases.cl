/*
 * Splits the padded input of a strided convolution into its phases (convolution/input_phases.h), which become units:
 * unit (z * PHASES_Y + phase_y) * PHASES_X + phase_x of PHASES. Cells without data, and those between rows, are 0.
 *
 * Blobs:
 *   INPUT  read   with a halo of PAD_TOP rows and PAD_LEFT columns
 *   PHASES write
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   STRIDE_Y
 *   STRIDE_X
 *   PAD_TOP
 *   PAD_LEFT
 *   PHASES_Y
 *   PHASES_X
 *   LANES         values in a vector, at most a row
 *   GLOBAL_UNITS  units of PHASES
 * Tunables:
 *   MAXIMUM_LANES loops 16 of 1 2 4 8 16: most lanes
 * Moves:
 *   splitting phases
 * Global:
 *   units  units of PHASES * COUNT
 */
#include "blob.h"
#define STRIDED_TYPE input_t
#include "vector.h"

__kernel void convolution_split_phases(READ_BLOB(input), WRITE_BLOB(phases), const int count)
{
    const int n = (int)get_global_id(2) / GLOBAL_UNITS;
    const int unit = (int)get_global_id(2) % GLOBAL_UNITS;
    const int first_y = unit / PHASES_X % PHASES_Y - PAD_TOP;
    const int first_x = unit % PHASES_X - PAD_LEFT;
    __global phases_t *to = phases + BLOB_INDEX(PHASES, n, unit, 0, 0);
    for (int row = 0; row < PHASES_UNIT_HEIGHT; row++) {
        const int y = first_y + row * STRIDE_Y;
        const bool has_data = y >= 0 && y < INPUT_UNIT_HEIGHT;
        __global const input_t *from =
            input + BLOB_INDEX(INPUT, n, unit / (PHASES_Y * PHASES_X), has_data ? y : 0, first_x);
        /* Up to here columns have data: left of it the input's halo is 0. */
        const int columns = min((INPUT_UNIT_WIDTH - first_x + STRIDE_X - 1) / STRIDE_X, PHASES_UNIT_WIDTH);
        const int end = has_data ? columns : 0;
        for (int column = 0; column < PHASES_UNIT_MEMORY_WIDTH; column += LANES) {
            /* The last vector of a row may overlap the one before. */
            const int start = min(column, PHASES_UNIT_MEMORY_WIDTH - LANES);
            const vector_t value = VECTOR_LOAD_STRIDED(from + start * STRIDE_X);
            VECTOR_STORE(VECTOR_KEEP(value, start + VECTOR_LANE_NUMBERS < end),
                         to + row * PHASES_UNIT_MEMORY_WIDTH + start);
        }
    }
}
