/*
 * How numbers in memory are read and written: by these alone, so that a type that nothing computes with is a value of
 * the call (blobnet.memory.blob.StorageType) and no other kernel. The numbers of a role are of the type <role>_t, those that
 * kernels compute with of real_t, sums of accumulator_t.
 *
 *     READ_VALUE(pointer, index)           the number there
 *     WRITE_VALUE(pointer, index, value)   puts one there
 *     SCALE_VALUE(pointer, index, factor)  multiplies the one there
 *     VALUE_OF(pointer), SET_VALUE(value, pointer), ADD_VALUE(value, pointer), EIGHT_VALUES(pointer)
 *                                          the same at a pointer, and of eight side by side
 *
 *     EACH_STORAGE(DEFINE)                 DEFINE(type) of an OVERLOADED function, for each type that pointers may have
 *
 * The pointer of an index is a name. Where all numbers are real_t, they are what C has for it.
 *
 * Blobs of cells (blobnet.memory.blob) have CELL_UNITS units of a position where others have one number: a cell is an
 * element of such a blob, and what is read of it a vector. Kernels that take them have number_t for what is read and
 * written, whatever it is, number_index_t for as many integers, and
 *
 *     UNIT_NUMBERS(array, unit)       the numbers that an array has for the units of blob unit `unit`
 *     SET_UNIT_NUMBERS(number, array, unit) puts them there
 *     NUMBER_OF(numbers)              the number that an array of one for each unit makes
 *     PUT_NUMBER(number, numbers)     puts them there
 *     PAIR_OF, PUT_PAIR               the same of two numbers, a number_pair_t
 *     EACH_UNIT(number, WHAT)         does something with each of them, unit_number of unit `unit` of the cell
 */
#ifndef CELL_UNITS
#define CELL_UNITS 1
#endif
#if CELL_UNITS == 1
typedef real_t number_t;
typedef float2 number_pair_t;
typedef int number_index_t;
#define NUMBER_OF(numbers) (numbers)[0]
#define PUT_NUMBER(number, numbers) (*(numbers) = (number))
#define UNIT_NUMBERS(array, unit) VALUE_OF((array) + (unit))
#define SET_UNIT_NUMBERS(number, array, unit) ((array)[unit] = (number))
#define EACH_UNIT(number, WHAT)            \
    {                                      \
        const int unit = 0;                \
        const real_t unit_number = number; \
        WHAT;                              \
    }
#else
#if CELL_UNITS == 8
typedef float8 number_t;
typedef float16 number_pair_t;
typedef int8 number_index_t;
#define NUMBER_OF(numbers) vload8(0, numbers)
#define PAIR_OF(numbers) vload16(0, numbers)
#define PUT_PAIR(pair, numbers) vstore16(pair, 0, numbers)
#define SET_UNIT_NUMBERS(number, array, unit) vstore8(number, unit, array)
#else
typedef float4 number_t;
typedef float8 number_pair_t;
typedef int4 number_index_t;
#define NUMBER_OF(numbers) vload4(0, numbers)
#define PAIR_OF(numbers) vload8(0, numbers)
#define PUT_PAIR(pair, numbers) vstore8(pair, 0, numbers)
#define SET_UNIT_NUMBERS(number, array, unit) vstore4(number, unit, array)
#endif
#define PUT_NUMBER(number, numbers) SET_UNIT_NUMBERS(number, numbers, 0)
#define UNIT_NUMBERS(array, unit) unit_numbers((array) + (unit) * CELL_UNITS)
#define EACH_UNIT(number, WHAT)                                \
    {                                                          \
        real_t numbers_of_units[CELL_UNITS];                   \
        PUT_NUMBER(number, numbers_of_units);                  \
        for (int unit = 0; unit < CELL_UNITS; unit++) {        \
            const real_t unit_number = numbers_of_units[unit]; \
            WHAT;                                              \
        }                                                      \
    }
#endif
#ifdef NARROW_STORAGE
#include "narrow.h"
/* A pointer to numbers of one type, where there are others, is a mistake of ours that no driver may pass over. */
#ifdef __clang__
#pragma clang diagnostic error "-Wincompatible-pointer-types"
#endif
#define OVERLOADED __attribute__((overloadable))
#define EACH_STORAGE(DEFINE) \
    DEFINE(real_t)           \
    DEFINE(half)             \
    DEFINE(bfloat_t)
#define STORAGE_ACCESS(space, type)                                   \
    INLINE type OVERLOADED load_value(space const type *pointer)      \
    {                                                                 \
        return *pointer;                                              \
    }                                                                 \
    INLINE void OVERLOADED set_value(type value, space type *pointer) \
    {                                                                 \
        *pointer = value;                                             \
    }
