/* How a kernel stores a result, or with ACCUMULATE adds it to what is there. */
#if ACCUMULATE
#define PUT(value, pointer) (*(pointer) += (value))
#else
#define PUT(value, pointer) (*(pointer) = (value))
#endif
