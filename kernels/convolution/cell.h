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
#if HALVES
    ushort8 halves;
    vstore_half8(vload8(0, values), 0, (half *)&halves);
    const uint8 bits = convert_uint8(halves);
    return bits.even | bits.odd << 16;
#else
    return bfloat_pairs(vload8(0, values));
#endif
#else
    return as_uint4(
        (float4)(round_tf32(values[0]), round_tf32(values[1]), round_tf32(values[2]), round_tf32(values[3])));
#endif
}
