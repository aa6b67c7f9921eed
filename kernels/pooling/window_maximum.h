/*
 * The largest of the taps of a window at (top, left) that are data: (first_v, first_u) to before (end_v, end_u).
 * The winner is the first maximum in row-major order, as v * WINDOW_WIDTH + u; a NaN wins over all.
 */
inline real_t pool_window(__global const real_t *input, const int top, const int left, const int first_v,
                          const int end_v, const int first_u, const int end_u, int *winner)
{
    const int start = top * INPUT_UNIT_MEMORY_WIDTH + left;
    real_t best = input[start + first_v * INPUT_UNIT_MEMORY_WIDTH + first_u];
    int best_tap = first_v * WINDOW_WIDTH + first_u;
    #pragma unroll
    for (int v = first_v; v < end_v; ++v) {
        #pragma unroll
        for (int u = first_u; u < end_u; ++u) {
            const real_t value = input[start + v * INPUT_UNIT_MEMORY_WIDTH + u];
            const bool wins = (value > best) | (value != value);
            best = wins ? value : best;
            best_tap = wins ? v * WINDOW_WIDTH + u : best_tap;
        }
    }
    *winner = best_tap;
    return best;
}
