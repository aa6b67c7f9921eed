/*
 * The end of convolutions as dot products: a work-group makes BLOCK_UNITS output units at all positions of a sample, and
 * each of its LOCAL_WIDTH work-items has added up a part of every one of these VALUES sums.
 * Include it after convolution/epilogue.h.
 */
#include "warp.h"

#define POSITIONS (OUTPUT_UNIT_HEIGHT * OUTPUT_UNIT_WIDTH)
#define BLOCKS ((GROUP_OUTPUT_UNITS + BLOCK_UNITS - 1) / BLOCK_UNITS)
#define VALUES (BLOCK_UNITS * POSITIONS)
/* With what warp_sum wants besides. */
#define SUMS (VALUES > 16 ? 32 : VALUES > 8 ? 16 : VALUES > 4 ? 8 : VALUES > 2 ? 4 : VALUES)
#define WARPS (LOCAL_WIDTH / WARP_ITEMS)
#if LOCAL_WIDTH % WARP_ITEMS || VALUES > WARP_ITEMS
#error "a group must have whole warps, and no more sums than a warp has lanes"
#endif

INLINE void clear_sums(real_t sums[SUMS])
{
#pragma unroll
    for (int value = 0; value < SUMS; value++) {
        sums[value] = 0;
    }
}

/* Adds the parts up, those of a warp first, and stores output units from number `first` of `group` on. */
INLINE void store_sums(real_t sums[SUMS], const int n, const int group, const int first,
                       __local real_t room[SUMS * LOCAL_WIDTH], __local real_t parts[SUMS][WARPS],
                       WRITE_BLOB(output), EPILOGUE_BLOBS, EPILOGUE_ARRAYS)
{
    const int item = get_local_id(0);
    parts[WARP_SUM_NUMBER(SUMS)][WARP] = warp_sum(sums, SUMS, room);
    barrier(CLK_LOCAL_MEM_FENCE);
    const int of_group = first + item / POSITIONS;
    if (item < VALUES && of_group < GROUP_OUTPUT_UNITS) {
        real_t sum = 0;
#pragma unroll
        for (int warp = 0; warp < WARPS; warp++) {
            sum += parts[item][warp];
        }
        const int unit = group * GROUP_OUTPUT_UNITS + of_group;
        const int y = item % POSITIONS / OUTPUT_UNIT_WIDTH;
        const int x = item % OUTPUT_UNIT_WIDTH;
        const real_t bias = UNIT_BIAS(unit);
        const real_t value = CELL_EPILOGUE(BIASED(sum, bias, unit), n, unit, y, x);
        WRITE_VALUE(output, BLOB_INDEX(OUTPUT, n, unit, y, x), FINISHED(value, unit));
    }
}
