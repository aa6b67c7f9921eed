/*
 * Vectors of VECTOR elements, in runs of RUN vectors that are dealt out to the work-items; with runs
 * of one element, neighbouring work-items do neighbouring elements. TRAINABLE_ELEMENTS is a multiple
 * of VECTOR, and GLOBAL_WIDTH of the local size, so that no run is done twice.
 */
#define VECTORS (TRAINABLE_ELEMENTS / VECTOR)
#define RUNS ((VECTORS + RUN - 1) / RUN)
#define RUN_END(run) min((run)*RUN + RUN, VECTORS)

#if VECTOR == 1
typedef real_t vector_t;
#define LOAD(array, i) ARRAY(array)[i]
#define STORE(value, array, i) ARRAY(array)[i] = (value)
#else
#define VECTOR_JOIN_(a, b) a##b
#define VECTOR_JOIN(a, b) VECTOR_JOIN_(a, b)
typedef VECTOR_JOIN(float, VECTOR) vector_t;
#define LOAD(array, i) VECTOR_JOIN(vload, VECTOR)(i, ARRAY(array))
#define STORE(value, array, i) VECTOR_JOIN(vstore, VECTOR)(value, i, ARRAY(array))
#endif
