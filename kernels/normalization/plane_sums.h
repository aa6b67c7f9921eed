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
#include "vector.h"

#define ROW_STEPS ((PLANE_WIDTH + LANES - 1) / LANES)
#define PLANE_STEPS (PLANE_HEIGHT * ROW_STEPS)
#define STEP_Y(step) ((step) / ROW_STEPS)
#define STEP_X(step) ((step) % ROW_STEPS * LANES)

/* NOTE: the last step of a row reads over its end; what lies there may be NaN and is selected away. */
#if PLANE_WIDTH % LANES == 0
#define WITHIN_ROW(x, value) (value)
#else
#define WITHIN_ROW(x, value) VECTOR_KEEP(value, (x) + VECTOR_LANE_NUMBERS < PLANE_WIDTH)
#endif
