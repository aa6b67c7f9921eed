/*
 * Who takes what of positions that have a number for each class: a work-item takes positions with all their classes, or
 * where there are many classes and few positions, all work-items of a group share the classes of a position. Then they
 * come by the same positions, and whatever is a sum over classes, all of them have.
 *
 * Macros:
 *   CLASS_ITEMS  work-items of a position: 1 or LOCAL_WIDTH
 *   LOCAL_WIDTH  a power of two
 */
#include "group_sum.h"

#define FIRST_CLASS (CLASS_ITEMS == 1 ? 0 : (int)get_local_id(0))
#define POSITION_ITEM (CLASS_ITEMS == 1 ? (int)get_local_id(0) : 0)
#define EACH_CLASS(z) for (int z = FIRST_CLASS; z < OUTPUT_UNIT_COUNT; z += CLASS_ITEMS)

/* From a work-item's own part: the sum over classes, the largest of them, and the sum over the positions of a group. */
#if CLASS_ITEMS == 1
#define CLASS_SUM(value, group) (value)
#define CLASS_MAXIMUM(value, group) (value)
#define POSITION_SUM(value, group) GROUP_SUM(value, group)
#else
#define CLASS_SUM(value, group) GROUP_SUM(value, group)
#define CLASS_MAXIMUM(value, group) group_maximum(value, group)
#define POSITION_SUM(value, group) (value)

INLINE accumulator_t group_maximum(accumulator_t value, __local accumulator_t *group)
{
    group[get_local_id(0)] = value;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int item = 0; item < LOCAL_WIDTH; item++) {
        value = fmax(value, group[item]);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    return value;
}
#endif
