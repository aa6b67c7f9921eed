/*
 * A cell of values (warp_group.h): 16 bytes, CELL numbers of the type of products, rounded to the nearest.
 */
#ifndef NARROW_STORAGE
#include "narrow.h"
#endif
#include "tensor_core.h"
typedef uint4 cell_t;

INLINE cell_t cell_of(const float values[CELL])
{
#if CELL == 8
    const uint8 bits = BFLOAT_BITS(float8, uint8, vload8(0, values));
    return bits.even | bits.odd << 16;
#else
    return as_uint4(
        (float4)(round_tf32(values[0]), round_tf32(values[1]), round_tf32(values[2]), round_tf32(values[3])));
#endif
}
