/* Planes of a unit in the whole batch: where a unit has DEPTH planes, partial sums are of each of them. */
#if DEPTH == 1
#define UNIT_PLANES count
#else
#define UNIT_PLANES (DEPTH * count)
#endif
