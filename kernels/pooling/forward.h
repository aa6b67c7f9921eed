/*
 * The loops of pooling, forward. A kernel defines pool_window(), and then includes this.
 */
#define INPUT_WIDTH INPUT_UNIT_WIDTH
#define OUTPUT_WIDTH OUTPUT_UNIT_WIDTH
#define OUTPUT_HEIGHT OUTPUT_UNIT_HEIGHT
#include "pooling/windows.h"

/* Pools one plane; to get every window's winner, give ``winners``: they are packed densely. */
inline void pool_plane(__global const real_t *restrict input, __global real_t *restrict output,
                       __global int *restrict winners)
{
    for (int y = get_global_id(1); y < OUTPUT_UNIT_HEIGHT; y += GLOBAL_HEIGHT) {
        const int top = y * STRIDE_HEIGHT - PAD_TOP;
        const int first_v = max(0, -top);
        const int end_v = min(WINDOW_HEIGHT, INPUT_UNIT_HEIGHT - top);
        const int inner = end_v - first_v == WINDOW_HEIGHT ? FULL_END - FULL_BEGIN : 0;
        __global real_t *to = output + y * OUTPUT_UNIT_MEMORY_WIDTH;
        for (int i = FIRST_COLUMN; i < OUTPUT_UNIT_WIDTH - inner; i += GLOBAL_WIDTH) {
            const int x = i < FULL_BEGIN ? i : i + inner;
            const int left = x * STRIDE_WIDTH - PAD_LEFT;
            const int end_u = min(WINDOW_WIDTH, INPUT_UNIT_WIDTH - left);
            int winner = 0;
            to[x] = pool_window(input, top, left, first_v, end_v, max(0, -left), end_u, &winner);
            if (winners) {
                winners[y * OUTPUT_UNIT_WIDTH + x] = winner;
            }
        }
        for (int i = FIRST_COLUMN; i < inner; i += GLOBAL_WIDTH) {
            const int x = FULL_BEGIN + i;
            const int left = x * STRIDE_WIDTH - PAD_LEFT;
            int winner = 0;
            to[x] = pool_window(input, top, left, 0, WINDOW_HEIGHT, 0, WINDOW_WIDTH, &winner);
            if (winners) {
                winners[y * OUTPUT_UNIT_WIDTH + x] = winner;
            }
        }
    }
}
