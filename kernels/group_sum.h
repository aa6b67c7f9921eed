/*
 * The sum of one value from each of the LOCAL_WIDTH work-items along the width of a group, in a fixed
 * order; every one of them gets it. All work-items of a group must call it, with room in local memory for
 * one value of each; their height is 1. LOCAL_WIDTH is a power of two. A file that sums pairs defines
 * GROUP_SUM_TYPE before.
 */
#ifndef GROUP_SUM_TYPE
#define GROUP_SUM_TYPE accumulator_t
#endif

#if LOCAL_WIDTH == 1
#define GROUP_SUM(value, group) (value)
#else
#define GROUP_SUM(value, group) group_sum(value, group)

/* NOTE: a barrier costs more than a few sums: there are two stages instead of a tree of them. */
#define GROUP_SUM_PARTS (LOCAL_WIDTH < 8 ? LOCAL_WIDTH : 8)

INLINE GROUP_SUM_TYPE group_sum(const GROUP_SUM_TYPE value, __local GROUP_SUM_TYPE *group)
{
    const int item = get_local_id(0);
    __local GROUP_SUM_TYPE *sums = group + get_local_id(2) * LOCAL_WIDTH;
    sums[item] = value;
    barrier(CLK_LOCAL_MEM_FENCE);
#if LOCAL_WIDTH > 8
    if (item < GROUP_SUM_PARTS) {
        GROUP_SUM_TYPE part = sums[item];
        for (int other = item + GROUP_SUM_PARTS; other < LOCAL_WIDTH; other += GROUP_SUM_PARTS) {
            part += sums[other];
        }
        sums[item] = part;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
#endif
    GROUP_SUM_TYPE sum = sums[0];
    for (int part = 1; part < GROUP_SUM_PARTS; part++) {
        sum += sums[part];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    return sum;
}
#endif
