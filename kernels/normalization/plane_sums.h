/*
 * Sums over the cells of a plane in a fixed order that does not depend on the plane's memory: a work-item
 * adds LANES cells of a row at a time, the LOCAL_WIDTH work-items of a group take turns, and trees add up
 * lanes and work-items. A file that includes this defines PLANE_WIDTH and PLANE_HEIGHT before, and walks
 * through a plane by
 *
 *     for (int step = get_local_id(0); step < PLANE_STEPS; step += LOCAL_WIDTH)
 *
 * in which STEP_Y(step) and STEP_X(step) are the first cell of a step.
 *
 * NOTE: 8 lanes are the most, because PoCL 3.0 of PyPI loads wrong values by vload16.
 */
#define ROW_STEPS ((PLANE_WIDTH + LANES - 1) / LANES)
#define PLANE_STEPS (PLANE_HEIGHT * ROW_STEPS)
#define STEP_Y(step) ((step) / ROW_STEPS)
#define STEP_X(step) ((step) % ROW_STEPS * LANES)

#define LANES_JOIN_(a, b) a##b
#define LANES_JOIN(a, b) LANES_JOIN_(a, b)
#if LANES == 1
typedef accumulator_t lanes_t;
#define LOAD_LANES(pointer) (*(pointer))
#else
typedef LANES_JOIN(float, LANES) lanes_t;
#define LOAD_LANES(pointer) LANES_JOIN(vload, LANES)(0, pointer)
#endif

/* NOTE: the last step of a row reads over its end; what lies there may be NaN and is selected away. */
#if PLANE_WIDTH % LANES == 0
#define WITHIN_ROW(x, value) (value)
#else
__constant int lane_numbers[8] = {0, 1, 2, 3, 4, 5, 6, 7};
#define WITHIN_ROW(x, value) \
    select((lanes_t)(0), value, (x) + LANES_JOIN(vload, LANES)(0, lane_numbers) < PLANE_WIDTH)
#endif

accumulator_t sum_of_lanes(const lanes_t lanes)
{
    union {
        lanes_t vector;
        accumulator_t values[LANES];
    } sums;
    sums.vector = lanes;
    for (int distance = LANES / 2; distance > 0; distance /= 2) {
        for (int lane = 0; lane < distance; lane++) {
            sums.values[lane] += sums.values[lane + distance];
        }
    }
    return sums.values[0];
}
