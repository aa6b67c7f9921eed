/*
 * Rounding to tf32: to the nearest float with a sign, 8 bits of exponent and 10 of the fraction, which is what tensor cores
 * read of a float (tensor_core.h, warp_group.h). Of numbers in the middle it takes the one further from 0.
 *
 *     TF32_BITS(float_n, uint_n, value)  the bits of rounded numbers; what is not finite stays so
 *     round_tf32(value)                  a rounded number
 */
#ifndef TF32_BITS
#define TF32_BITS(float_n, uint_n, value) \
    select(as_##uint_n(value), (as_##uint_n(value) + (uint_n)(0x1000)) & (uint_n)(~0x1FFFu), isfinite(value))

inline __attribute__((always_inline)) float round_tf32(const float value)
{
#ifdef __NV_CL_C_VERSION
    uint rounded;
    __asm__("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(value));
    return as_float(rounded);
#else
    return as_float(TF32_BITS(float, uint, value));
#endif
}
#endif
