/*
 * Vectors of LANES consecutive values. LANES is 1 on devices whose work-items are lanes already.
 * VECTOR_OF(LANE, a, b) is the vector of LANE(0, a, b), LANE(1, a, b), ... for up to 8 lanes.
 */
#define VECTOR_JOIN_(a, b) a##b
#define VECTOR_JOIN(a, b) VECTOR_JOIN_(a, b)

#if LANES == 1
typedef number_t vector_t;
typedef number_index_t index_vector_t;
#define VECTOR_LOAD(pointer) VALUE_OF(pointer)
#define VECTOR_LOAD_ALIGNED(pointer) VALUE_OF(pointer)
#define VECTOR_STORE(value, pointer) SET_VALUE(value, pointer)
#define VECTOR_LANE_NUMBERS 0
#define VECTOR_SUM(value) (value)
#define VECTOR_OF(LANE, a, b) LANE(0, a, b)
#else
typedef VECTOR_JOIN(float, LANES) vector_t;
typedef VECTOR_JOIN(int, LANES) index_vector_t;
#if defined(__NV_CL_C_VERSION) && !defined(NARROW_STORAGE)
#define VECTOR_LOAD(pointer) VECTOR_JOIN(vload, LANES)(0, pointer)
#define VECTOR_STORE(value, pointer) VECTOR_JOIN(vstore, LANES)(value, 0, pointer)
#else
/*
 * NOTE: PoCL 3.0 calls the functions of OpenCL C (vload, select, ...), and saves all registers around each; so vectors
 * are read and written through types that may lie at any element. NVIDIA's compiler has not been tried with these.
 */
