/*
 * The loops of pooling, forward. A kernel defines pool_window() and pool_vector(), then includes this. What it pools it
 * stores through the epilogue.
 *
 * Zero is not neutral for max, and every window holds at least one cell of data (the layer sees to
 * that), so windows are clamped to the data and no halo is read. Between FULL_BEGIN and FULL_END
 * nothing needs clamping along x: there, LANES windows side by side are pooled at a time, and the
 * last vector overlaps the one before it.
 */
#include "epilogue.h"
#include "pooling/winners.h"

#define VECTORS ((FULL_END - FULL_BEGIN + LANES - 1) / LANES)

/* Pools a plane, of a unit; with ``winners``, which are packed densely, it keeps every window's. */
INLINE void pool_plane(__global const input_t *restrict input, __global output_t *restrict output,
                       __global winner_t *restrict winners, const int unit MORE_ARRAYS)
{
    for (int y = get_global_id(1); y < OUTPUT_UNIT_HEIGHT; y += GLOBAL_HEIGHT) {
        const int top = y * STRIDE_Y - PAD_TOP;
        const int first_v = max(0, -top);
        const int end_v = min(WINDOW_HEIGHT, INPUT_UNIT_HEIGHT - top);
        __global const input_t *from = input + top * INPUT_UNIT_MEMORY_WIDTH;
        __global output_t *to = output + y * OUTPUT_UNIT_MEMORY_WIDTH;
        for (int i = get_global_id(0); i < OUTPUT_UNIT_WIDTH - (FULL_END - FULL_BEGIN); i += GLOBAL_WIDTH) {
            const int x = i < FULL_BEGIN ? i : i + FULL_END - FULL_BEGIN;
            const int left = x * STRIDE_X - PAD_LEFT;
            const int end_u = min(WINDOW_WIDTH, INPUT_UNIT_WIDTH - left);
            number_index_t winner = 0;
            const number_t value = pool_window(from + left, first_v, end_v, max(0, -left), end_u, &winner);
            WRITE_VALUE(to, x, FINISHED(value, unit));
            if (winners) {
                STORE_WINNER(winner, winners + y * OUTPUT_UNIT_WIDTH + x);
            }
        }
        for (int i = get_global_id(0); i < VECTORS; i += GLOBAL_WIDTH) {
            const int x = min(FULL_BEGIN + i * LANES, FULL_END - LANES);
            index_vector_t winner = 0;
            const vector_t values = pool_vector(from + x * STRIDE_X - PAD_LEFT, first_v, end_v, &winner);
            VECTOR_STORE(FINISHED(values, unit), to + x);
            if (winners) {
                STORE_WINNERS(winner, winners + y * OUTPUT_UNIT_WIDTH + x);
            }
        }
    }
}
