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
 */
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
