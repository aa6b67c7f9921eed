/*
 * Numbers of 16 bits in memory, which nothing computes with: half, and bfloat_t, the first 16 bits of a float. For N of
 * 2, 4, 8 and 16, and without N for one number,
 *
 *     load_narrowN(pointer)           N numbers, wherever they lie
 *     load_narrow_alignedN(pointer)   the same at a multiple of N of them
 *     store_narrowN(value, pointer)   puts them there, rounded to the nearest, ties to even
 *
 * NOTE: PoCL 3.1 makes of its vstore_half8 and vstore_half16 stores that crash on memory that is not aligned as the
 * vector is; so on hosts numbers become halves in private memory.
 */
#define NARROW_FUNCTION inline __attribute__((always_inline, overloadable))
typedef ushort bfloat_t;

/* What is not a number stays so: its last bits may be all that it has. */
#define BFLOAT_BITS(float_n, uint_n, value)                                                                  \
    (select((as_##uint_n(value) + (uint_n)(0x7FFF) + (as_##uint_n(value) >> (uint_n)(16) & (uint_n)(1))),    \
            (uint_n)(0x7FC00000), isnan(value))                                                              \
     >> (uint_n)(16))

NARROW_FUNCTION float load_narrow(__global const half *pointer)
{
    return vload_half(0, pointer);
}
NARROW_FUNCTION void store_narrow(const float value, __global half *pointer)
{
    vstore_half(value, 0, pointer);
}
NARROW_FUNCTION float load_narrow(__global const bfloat_t *pointer)
{
    return as_float((uint)*pointer << 16);
}
NARROW_FUNCTION void store_narrow(const float value, __global bfloat_t *pointer)
{
    *pointer = (ushort)BFLOAT_BITS(float, uint, value);
}

#ifdef IS_HOST
#define STORE_HALVES(N, value, pointer)            \
    do {                                           \
        ushort##N rounded;                         \
        vstore_half##N(value, 0, (half *)&rounded); \
        vstore##N(rounded, 0, (__global ushort *)(pointer)); \
    } while (0)
#else
#define STORE_HALVES(N, value, pointer) vstore_half##N(value, 0, pointer)
#endif
#define NARROW_VECTORS(N)                                                                              \
    NARROW_FUNCTION float##N load_narrow##N(__global const half *pointer)                              \
    {                                                                                                  \
        return vload_half##N(0, pointer);                                                              \
    }                                                                                                  \
    NARROW_FUNCTION float##N load_narrow_aligned##N(__global const half *pointer)                      \
    {                                                                                                  \
        return vloada_half##N(0, pointer);                                                             \
    }                                                                                                  \
    NARROW_FUNCTION void store_narrow##N(const float##N value, __global half *pointer)                 \
    {                                                                                                  \
        STORE_HALVES(N, value, pointer);                                                               \
    }                                                                                                  \
    NARROW_FUNCTION float##N load_narrow##N(__global const bfloat_t *pointer)                          \
    {                                                                                                  \
        return as_float##N(convert_uint##N(vload##N(0, pointer)) << (uint##N)(16));                    \
    }                                                                                                  \
    NARROW_FUNCTION float##N load_narrow_aligned##N(__global const bfloat_t *pointer)                  \
    {                                                                                                  \
        return as_float##N(convert_uint##N(*(__global const ushort##N *)pointer) << (uint##N)(16));    \
    }                                                                                                  \
    NARROW_FUNCTION void store_narrow##N(const float##N value, __global bfloat_t *pointer)             \
    {                                                                                                  \
        vstore##N(convert_ushort##N(BFLOAT_BITS(float##N, uint##N, value)), 0, pointer);               \
    }
NARROW_VECTORS(2)
NARROW_VECTORS(4)
NARROW_VECTORS(8)
NARROW_VECTORS(16)
