/*
 * Sums of pairs, of one from each work-item of a group, in a fixed order. Of a blob of cells a pair has two numbers for
 * each unit: warps sum these (warp.h), and their sums meet in local memory; LOCAL_WIDTH is a multiple of WARP_ITEMS.
 *
 *     PAIR_ROOM(room)           declares local memory for them
 *     ROW_SUMS(pair, room)      the sums of a row of LOCAL_WIDTH work-items; work-item u < CELL_UNITS gets those of unit u
 *     OF_OWN_UNIT(number)       the value of the work-item's unit
 *     GROUP_SUMS(pair, room)    the sums of all rows, of all units, for every work-item
 *
 * All work-items must take part, once.
 */
#if CELL_UNITS == 1
#define GROUP_SUM_TYPE number_pair_t
#include "group_sum.h"
#define PAIR_ROOM(room) __local number_pair_t room[LOCAL_WIDTH * LOCAL_UNITS]
#define ROW_SUMS(pair, room) GROUP_SUM(pair, room)
#define OF_OWN_UNIT(number) (number)

INLINE number_pair_t group_sums(const number_pair_t pair, __local number_pair_t *room)
{
    const number_pair_t row = GROUP_SUM(pair, room);
#if LOCAL_WIDTH == 1
    return row;
#else
    if (get_local_id(0) == 0) {
        room[get_local_id(2)] = row;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    number_pair_t sum = room[0];
    for (int other = 1; other < LOCAL_UNITS; other++) {
        sum += room[other];
    }
    return sum;
#endif
}
#else
#include "warp.h"
#if LOCAL_WIDTH % WARP_ITEMS
#error "of cells, a row must have whole warps"
#endif
#define PAIR_NUMBERS (2 * CELL_UNITS)
#define ROW_WARPS (LOCAL_WIDTH / WARP_ITEMS)
#define GROUP_WARPS (LOCAL_UNITS * ROW_WARPS)
#define PAIR_ROOM(room) \
    __local real_t room[GROUP_WARPS * PAIR_NUMBERS + LOCAL_WIDTH * LOCAL_UNITS * WARP_SUM_ROOM(PAIR_NUMBERS)]
#define ROW_SUMS(pair, room) row_sums(pair, room)
#define OF_OWN_UNIT(number) number_of_unit(number, get_local_id(0))

/* The room then begins with the sums of all warps. */
INLINE void sum_in_warps(const number_pair_t pair, __local real_t *room)
{
    const int row = get_local_id(2);
    __local real_t *rest = room + (GROUP_WARPS + row * LOCAL_WIDTH) * PAIR_NUMBERS;
    real_t values[PAIR_NUMBERS];
    PUT_PAIR(pair, values);
    const real_t sum = warp_sum(values, PAIR_NUMBERS, rest);
    room[(row * ROW_WARPS + WARP) * PAIR_NUMBERS + WARP_SUM_NUMBER(PAIR_NUMBERS)] = sum;
    barrier(CLK_LOCAL_MEM_FENCE);
}

INLINE float2 row_sums(const number_pair_t pair, __local real_t *room)
{
    sum_in_warps(pair, room);
    __local const real_t *own =
        room + get_local_id(2) * ROW_WARPS * PAIR_NUMBERS + get_local_id(0) % CELL_UNITS;
    float2 sum = (float2)(own[0], own[CELL_UNITS]);
    for (int warp = 1; warp < ROW_WARPS; warp++) {
        sum += (float2)(own[warp * PAIR_NUMBERS], own[warp * PAIR_NUMBERS + CELL_UNITS]);
    }
    return sum;
}

INLINE number_pair_t group_sums(const number_pair_t pair, __local real_t *room)
{
    sum_in_warps(pair, room);
    const int number = get_local_id(0);
    if (number < PAIR_NUMBERS && get_local_id(2) == 0) {
        real_t sum = room[number];
        for (int warp = 1; warp < GROUP_WARPS; warp++) {
            sum += room[warp * PAIR_NUMBERS + number];
        }
        room[number] = sum;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    return PAIR_OF(room);
}

INLINE real_t number_of_unit(const number_t number, const int unit)
{
    real_t numbers[CELL_UNITS];
    PUT_NUMBER(number, numbers);
    return numbers[unit];
}
#endif
#define GROUP_SUMS(pair, room) group_sums(pair, room)
