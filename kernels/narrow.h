/*
 * Numbers in memory that nothing computes with: half, and bfloat_t, the first 16 bits of a float, have 16 bits; tf32_t are
 * floats rounded to tf32 (tf32.h). For N of 2, 4, 8 and 16, and without N for one number,
 *
 *     load_narrowN(pointer)           N numbers, wherever they lie
 *     load_narrow_alignedN(pointer)   the same at a multiple of N of them
 *     store_narrowN(value, pointer)   puts them there, rounded to the nearest, ties of 16 bits to even
 *     round_narrowN(value, pointer)   what they would be there
 *
 * NOTE: PoCL 3.1 makes of its vstore_half8 and vstore_half16 stores that crash on memory that is not aligned as the
 * vector is; so on hosts numbers become halves in private memory.
 */
#define NARROW_FUNCTION inline __attribute__((always_inline, overloadable))
#include "tf32.h"
typedef ushort bfloat_t;
typedef uint tf32_t;
/*
 * Eight bfloat_t side by side, and eight halves: the units of a cell. NOTE: NVIDIA's compiler loads and stores vectors of 16
 * bits in two parts, these at once.
 */
typedef uint4 bfloat_cell_t;
typedef int4 half_cell_t;
/* Four of tf32. */
typedef ulong2 tf32_cell_t;

