/*
 * Weights as the left factors of products of fragments (fragment.h), rounded to bfloat16, in the order in which
 * convolution/fragment_product.h reads them: packed[group][block of units][step of the depth][tap][unit][2 * STEP_PAIRS of the
 * depth], 0 where there is no such unit of the result or of the source.
 *
 * Arrays:
 *   WEIGHT read   OIHW, I counted within a group
 *   PACKED write
 * Macros:
 *   UNITS         units of the result in a group
 *   DEPTH         those of the source
 *   UNIT_STRIDE   from the weights of a unit to those of the next
 *   DEPTH_STRIDE
 *   GROUP_STRIDE  weights of a group
 *   TAPS
 *   DEPTH_STEPS
 *   STEP_PAIRS         of a step
 *   UNIT_TILES    fragments of units in a block
 *   BLOCKS        of a group
 * Moves:
 *   packing weights
 * Global:
 *   width   units of all blocks
 *   height  groups
 */
#include "blob.h"
#ifndef NARROW_STORAGE
#include "narrow.h"
#endif
#define BLOCK_UNITS (UNIT_TILES * 16)

__kernel void convolution_pack_weight_fragments(READ_ARRAY(weight_t, weight), WRITE_ARRAY(real_t, packed))
{
    const int unit = get_global_id(0);
    const int group = get_global_id(1);
    __global const weight_t *from = ARRAY(weight) + (size_t)group * GROUP_STRIDE + (size_t)unit * UNIT_STRIDE;
    __global ushort *to = (__global ushort *)ARRAY(packed)
                          + ((size_t)(group * BLOCKS + unit / BLOCK_UNITS) * DEPTH_STEPS * TAPS * BLOCK_UNITS
                             + unit % BLOCK_UNITS)
                                * (2 * STEP_PAIRS);
    for (int step = 0; step < DEPTH_STEPS; step++) {
        for (int i = 0; i < 2 * STEP_PAIRS; i++) {
            const int depth = step * 2 * STEP_PAIRS + i;
            for (int tap = 0; tap < TAPS; tap++) {
                const bool is_there = unit < UNITS && depth < DEPTH;
                const real_t value = is_there ? READ_VALUE(from, depth * DEPTH_STRIDE + tap) : 0;
                to[(size_t)(step * TAPS + tap) * BLOCK_UNITS * (2 * STEP_PAIRS) + i] =
                    BFLOAT_BITS(float, uint, value);
            }
        }
    }
}
