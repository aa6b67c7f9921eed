/*
 * The maximum of a window: the first one in row-major order wins, as tap v * WINDOW_WIDTH + u;
 * a NaN wins over all.
 */

/* Of a window at ``from``; its taps (first_v, first_u) to before (end_v, end_u) are data. */
INLINE number_t pool_window(__global const input_t *from, const int first_v, const int end_v,
                            const int first_u, const int end_u, number_index_t *winner)
{
    number_t best = READ_VALUE(from, first_v * INPUT_UNIT_MEMORY_WIDTH + first_u);
    *winner = first_v * WINDOW_WIDTH + first_u;
    for (int v = first_v; v < end_v; ++v) {
        for (int u = first_u; u < end_u; ++u) {
            const number_t value = READ_VALUE(from, v * INPUT_UNIT_MEMORY_WIDTH + u);
            const number_index_t wins = (value > best) | (value != value);
            best = wins ? value : best;
            *winner = wins ? (number_index_t)(v * WINDOW_WIDTH + u) : *winner;
        }
    }
    return best;
}

/* The same for LANES windows side by side, the first at ``from``, with data in all columns. */
INLINE vector_t pool_vector(__global const input_t *from, const int first_v, const int end_v,
                            index_vector_t *winner)
{
    vector_t best = VECTOR_LOAD_STRIDED(from + first_v * INPUT_UNIT_MEMORY_WIDTH);
    index_vector_t best_tap = first_v * WINDOW_WIDTH;
    for (int v = first_v; v < end_v; ++v) {
        for (int u = 0; u < WINDOW_WIDTH; ++u) {
            const vector_t value = VECTOR_LOAD_STRIDED(from + v * INPUT_UNIT_MEMORY_WIDTH + u);
            const index_vector_t wins = (value > best) | (value != value);
            best = wins ? value : best;
            best_tap = wins ? (index_vector_t)(v * WINDOW_WIDTH + u) : best_tap;
        }
    }
    *winner = best_tap;
    return best;
}