/* What is not a number stays so: its last bits may be all that it has. */
#define BFLOAT_BITS(float_n, uint_n, value)                                                               \
    (select((as_##uint_n(value) + (uint_n)(0x7FFF) + (as_##uint_n(value) >> (uint_n)(16) & (uint_n)(1))), \
            (uint_n)(0x7FC00000), isnan(value))                                                           \
     >> (uint_n)(16))

/* The units of a cell as pairs: the first of each pair in its lower half. */
#ifdef __NV_CL_C_VERSION
NARROW_FUNCTION uint bfloat_pair(const float low, const float high)
{
    uint pair;
    __asm__("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
NARROW_FUNCTION uint4 bfloat_pairs(const float8 value)
{
    return (uint4)(bfloat_pair(value.s0, value.s1), bfloat_pair(value.s2, value.s3),
                   bfloat_pair(value.s4, value.s5), bfloat_pair(value.s6, value.s7));
}
#else
NARROW_FUNCTION uint4 bfloat_pairs(const float8 value)
{
    const uint8 bits = BFLOAT_BITS(float8, uint8, value);
    return bits.even | bits.odd << 16;
}
#endif

NARROW_FUNCTION float load_narrow(__global const half *pointer)
{
    return vload_half(0, pointer);
}
NARROW_FUNCTION void store_narrow(const float value, __global half *pointer)
{
    vstore_half(value, 0, pointer);
}
NARROW_FUNCTION float round_narrow(const float value, __global const half *pointer)
{
    ushort rounded;
    vstore_half(value, 0, (half *)&rounded);
    return vload_half(0, (const half *)&rounded);
}
NARROW_FUNCTION float load_narrow(__global const bfloat_t *pointer)
{
    return as_float((uint)*pointer << 16);
}
NARROW_FUNCTION void store_narrow(const float value, __global bfloat_t *pointer)
{
    *pointer = (ushort)BFLOAT_BITS(float, uint, value);
}
NARROW_FUNCTION float round_narrow(const float value, __global const bfloat_t *pointer)
{
    return as_float(BFLOAT_BITS(float, uint, value) << 16);
}
NARROW_FUNCTION float load_narrow(__global const tf32_t *pointer)
{
    return as_float(*pointer);
}
NARROW_FUNCTION void store_narrow(const float value, __global tf32_t *pointer)
{
    *pointer = as_uint(round_tf32(value));
}
NARROW_FUNCTION float round_narrow(const float value, __global const tf32_t *pointer)
{
    return round_tf32(value);
}

/*
 * NOTE: names of built-in functions are spelled out, not pasted: blobnet/device/builtins.py declares those that it sees.
 */
#ifdef IS_HOST
#define PUT_HALVES(ushort_n, STORE_HALVES, STORE, value, pointer) \
    ushort_n rounded;                                             \
    STORE_HALVES(value, 0, (half *)&rounded);                     \
    STORE(rounded, 0, (__global ushort *)(pointer))
#else
#define PUT_HALVES(ushort_n, STORE_HALVES, STORE, value, pointer) STORE_HALVES(value, 0, pointer)
#endif
#define NARROW_VECTORS(N, LOAD_HALVES, LOAD_ALIGNED_HALVES, STORE_HALVES, LOAD, STORE, TO_UINT, TO_USHORT) \
    NARROW_FUNCTION float##N load_narrow##N(__global const half *pointer)                                  \
    {                                                                                                      \
        return LOAD_HALVES(0, pointer);                                                                    \
    }                                                                                                      \
    NARROW_FUNCTION float##N load_narrow_aligned##N(__global const half *pointer)                          \
    {                                                                                                      \
        return LOAD_ALIGNED_HALVES(0, pointer);                                                            \
    }                                                                                                      \
    NARROW_FUNCTION void store_narrow##N(const float##N value, __global half *pointer)                     \
    {                                                                                                      \
        PUT_HALVES(ushort##N, STORE_HALVES, STORE, value, pointer);                                        \
    }                                                                                                      \
    NARROW_FUNCTION float##N load_narrow##N(__global const bfloat_t *pointer)                              \
    {                                                                                                      \
        return as_float##N(TO_UINT(LOAD(0, pointer)) << (uint##N)(16));                                    \
    }                                                                                                      \
    NARROW_FUNCTION float##N load_narrow_aligned##N(__global const bfloat_t *pointer)                      \
    {                                                                                                      \
        return as_float##N(TO_UINT(*(__global const ushort##N *)pointer) << (uint##N)(16));                \
    }                                                                                                      \
    NARROW_FUNCTION void store_narrow##N(const float##N value, __global bfloat_t *pointer)                 \
    {                                                                                                      \
        STORE(TO_USHORT(BFLOAT_BITS(float##N, uint##N, value)), 0, pointer);                               \
    }                                                                                                      \
    NARROW_FUNCTION float##N round_narrow##N(const float##N value, __global const bfloat_t *pointer)       \
    {                                                                                                      \
        return as_float##N(BFLOAT_BITS(float##N, uint##N, value) << (uint##N)(16));                        \
    }                                                                                                      \
    NARROW_FUNCTION float##N load_narrow##N(__global const tf32_t *pointer)                                \
    {                                                                                                      \
        return as_float##N(LOAD(0, pointer));                                                              \
    }                                                                                                      \
    NARROW_FUNCTION float##N load_narrow_aligned##N(__global const tf32_t *pointer)                        \
    {                                                                                                      \
        return as_float##N(*(__global const uint##N *)pointer);                                            \
    }                                                                                                      \
    NARROW_FUNCTION void store_narrow##N(const float##N value, __global tf32_t *pointer)                   \
    {                                                                                                      \
        STORE(TF32_BITS(float##N, uint##N, value), 0, pointer);                                            \
    }                                                                                                      \
    NARROW_FUNCTION float##N round_narrow##N(const float##N value, __global const tf32_t *pointer)         \
    {                                                                                                      \
        return as_float##N(TF32_BITS(float##N, uint##N, value));                                           \
    }
NARROW_VECTORS(2, vload_half2, vloada_half2, vstore_half2, vload2, vstore2, convert_uint2, convert_ushort2)
NARROW_VECTORS(4, vload_half4, vloada_half4, vstore_half4, vload4, vstore4, convert_uint4, convert_ushort4)
NARROW_VECTORS(8, vload_half8, vloada_half8, vstore_half8, vload8, vstore8, convert_uint8, convert_ushort8)
NARROW_VECTORS(16, vload_half16, vloada_half16, vstore_half16, vload16, vstore16, convert_uint16,
               convert_ushort16)
