/*
 * Warps: WARP_ITEMS neighbouring work-items along the width of a group, which is a multiple of it. On NVIDIA GPUs they run in
 * step, wait for each other and hand values around without the rest of the group, as inline PTX says; elsewhere by
 * barriers of the whole group and through local memory, so that every device runs what is written for warps.
 */
#define WARP_ITEMS 32
#define WARP ((int)get_local_id(0) / WARP_ITEMS)
#define LANE ((int)get_local_id(0) % WARP_ITEMS)

#ifdef __NV_CL_C_VERSION

#define WARP_BARRIER() __asm__ volatile("bar.warp.sync 0xffffffff;" : : : "memory")

/* The value of the lane whose number differs in the bit `mask`; `exchange` has room for a value of each work-item. */
INLINE real_t exchange_lanes(const real_t value, const int mask, __local real_t *exchange)
{
    real_t other;
    __asm__ volatile("shfl.sync.bfly.b32 %0, %1, %2, 0x1f, 0xffffffff;"
                     : "=f"(other)
                     : "f"(value), "r"(mask));
    return other;
}

#else

#define WARP_BARRIER() barrier(CLK_LOCAL_MEM_FENCE)

INLINE real_t exchange_lanes(const real_t value, const int mask, __local real_t *exchange)
{
    const int item = get_local_id(0);
    barrier(CLK_LOCAL_MEM_FENCE);
    exchange[item] = value;
    barrier(CLK_LOCAL_MEM_FENCE);
    return exchange[item ^ mask];
}

#endif

/*
 * The sums over the lanes of a warp of `count` values each, in a fixed order: a work-item gets that of value number
 * WARP_SUM_NUMBER(count). `count` is a power of two, at most WARP_ITEMS. Each exchange halves the values that a lane still
 * sums, which are lost.
 */
#define WARP_SUM_NUMBER(count) (LANE / (WARP_ITEMS / (count)))
INLINE real_t warp_sum(real_t *values, const int count, __local real_t *exchange)
{
    int left = count;
#pragma unroll
    for (int mask = WARP_ITEMS / 2; mask > 0; mask /= 2) {
        if (left == 1) {
            values[0] += exchange_lanes(values[0], mask, exchange);
        } else {
            const bool is_upper = (LANE & mask) != 0;
            left /= 2;
#pragma unroll
            for (int i = 0; i < left; i++) {
                const real_t kept = is_upper ? values[i + left] : values[i];
                values[i] = kept + exchange_lanes(is_upper ? values[i] : values[i + left], mask, exchange);
            }
        }
    }
    return values[0];
}
