/*
 * Where a kernel that may run in place (IN_PLACE) reads the values of `from`.
 * NOTE: one pointer in place, two restrict ones else, so that compilers vectorize both.
 */
#if IN_PLACE
#define IN_PLACE_OF(to, from) (to)
#else
#define IN_PLACE_OF(to, from) (from)
#endif
