/*
 * Warps: WARP_ITEMS work-items side by side; a group has whole warps, along its width. On NVIDIA GPUs they wait for one
 * another, and hand values around, without the rest of the group (inline PTX); elsewhere that takes barriers of the
 * whole group and local memory, so that every device runs what is written for warps.
 */
#define WARP_ITEMS 32
#define WARP ((int)get_local_id(0) / WARP_ITEMS)
#define LANE ((int)get_local_id(0) % WARP_ITEMS)

/*
 * warp_sum: sums over the lanes of a warp of `count` values each, in a fixed order; a work-item gets that of value number
 * WARP_SUM_NUMBER(count). `count` is a power of two, at most WARP_ITEMS. `room` has WARP_SUM_ROOM(count) values for each
 * work-item of the group; `values` are lost.
 */
#define WARP_SUM_NUMBER(count) (LANE / (WARP_ITEMS / (count)))

#ifdef __NV_CL_C_VERSION

#define WARP_SUM_ROOM(count) 0
#define WARP_BARRIER() __asm__ volatile("bar.warp.sync 0xffffffff;" : : : "memory")

/* The value of the lane whose number differs in the bit `mask`. */
INLINE real_t exchange_lanes(const real_t value, const int mask)
{
    real_t other;
    __asm__ volatile("shfl.sync.bfly.b32 %0, %1, %2, 0x1f, 0xffffffff;"
                     : "=f"(other)
                     : "f"(value), "r"(mask));
    return other;
}

/* NOTE: each exchange halves the values that a lane still sums. */
INLINE real_t warp_sum(real_t *values, const int count, __local real_t *room)
{
    int left = count;
#pragma unroll
    for (int mask = WARP_ITEMS / 2; mask > 0; mask /= 2) {
        if (left == 1) {
            values[0] += exchange_lanes(values[0], mask);
        } else {
            const bool is_upper = (LANE & mask) != 0;
            left /= 2;
#pragma unroll
            for (int i = 0; i < left; i++) {
                /* NOTE: of array elements NVIDIA's compiler makes branches. */
                const real_t low = values[i];
                const real_t high = values[i + left];
                values[i] = (is_upper ? high : low) + exchange_lanes(is_upper ? low : high, mask);
            }
        }
    }
    return values[0];
}

#else

#define WARP_SUM_ROOM(count) (count)
#define WARP_BARRIER() barrier(CLK_LOCAL_MEM_FENCE)

INLINE real_t warp_sum(real_t *values, const int count, __local real_t *room)
{
    __local real_t *own = room + WARP * WARP_ITEMS * count;
    for (int i = 0; i < count; i++) {
        own[i * WARP_ITEMS + LANE] = values[i];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    real_t sum = 0;
    for (int lane = 0; lane < WARP_ITEMS; lane++) {
        sum += own[WARP_SUM_NUMBER(count) * WARP_ITEMS + lane];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    return sum;
}

#endif
