/*
 * The loops of pooling, backward: input_delta(y, x) = sum of what the windows that cover (y, x) pass
 * to it. A kernel defines window_share() and vector_share(), then includes this.
 *
 * Input columns come in groups of STRIDE_X: cell u of group q is input column
 * q * STRIDE_X - PAD_LEFT + u, and the window in column q - j covers it with its tap
 * u + j * STRIDE_X, where there is such a tap. Between INNER_BEGIN and INNER_END nothing needs
 * clamping along x: there, LANES groups side by side are computed at a time. The last vector may
 * overlap the one before it, but not where deltas are added to.
 */
#include "put.h"

#define WINDOWS_PER_CELL ((WINDOW_WIDTH + STRIDE_X - 1) / STRIDE_X)
#define VECTORS ((INNER_END - INNER_BEGIN + LANES - 1) / LANES)
#define CLAMPED_GROUPS (GROUP_END - GROUP_BEGIN - (INNER_END - INNER_BEGIN))

#if ACCUMULATE
#define PUT_VECTOR(value, pointer) VECTOR_STORE(VECTOR_LOAD(pointer) + (value), pointer)
#else
#define PUT_VECTOR(value, pointer) VECTOR_STORE(value, pointer)
#endif

/* Taps of a window that are data, along one axis. */
#define DATA_TAPS(start, window, size) (min(window, (size) - (start)) - max(0, -(start)))

/* The rows of windows that cover row y: from FIRST_ROW to before END_ROW; there may be none. */
#define FIRST_ROW(y) ((y) + PAD_TOP < WINDOW_HEIGHT ? 0 : ((y) + PAD_TOP - WINDOW_HEIGHT) / STRIDE_Y + 1)
#define END_ROW(y) min(((y) + PAD_TOP) / STRIDE_Y + 1, OUTPUT_DELTA_UNIT_HEIGHT)

/* The sum for cell u of a group in row y. */
INLINE number_t cell_sum(__global const output_delta_t *delta, __global const winner_t *winners, const int y,
                         const int group, const int u)
{
    number_t sum = 0;
    for (int row = FIRST_ROW(y); row < END_ROW(y); ++row) {
        const int top = row * STRIDE_Y - PAD_TOP;
        const int rows = DATA_TAPS(top, WINDOW_HEIGHT, INPUT_DELTA_UNIT_HEIGHT);
        for (int j = max(0, group - OUTPUT_DELTA_UNIT_WIDTH + 1);
             j <= group && u + j * STRIDE_X < WINDOW_WIDTH; ++j) {
            const int column = group - j;
            const int columns = DATA_TAPS(column * STRIDE_X - PAD_LEFT, WINDOW_WIDTH, INPUT_DELTA_UNIT_WIDTH);
            sum += window_share(delta + row * OUTPUT_DELTA_UNIT_MEMORY_WIDTH + column,
                                winners + row * OUTPUT_DELTA_UNIT_WIDTH + column,
                                (y - top) * WINDOW_WIDTH + u + j * STRIDE_X, rows * columns);
        }
    }
    return sum;
}

/* The same for the cells u of LANES groups side by side. */
INLINE vector_t vector_sums(__global const output_delta_t *delta, __global const winner_t *winners,
                            const int y, const int group, const int u)
{
    vector_t sum = 0;
    for (int row = FIRST_ROW(y); row < END_ROW(y); ++row) {
        const int top = row * STRIDE_Y - PAD_TOP;
        const int rows = DATA_TAPS(top, WINDOW_HEIGHT, INPUT_DELTA_UNIT_HEIGHT);
        for (int j = 0; j < WINDOWS_PER_CELL && u + j * STRIDE_X < WINDOW_WIDTH; ++j) {
            const int column = group - j;
            sum += vector_share(delta + row * OUTPUT_DELTA_UNIT_MEMORY_WIDTH + column,
                                winners + row * OUTPUT_DELTA_UNIT_WIDTH + column,
                                (y - top) * WINDOW_WIDTH + u + j * STRIDE_X, rows * WINDOW_WIDTH);
        }
    }
    return sum;
}

/* One plane; ``winners`` are packed densely. */
INLINE void pool_back_plane(__global const output_delta_t *restrict delta,
                            __global const winner_t *restrict winners,
                            __global input_delta_t *restrict input_delta)
{
    for (int y = get_global_id(1); y < INPUT_DELTA_UNIT_HEIGHT; y += GLOBAL_HEIGHT) {
        __global input_delta_t *to = input_delta + y * INPUT_DELTA_UNIT_MEMORY_WIDTH - PAD_LEFT;
        for (int i = get_global_id(0); i < VECTORS; i += GLOBAL_WIDTH) {
            const int group = min(INNER_BEGIN + i * LANES, INNER_END - LANES);
            const int x = group * STRIDE_X;
#if STRIDE_X == 1
            PUT_VECTOR(vector_sums(delta, winners, y, group, 0), to + x);
#elif STRIDE_X == 2 && LANES > 1
            const vector_t even = vector_sums(delta, winners, y, group, 0);
            const vector_t odd = vector_sums(delta, winners, y, group, 1);
            vector_t first, second;
            first.even = even.lo;
            first.odd = odd.lo;
            second.even = even.hi;
            second.odd = odd.hi;
            PUT_VECTOR(first, to + x);
            PUT_VECTOR(second, to + x + LANES);
#else
            for (int u = 0; u < STRIDE_X; ++u) {
                number_t lanes[LANES];
                VECTOR_STORE(vector_sums(delta, winners, y, group, u), lanes);
                for (int lane = 0; lane < LANES; ++lane) {
                    PUT(lanes[lane], to + x + u + lane * STRIDE_X);
                }
            }
#endif
        }
        for (int i = get_global_id(0); i < CLAMPED_GROUPS; i += GLOBAL_WIDTH) {
            const int group = GROUP_BEGIN + i + (GROUP_BEGIN + i < INNER_BEGIN ? 0 : INNER_END - INNER_BEGIN);
            const int x = group * STRIDE_X;
            const int end_u = min(STRIDE_X, PAD_LEFT + INPUT_DELTA_UNIT_WIDTH - x);
            for (int u = max(0, PAD_LEFT - x); u < end_u; ++u) {
                PUT(cell_sum(delta, winners, y, group, u), to + x + u);
            }
        }
    }
}
