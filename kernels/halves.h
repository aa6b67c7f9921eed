/*
 * STORE_HALVES(N, value, pointer) puts a vector of N numbers there, rounded to halves; the pointer may be to any half.
 * NOTE: PoCL 3.1 makes of its vstore_half8 and vstore_half16 stores that crash on memory that is not aligned as the
 * vector is; so on hosts numbers become halves in private memory.
 */
#ifdef IS_HOST
#define STORE_HALVES(N, value, pointer) store_halves(value, pointer)
#define STORE_HALVES_OF(float_vector, ushort_vector, ROUND, STORE)                                  \
    inline __attribute__((always_inline, overloadable)) void store_halves(const float_vector value, \
                                                                          __global half *pointer)   \
    {                                                                                               \
        ushort_vector rounded;                                                                      \
        ROUND(value, 0, (half *)&rounded);                                                          \
        STORE(rounded, 0, (__global ushort *)pointer);                                              \
    }
STORE_HALVES_OF(float2, ushort2, vstore_half2, vstore2)
STORE_HALVES_OF(float4, ushort4, vstore_half4, vstore4)
STORE_HALVES_OF(float8, ushort8, vstore_half8, vstore8)
STORE_HALVES_OF(float16, ushort16, vstore_half16, vstore16)
#else
#define HALVES_JOIN(name, count) name##count
#define HALVES_OF(name, count) HALVES_JOIN(name, count)
#define STORE_HALVES(N, value, pointer) HALVES_OF(vstore_half, N)(value, 0, pointer)
#endif