STORAGE_ACCESS(__global, real_t)
STORAGE_ACCESS(__local, real_t)
STORAGE_ACCESS(__private, real_t)
STORAGE_ACCESS(__global, int)
INLINE float8 OVERLOADED load_eight(__global const real_t *pointer)
{
    return vload8(0, pointer);
}
#define NARROW_ACCESS(type)                                                \
    INLINE real_t OVERLOADED load_value(__global const type *pointer)      \
    {                                                                      \
        return load_narrow(pointer);                                       \
    }                                                                      \
    INLINE void OVERLOADED set_value(real_t value, __global type *pointer) \
    {                                                                      \
        store_narrow(value, pointer);                                      \
    }                                                                      \
    INLINE float8 OVERLOADED load_eight(__global const type *pointer)      \
    {                                                                      \
        return load_narrow8(pointer);                                      \
    }
NARROW_ACCESS(half)
NARROW_ACCESS(bfloat_t)
#if CELL_UNITS == 8
INLINE number_t OVERLOADED load_value(__global const bfloat_cell_t *pointer)
{
    const uint4 pairs = *pointer;
    const float4 low = as_float4(pairs << 16);
    const float4 high = as_float4(pairs & 0xFFFF0000u);
    return (float8)(low.s0, high.s0, low.s1, high.s1, low.s2, high.s2, low.s3, high.s3);
}
INLINE void OVERLOADED set_value(const number_t value, __global bfloat_cell_t *pointer)
{
    *pointer = bfloat_pairs(value);
}
INLINE number_t OVERLOADED load_value(__global const half_cell_t *pointer)
{
    const half_cell_t halves = *pointer;
    return vload_half8(0, (const half *)&halves);
}
INLINE void OVERLOADED set_value(const number_t value, __global half_cell_t *pointer)
{
    half_cell_t halves;
    vstore_half8(value, 0, (half *)&halves);
    *pointer = halves;
}
#define UNITS_ACCESS(type)                                                \
    INLINE number_t OVERLOADED unit_numbers(__global const type *pointer) \
    {                                                                     \
        return load_narrow8(pointer);                                     \
    }
UNITS_ACCESS(half)
UNITS_ACCESS(bfloat_t)
#elif CELL_UNITS == 4
INLINE number_t OVERLOADED load_value(__global const tf32_cell_t *pointer)
{
    return as_float4(*pointer);
}
INLINE void OVERLOADED set_value(const number_t value, __global tf32_cell_t *pointer)
{
    const float4 rounded =
        (float4)(round_tf32(value.s0), round_tf32(value.s1), round_tf32(value.s2), round_tf32(value.s3));
    *pointer = as_ulong2(rounded);
}
#endif
#if CELL_UNITS > 1
/* NOTE: without alignment NVIDIA's compiler loads them one by one. */
INLINE number_t OVERLOADED unit_numbers(__global const real_t *pointer)
{
#ifdef ALIGNED_ARRAYS
    __global const float4 *fours = (__global const float4 *)pointer;
#if CELL_UNITS == 8
    return (float8)(fours[0], fours[1]);
#else
    return fours[0];
#endif
#else
    return NUMBER_OF(pointer);
#endif
}
STORAGE_ACCESS(__global, number_t)
STORAGE_ACCESS(__private, number_t)
STORAGE_ACCESS(__global, number_index_t)
#endif
#define EIGHT_VALUES(pointer) load_eight(pointer)
#define VALUE_OF(pointer) load_value(pointer)
#define SET_VALUE(value, pointer) set_value(value, pointer)
#define ADD_VALUE(value, pointer) set_value(load_value(pointer) + (value), pointer)
#define READ_VALUE(pointer, index) load_value((pointer) + (index))
#define WRITE_VALUE(pointer, index, value) set_value(value, (pointer) + (index))
#define SCALE_VALUE(pointer, index, factor) WRITE_VALUE(pointer, index, READ_VALUE(pointer, index) * (factor))
#else
#define OVERLOADED
#define EACH_STORAGE(DEFINE) DEFINE(real_t)
#define VALUE_OF(pointer) (*(pointer))
#define SET_VALUE(value, pointer) (*(pointer) = (value))
#define ADD_VALUE(value, pointer) (*(pointer) += (value))
#define READ_VALUE(pointer, index) pointer[index]
#define WRITE_VALUE(pointer, index, value) pointer[index] = value
#define SCALE_VALUE(pointer, index, factor) pointer[index] *= factor
#define EIGHT_VALUES(pointer) vload8(0, pointer)
#endif
