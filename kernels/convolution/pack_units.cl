/*
 * The input of a convolution with units side by side: panels[panel][sample][cell][unit], of PANEL_UNITS units of a
 * group each, 0 after the group's last one. Cells lie phase by phase (convolution/input_phases.h), so that those that
 * a tap reads are neighbours, whatever the stride. Those of the padding are left out.
 *
 * Blobs:
 *   INPUT  read
 * Arrays:
 *   PANELS write  (panels, COUNT, phases, PHASE_HEIGHT, PHASE_WIDTH, PANEL_UNITS)
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   GROUP_INPUT_UNITS
 *   STRIDE_Y
 *   STRIDE_X
 *   PAD_TOP
 *   PAD_LEFT
 *   PHASES_Y
 *   PHASES_X
 *   PHASE_HEIGHT
 *   PHASE_WIDTH
 *   PANEL_UNITS    a multiple of LANES
 *   LANES          values in a vector
 * Moves:
 *   packing units
 * Global:
 *   width  vectors of panels
 *   units  COUNT
 */
#include "blob.h"
#include "vector.h"
#include "transpose.h"
#include "convolution/input_phases.h"

#define PHASE_ELEMENTS (PHASE_HEIGHT * PHASE_WIDTH)
#define PHASES_ELEMENTS (PHASES_Y * PHASES_X * PHASE_ELEMENTS)
#define PANEL_VECTORS (PANEL_UNITS / LANES)
#define GROUP_PANELS ((GROUP_INPUT_UNITS + PANEL_UNITS - 1) / PANEL_UNITS)
#define POSITIONS ((INPUT_UNIT_HEIGHT - 1) * INPUT_UNIT_MEMORY_WIDTH + INPUT_UNIT_WIDTH)

__kernel void convolution_pack_units(READ_BLOB(input), WRITE_ARRAY(panels_t, panels), const int count)
{
    const int panel = get_global_id(0) / PANEL_VECTORS;
    const int vector = get_global_id(0) % PANEL_VECTORS;
    const int n = get_global_id(2);
    const int first = (panel % GROUP_PANELS * PANEL_VECTORS + vector) * LANES;
    __global const input_t *from =
        input + BLOB_INDEX(INPUT, n, panel / GROUP_PANELS * GROUP_INPUT_UNITS + first, 0, 0);
    __global panels_t *to =
        ARRAY(panels) + ((size_t)panel * count + n) * PHASES_ELEMENTS * PANEL_UNITS + vector * LANES;
    for (int start = 0; start < POSITIONS; start += LANES) {
        vector_t rows[LANES];
#pragma unroll
        for (int row = 0; row < LANES; row++) {
            rows[row] = 0;
            if (first + row < GROUP_INPUT_UNITS) {
                rows[row] = VECTOR_LOAD(from + row * INPUT_UNIT_MEMORY_ELEMENTS + start);
            }
        }
        transpose(rows);
#pragma unroll
        for (int row = 0; row < LANES; row++) {
            const int y = (start + row) / INPUT_UNIT_MEMORY_WIDTH + PAD_TOP;
            const int x = (start + row) % INPUT_UNIT_MEMORY_WIDTH + PAD_LEFT;
            const bool is_data = y < INPUT_UNIT_HEIGHT + PAD_TOP && x < INPUT_UNIT_WIDTH + PAD_LEFT;
            const bool is_read = y % STRIDE_Y < PHASES_Y && y / STRIDE_Y < PHASE_HEIGHT
                                 && x % STRIDE_X < PHASES_X && x / STRIDE_X < PHASE_WIDTH;
            if (is_data && is_read) {
                VECTOR_STORE(rows[row], to
                                            + (PHASE_ROW(y, PHASE_ELEMENTS, PHASE_WIDTH)
                                               + PHASE_COLUMN(x, PHASE_ELEMENTS))
                                                  * PANEL_UNITS);
            }
        }
    }
}
