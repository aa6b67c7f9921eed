/*
 * The walk of a work-group through the planes of a unit, LOCAL_UNITS at a time, each by LOCAL_WIDTH work-items: the group's
 * number is the unit's, which has one plane a sample. UNIT_SUM is the sum of one value from each work-item, in a fixed
 * order; every one of them gets it. All must call it, once, with room in local memory for one value of each.
 */
#include "group_sum.h"

#define UNIT ((int)get_group_id(2))
#define FOR_SAMPLES for (int n = get_local_id(2); n < count; n += LOCAL_UNITS)
#if LOCAL_WIDTH == 1
#define FOR_UNIT_CELLS FOR_CELLS
#define UNIT_SUM(value, group) (value)
#else
#define FOR_UNIT_CELLS for (int first = get_local_id(0); first < PLANE_CELLS; first += CELLS * LOCAL_WIDTH)
#define UNIT_SUM(value, group) sum_of_rows(GROUP_SUM(value, group), group)

INLINE GROUP_SUM_TYPE sum_of_rows(const GROUP_SUM_TYPE row, __local GROUP_SUM_TYPE *group)
{
    if (get_local_id(0) == 0) {
        group[get_local_id(2)] = row;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    GROUP_SUM_TYPE sum = group[0];
    for (int other = 1; other < LOCAL_UNITS; other++) {
        sum += group[other];
    }
    return sum;
}
#endif
