/*
 * Where positions of fragments lie in a result: a tile is FRAGMENT_COLUMNS positions in a row, of planes whose rows are
 * ROW_POSITIONS long. Those beyond the width of a row, and after the last row, are no results.
 */
#define FRAGMENT_COLUMNS (2 * FRAGMENT)
/* Runs of results: positions start[r] to start[r] + length[r] - 1 of a tile, the first of which is cell (y[r], x[r]). */
typedef struct {
    int count, start[FRAGMENT_COLUMNS], length[FRAGMENT_COLUMNS], y[FRAGMENT_COLUMNS], x[FRAGMENT_COLUMNS];
} runs_t;

/* The runs of the tile at `position`, of at most LANES results each. */
INLINE void find_runs(runs_t *runs, const int position)
{
    int y = position / ROW_POSITIONS;
    int x = position % ROW_POSITIONS;
    runs->count = 0;
    for (int at = 0; at < FRAGMENT_COLUMNS && y < RESULT_HEIGHT;) {
        const int length = min(min(RESULT_WIDTH - x, LANES), FRAGMENT_COLUMNS - at);
        if (length > 0) {
            const int r = runs->count++;
            runs->start[r] = at;
            runs->length[r] = length;
            runs->y[r] = y;
            runs->x[r] = x;
            at += length;
            x += length;
        } else {
            at += ROW_POSITIONS - x;
            x = 0;
            y++;
        }
    }
}
