/*
 * The value at a position in a plane of SAMPLE_TYPE that is not outside, between the cells around it; at the very cell
 * if the position is exact. A file defines PLANE_HEIGHT and PLANE_WIDTH before.
 */
#include "input/samples.h"

/* Whether a position is in a plane, whose cells are squares with their middles at whole numbers. */
#define IS_INSIDE(y, x) \
    ((y) >= -0.5f && (y) <= PLANE_HEIGHT - 0.5f && (x) >= -0.5f && (x) <= PLANE_WIDTH - 0.5f)

INLINE real_t value_at(__global const SAMPLE_TYPE *plane, real_t y, real_t x, bool is_exact)
{
    if (is_exact) {
        return SAMPLE(plane, (int)y * PLANE_WIDTH + (int)x);
    }
    const real_t down = clamp(y, (real_t)0, (real_t)(PLANE_HEIGHT - 1));
    const real_t right = clamp(x, (real_t)0, (real_t)(PLANE_WIDTH - 1));
    const int top = (int)down * PLANE_WIDTH;
    const int bottom = min((int)down + 1, PLANE_HEIGHT - 1) * PLANE_WIDTH;
    const int left = (int)right;
    const int next = min(left + 1, PLANE_WIDTH - 1);
    const real_t part = right - left;
    const real_t above =
        SAMPLE(plane, top + left) + part * (SAMPLE(plane, top + next) - SAMPLE(plane, top + left));
    const real_t below =
        SAMPLE(plane, bottom + left) + part * (SAMPLE(plane, bottom + next) - SAMPLE(plane, bottom + left));
    return above + (down - (int)down) * (below - above);
}
