/*
 * The memory model of every kernel: types, the index equation, kernel parameters. See docs/memory_layout.md.
 */

typedef float real_t;
typedef float accumulator_t;
typedef float2 accumulator_pair_t;

/* NOTE: PoCL calls large functions, with the arrays that they take in memory, if it is only asked to inline them. */
#define INLINE inline __attribute__((always_inline))

#include "storage.h"

/*
 * Before a loop whose length is an argument of an INLINE function. NOTE: asked to unroll it, AMD's compiler does so
 * before it knows the length, and what the loop indexes stays in memory; unasked, it unrolls the inlined loop wholly.
 */
#ifdef __AMDGCN__
#define UNROLL_ARGUMENT
#else
#define UNROLL_ARGUMENT _Pragma("unroll")
#endif

/*
 * get_global_id(dimension) where groups have one work-item along it. NOTE: AMD's compiler takes that for another number in
 * each lane, and computes and compares in all of them what follows from it.
 */
#ifdef __AMDGCN__
#define GLOBAL_ID_OF_GROUP(dimension) get_group_id(dimension)
#else
#define GLOBAL_ID_OF_GROUP(dimension) get_global_id(dimension)
#endif

/*
 * index(n, z, y, x) of docs/memory_layout.md; its twin in Python is BlobLayout.index. z counts planes: it is the unit,
 * or, where a unit has UNIT_DEPTH planes, plane z % UNIT_DEPTH of unit z / UNIT_DEPTH.
 */
#define BLOB_INDEX(ROLE, n, z, y, x)                                                              \
    ((x) + ROLE##_UNIT_MEMORY_WIDTH_OFFSET                                                        \
     + ROLE##_UNIT_MEMORY_WIDTH * (ROLE##_UNIT_MEMORY_HEIGHT_OFFSET + (y)) + PLANE_INDEX(ROLE, z) \
     + (size_t)ROLE##_MEMORY_ELEMENTS * (n))

/*
 * number / ROLE_SIZE, for a SIZE of those in blobnet/memory/blob.py, and what is left: no division where sizes are
 * arguments (there are the multipliers). Numbers are not negative.
 */
#ifdef SIZES_AS_ARGUMENTS
#define QUOTIENT(number, ROLE, SIZE) \
    ((int)(mul_hi(2u * (uint)(number), (uint)ROLE##_##SIZE##_MULTIPLIER) >> ROLE##_##SIZE##_SHIFT))
#define REMAINDER(number, ROLE, SIZE) ((number) - QUOTIENT(number, ROLE, SIZE) * ROLE##_##SIZE)
#else
#define QUOTIENT(number, ROLE, SIZE) ((number) / ROLE##_##SIZE)
#define REMAINDER(number, ROLE, SIZE) ((number) % ROLE##_##SIZE)
#endif

/*
 * What depends on planes within units, which the programs of most calls know nothing of (BlobLayout.is_plain):
 *
 *     PLANE_INDEX(ROLE, z)                   where plane z of a sample begins
 *     PLANE_OFFSET(ROLE, z)                  how far that is after plane 0; z is a name or a quotient
 *     UNIT_OF(ROLE, z)                       its unit
 *     UNIT_ROWS(ROLE)                        rows of all planes of a unit
 *     UNIT_ROW_INDEX(ROLE, n, unit, row, x)  BLOB_INDEX in one of them
 */
#ifdef GENERAL_BLOBS
#define PLANE_INDEX(ROLE, z)                                                            \
    (ROLE##_UNIT_MEMORY_ELEMENTS * (ROLE##_UNIT_OFFSET + QUOTIENT(z, ROLE, UNIT_DEPTH)) \
     + ROLE##_PLANE_MEMORY_ELEMENTS * (ROLE##_UNIT_MEMORY_DEPTH_OFFSET + REMAINDER(z, ROLE, UNIT_DEPTH)))
#define PLANE_OFFSET(ROLE, z)                                    \
    (QUOTIENT(z, ROLE, UNIT_DEPTH) * ROLE##_UNIT_MEMORY_ELEMENTS \
     + REMAINDER(z, ROLE, UNIT_DEPTH) * ROLE##_PLANE_MEMORY_ELEMENTS)
#define UNIT_OF(ROLE, z) QUOTIENT(z, ROLE, UNIT_DEPTH)
#define UNIT_ROWS(ROLE) (ROLE##_UNIT_DEPTH * ROLE##_UNIT_HEIGHT)
#define UNIT_ROW_INDEX(ROLE, n, unit, row, x)                                          \
    BLOB_INDEX(ROLE, n, (unit) * ROLE##_UNIT_DEPTH + QUOTIENT(row, ROLE, UNIT_HEIGHT), \
               REMAINDER(row, ROLE, UNIT_HEIGHT), x)
#else
/* clang-format off */
#define PLANE_INDEX(ROLE, z) ROLE##_UNIT_MEMORY_ELEMENTS * (ROLE##_UNIT_OFFSET + (z))
#define PLANE_OFFSET(ROLE, z) z * ROLE##_UNIT_MEMORY_ELEMENTS
/* clang-format on */
#define UNIT_OF(ROLE, z) z
#define UNIT_ROWS(ROLE) ROLE##_UNIT_HEIGHT
#define UNIT_ROW_INDEX(ROLE, n, unit, row, x) BLOB_INDEX(ROLE, n, unit, row, x)
#endif

/* The values of a sample; and how far after the first one number `element` lies, in the order (plane, y, x). */
#define BLOB_ELEMENTS(ROLE) (ROLE##_UNIT_COUNT * ROLE##_UNIT_ELEMENTS)
#define BLOB_ELEMENT_OFFSET(ROLE, element)                                                             \
    (PLANE_OFFSET(ROLE, QUOTIENT(element, ROLE, PLANE_ELEMENTS))                                       \
     + QUOTIENT(REMAINDER(element, ROLE, PLANE_ELEMENTS), ROLE, UNIT_WIDTH) * ROLE##_UNIT_MEMORY_WIDTH \
     + REMAINDER(element, ROLE, UNIT_WIDTH))

/*
 * Kernel parameters. A blob is its buffer, the unit where it starts there, and its sizes where the header says "Blobs,
 * sizes as arguments"; an array is its buffer and its first element. The host binds them in the order of the header.
 * NOTE: elementwise kernels may run in place, so that two of their parameters are the same memory: they take MUTABLE
 * and SHARED parameters, which promise the compiler nothing. All others use the restrict forms.
 */
#ifdef SIZES_AS_ARGUMENTS
#define BLOB_PLACE(name) const int name##_unit_offset, const geometry_t name##_geometry
#else
#define BLOB_PLACE(name) const int name##_unit_offset
#endif
#define READ_BLOB(name) __global const name##_t *restrict name, BLOB_PLACE(name)
#define WRITE_BLOB(name) __global name##_t *restrict name, BLOB_PLACE(name)
#define SHARED_BLOB(name) __global const name##_t *name, BLOB_PLACE(name)
#define MUTABLE_BLOB(name) __global name##_t *name, BLOB_PLACE(name)
#define READ_ARRAY(type, name) __global const type *restrict name##_array, const int name##_offset
#define WRITE_ARRAY(type, name) __global type *restrict name##_array, const int name##_offset
#define ARRAY(name) (name##_array + name##_offset)

/* NOTE: compilers contract this to one instruction where the device has it; PoCL 3.0 calls a function for mad(). */
#define MULTIPLY_ADD(a, b, c) ((a) * (b) + (c))