typedef vector_t unaligned_vector_t __attribute__((aligned(4)));
typedef index_vector_t unaligned_index_vector_t __attribute__((aligned(4)));
#define VECTOR_LOAD(pointer) vector_load(pointer)
#define VECTOR_STORE(value, pointer) vector_store(value, pointer)
#define VECTOR_ACCESS(space, element_t, type)                                                    \
    INLINE type __attribute__((overloadable)) vector_load(space const element_t *pointer)        \
    {                                                                                            \
        return *(space const unaligned_##type *)pointer;                                         \
    }                                                                                            \
    INLINE void __attribute__((overloadable)) vector_store(type value, space element_t *pointer) \
    {                                                                                            \
        *(space unaligned_##type *)pointer = value;                                              \
    }
VECTOR_ACCESS(__global, real_t, vector_t)
VECTOR_ACCESS(__local, real_t, vector_t)
VECTOR_ACCESS(__private, real_t, vector_t)
VECTOR_ACCESS(__global, int, index_vector_t)
#ifdef NARROW_STORAGE
#define NARROW_VECTOR_ACCESS(type)                                               \
    INLINE vector_t OVERLOADED vector_load(__global const type *pointer)         \
    {                                                                            \
        return VECTOR_JOIN(load_narrow, LANES)(pointer);                         \
    }                                                                            \
    INLINE void OVERLOADED vector_store(vector_t value, __global type *pointer)  \
    {                                                                            \
        VECTOR_JOIN(store_narrow, LANES)(value, pointer);                        \
    }                                                                            \
    INLINE vector_t OVERLOADED vector_load_aligned(__global const type *pointer) \
    {                                                                            \
        return VECTOR_JOIN(load_narrow_aligned, LANES)(pointer);                 \
    }
NARROW_VECTOR_ACCESS(half)
NARROW_VECTOR_ACCESS(bfloat_t)
#endif
#endif
/* The same from global memory, at a multiple of LANES values: in one instruction also where GPUs want it aligned. */
#ifdef NARROW_STORAGE
#define VECTOR_LOAD_ALIGNED(pointer) vector_load_aligned(pointer)
INLINE vector_t OVERLOADED vector_load_aligned(__global const real_t *pointer)
{
    return *(__global const vector_t *)pointer;
}
#else
#define VECTOR_LOAD_ALIGNED(pointer) (*(__global const vector_t *)(pointer))
#endif
#if LANES == 2
#define VECTOR_LANE_NUMBERS (int2)(0, 1)
#define VECTOR_SUM(value) ((value).s0 + (value).s1)
#define VECTOR_OF(LANE, a, b) ((float2)(LANE(0, a, b), LANE(1, a, b)))
#elif LANES == 4
#define VECTOR_LANE_NUMBERS (int4)(0, 1, 2, 3)
#define VECTOR_OF(LANE, a, b) ((float4)(LANE(0, a, b), LANE(1, a, b), LANE(2, a, b), LANE(3, a, b)))
#define VECTOR_SUM(value) vector_sum(value)
INLINE float vector_sum(const float4 v)
{
    return (v.s0 + v.s2) + (v.s1 + v.s3);
}
#elif LANES == 8
#define VECTOR_LANE_NUMBERS (int8)(0, 1, 2, 3, 4, 5, 6, 7)
#define VECTOR_OF(LANE, a, b)                                                                           \
    ((float8)(LANE(0, a, b), LANE(1, a, b), LANE(2, a, b), LANE(3, a, b), LANE(4, a, b), LANE(5, a, b), \
              LANE(6, a, b), LANE(7, a, b)))
#define VECTOR_SUM(value) vector_sum(value)
INLINE float vector_sum(const float8 v)
{
    const float4 half_sum = v.lo + v.hi;
    const float2 quarter_sum = half_sum.lo + half_sum.hi;
    return quarter_sum.s0 + quarter_sum.s1;
}
#elif LANES == 16
#define VECTOR_LANE_NUMBERS (int16)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
#define VECTOR_SUM(value) vector_sum(value)
INLINE float vector_sum(const float16 v)
{
    const float8 half_sum = v.lo + v.hi;
    const float4 quarter_sum = half_sum.lo + half_sum.hi;
    const float2 eighth_sum = quarter_sum.lo + quarter_sum.hi;
    return eighth_sum.s0 + eighth_sum.s1;
}
#else
#error "LANES must be 1, 2, 4, 8 or 16"
#endif
#endif

/*
 * Has the cache line at a pointer, which may lie anywhere, brought near to be read, into the second cache to be read later,
 * or near to be written. NOTE: OpenCL's function
 * for it is a call, around which Intel's compiler saves all registers; the other one is for compilers that are known to
 * take it.
 */
#ifdef TAKES_PREFETCH
#define PREFETCH(pointer) __builtin_prefetch((__global const void *)(pointer))
#define PREFETCH_TO_KEEP(pointer) __builtin_prefetch((__global const void *)(pointer), 0, 2)
#define PREFETCH_TO_WRITE(pointer) __builtin_prefetch((__global const void *)(pointer), 1)
#else
#define PREFETCH(pointer)
#define PREFETCH_TO_KEEP(pointer)
#define PREFETCH_TO_WRITE(pointer)
#endif

/* The lanes of a vector for which `keep` (an index_vector_t comparison) holds, 0 in the others: NaN vanishes too. */
#if LANES == 1
#define VECTOR_KEEP(value, keep) ((keep) ? (value) : (vector_t)(0))
#else
#define VECTOR_KEEP(value, keep) ((keep) ? (value) : (vector_t)(0))
#endif

/* LANES values STRIDE_X apart. */
#ifdef STRIDE_X
/* What they are in memory: a file that reads others defines it before. */
#ifndef STRIDED_TYPE
#define STRIDED_TYPE real_t
#endif
#if STRIDE_X == 1 || LANES == 1
#define VECTOR_LOAD_STRIDED(pointer) VECTOR_LOAD(pointer)
#elif STRIDE_X == 2
#define VECTOR_LOAD_STRIDED(pointer) \
    ((vector_t)(VECTOR_LOAD(pointer).even, VECTOR_LOAD((pointer) + LANES).even))
#else
#define VECTOR_LOAD_STRIDED(pointer) vector_load_strided(pointer)
INLINE vector_t vector_load_strided(__global const STRIDED_TYPE *pointer)
{
    real_t lanes[LANES];
    for (int lane = 0; lane < LANES; lane++) {
        lanes[lane] = READ_VALUE(pointer, lane * STRIDE_X);
    }
    return VECTOR_LOAD(lanes);
}
#endif
#endif
