/*
 * The loops of pooling, backward: input_delta(y, x) = sum over the windows that cover (y, x) of what each passes to it.
 * A kernel defines window_share(), and then includes this.
 */
#define INPUT_WIDTH INPUT_DELTA_UNIT_WIDTH
#define OUTPUT_WIDTH OUTPUT_DELTA_UNIT_WIDTH
#define OUTPUT_HEIGHT OUTPUT_DELTA_UNIT_HEIGHT
#include "pooling/windows.h"

/* Taps of a window that are data, along one axis. */
#define DATA_TAPS(start, window, size) (min(window, (size) - (start)) - max(0, -(start)))

/*
 * Sets, or adds to, a row of input deltas what one row of windows passes to it through tap row v. The windows have
 * ``rows`` rows of data.
 */
inline void pool_back_row(__global const real_t *restrict delta, __global const int *restrict winners,
                          __global real_t *restrict to, const int v, const int rows, const bool adds)
{
    /* Groups of cells near the ends of the row. */
    for (int i = FIRST_COLUMN; i < GROUP_END - GROUP_BEGIN - (INNER_END - INNER_BEGIN); i += GLOBAL_WIDTH) {
        const int group = GROUP_BEGIN + i < INNER_BEGIN ? GROUP_BEGIN + i : INNER_END + GROUP_BEGIN + i - INNER_BEGIN;
        const int first = group * STRIDE_WIDTH - PAD_LEFT;
        for (int u = max(0, -first); u < min(STRIDE_WIDTH, INPUT_WIDTH - first); ++u) {
            real_t sum = 0;
            for (int j = max(0, group - OUTPUT_WIDTH + 1); j <= group && u + j * STRIDE_WIDTH < WINDOW_WIDTH; ++j) {
                const int columns = DATA_TAPS(first - j * STRIDE_WIDTH, WINDOW_WIDTH, INPUT_WIDTH);
                sum += window_share(delta, winners, group - j, v, u + j * STRIDE_WIDTH, rows * columns);
            }
            to[first + u] = adds ? to[first + u] + sum : sum;
        }
    }
    for (int group = INNER_BEGIN + FIRST_COLUMN; group < INNER_END; group += GLOBAL_WIDTH) {
        const int first = group * STRIDE_WIDTH - PAD_LEFT;
        for (int u = 0; u < STRIDE_WIDTH; ++u) {
            real_t sum = 0;
            for (int j = 0; j < WINDOWS_PER_CELL; ++j) {
                if (u + j * STRIDE_WIDTH < WINDOW_WIDTH) {
                    sum += window_share(delta, winners, group - j, v, u + j * STRIDE_WIDTH, rows * WINDOW_WIDTH);
                }
            }
            to[first + u] = adds ? to[first + u] + sum : sum;
        }
    }
}

/* One plane; ``winners`` are packed densely. */
inline void pool_back_plane(__global const real_t *restrict output_delta, __global const int *restrict winners,
                            __global real_t *restrict input_delta)
{
    for (int y = get_global_id(1); y < INPUT_DELTA_UNIT_HEIGHT; y += GLOBAL_HEIGHT) {
        __global real_t *to = input_delta + y * INPUT_DELTA_UNIT_MEMORY_WIDTH;
        const int begin = FIRST_WINDOW(y);
        const int end = END_WINDOW(y);
#if !ACCUMULATE
        if (begin >= end) {
            for (int x = FIRST_COLUMN; x < INPUT_WIDTH; x += GLOBAL_WIDTH) {
                to[x] = 0;
            }
        }
#endif
        for (int window = begin; window < end; ++window) {
            __global const real_t *delta = output_delta + window * OUTPUT_DELTA_UNIT_MEMORY_WIDTH;
            __global const int *winner_row = winners + window * OUTPUT_WIDTH;
            const int top = window * STRIDE_HEIGHT - PAD_TOP;
            const int rows = DATA_TAPS(top, WINDOW_HEIGHT, INPUT_DELTA_UNIT_HEIGHT);
            /* A constant in either branch lets the compiler drop the choice from the loops. */
            if (ACCUMULATE || window > begin) {
                pool_back_row(delta, winner_row, to, y - top, rows, true);
            } else {
                pool_back_row(delta, winner_row, to, y - top, rows, false);
            }
        }
    }
}
