/*
 * Which taps won their windows, in memory: in WINNER_BYTES each, which the number of any tap fits. Cells have one for each
 * of their units.
 *
 *     LOAD_WINNER(pointer), STORE_WINNER(tap, pointer)     of a window, a number_index_t
 *     LOAD_WINNERS(pointer), STORE_WINNERS(taps, pointer)  of LANES windows side by side, an index_vector_t
 */
#ifndef WINNER_BYTES /* Averages have none, nor do predictions. */
#define WINNER_BYTES 1
#endif
#if WINNER_BYTES == 1
#define WINNER uchar
#elif WINNER_BYTES == 2
#define WINNER ushort
#else
#define WINNER int
#endif

#if CELL_UNITS == 1
typedef WINNER winner_t;
#define LOAD_WINNER(pointer) ((int)*(pointer))
#define STORE_WINNER(tap, pointer) (*(pointer) = (WINNER)(tap))
#else
typedef VECTOR_JOIN(WINNER, CELL_UNITS) winner_t;
#define LOAD_WINNER(pointer) VECTOR_JOIN(convert_int, CELL_UNITS)(*(pointer))
#define STORE_WINNER(tap, pointer) (*(pointer) = VECTOR_JOIN(VECTOR_JOIN(convert_, WINNER), CELL_UNITS)(tap))
#endif

#if LANES == 1
#define LOAD_WINNERS(pointer) LOAD_WINNER(pointer)
#define STORE_WINNERS(taps, pointer) STORE_WINNER(taps, pointer)
#else
#define LOAD_WINNERS(pointer) VECTOR_JOIN(convert_int, LANES)(VECTOR_JOIN(vload, LANES)(0, pointer))
#define STORE_WINNERS(taps, pointer) \
    VECTOR_JOIN(vstore, LANES)(VECTOR_JOIN(VECTOR_JOIN(convert_, WINNER), LANES)(taps), 0, pointer)
#endif
