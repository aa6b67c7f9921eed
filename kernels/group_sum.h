/*
 * The sum of one value from each of the LOCAL_WIDTH work-items along the width of a group, in a fixed
 * order; every one of them gets it. All work-items of a group must call it, with room in local memory for
 * one value of each; their height is 1. LOCAL_WIDTH is a power of two.
 */
#if LOCAL_WIDTH == 1
#define GROUP_SUM(value, group) (value)
#else
#define GROUP_SUM(value, group) group_sum(value, group)

INLINE accumulator_t group_sum(const accumulator_t value, __local accumulator_t *group)
{
    const int item = get_local_id(0);
    __local accumulator_t *sums = group + get_local_id(2) * LOCAL_WIDTH;
    sums[item] = value;
    for (int distance = LOCAL_WIDTH / 2; distance > 0; distance /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (item < distance) {
            sums[item] += sums[item + distance];
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    const accumulator_t sum = sums[0];
    barrier(CLK_LOCAL_MEM_FENCE);
    return sum;
}
#endif
