/*
 * Sums over the cells of a plane in a fixed order that does not depend on the plane's memory. A file that
 * includes this defines PLANE before, as for cells.h, and walks through a plane by
 *
 *     FOR_STEPS {
 *         const vector_t values = STEP_LOAD(plane, INPUT);
 *         sums += WITHIN_PLANE(values);
 *     }
 *
 * A CPU's work-item adds LANES cells of a row at a time. A GPU's adds LANES cells that are LOCAL_WIDTH apart, so
 * that neighbours read neighbours and many loads are under way at once; with one lane, steps are unrolled for that. Trees
 * add up lanes, and pair_sums.h work-items.
 *
 * NOTE: 8 lanes are the most that VECTOR_OF takes.
 *
 * Macros:
 *   GAPLESS  see cells.h
 */
#include "vector.h"
#include "cells.h"

/* Where PARTIALS, (sums, planes * CELL_UNITS, COUNT), keep sum `number` of a plane of sample n and unit of its cells. */
#define PARTIAL(number, z, unit, n) \
    ARRAY(partials)[((size_t)((number) * SAMPLE_PLANES + (z)) * CELL_UNITS + (unit)) * count + (n)]

#if LOCAL_WIDTH == 1
#define ROW_STEPS ((PLANE_WIDTH + LANES - 1) / LANES)
#define STEP_X (step % ROW_STEPS * LANES)
#define FOR_STEPS for (int step = 0; step < PLANE_HEIGHT * ROW_STEPS; step++)
#define STEP_LOAD(plane, ROLE) VECTOR_LOAD(plane + step / ROW_STEPS * ROLE##_UNIT_MEMORY_WIDTH + STEP_X)
/* NOTE: the last step of a row reads over its end; what lies there may be NaN and is selected away. */
#define WITHIN_PLANE(value) \
    (PLANE_WIDTH % LANES == 0 ? (value) : VECTOR_KEEP(value, STEP_X + VECTOR_LANE_NUMBERS < PLANE_WIDTH))
#else
#define FOR_STEPS for (int first = get_local_id(0); first < PLANE_CELLS; first += LANES * LOCAL_WIDTH)
#if LANES == 1
/* NOTE: NVIDIA's compiler would put a load whose value is selected behind a branch, with no other one under way. */
#define STEP_LOAD(plane, ROLE) READ_VALUE(plane, CELL_OFFSET(ROLE, first))
#define WITHIN_PLANE(value) (value)
#else
#define STEP_LOAD(plane, ROLE) VECTOR_OF(CELL_OR_ZERO, plane, ROLE)
#define CELL_OR_ZERO(i, plane, ROLE) \
    (CELL(i) < PLANE_CELLS ? READ_VALUE(plane, CELL_OFFSET(ROLE, CELL(i))) : (number_t)(0))
#define WITHIN_PLANE(value) VECTOR_KEEP(value, first + VECTOR_LANE_NUMBERS * LOCAL_WIDTH < PLANE_CELLS)
#endif
#endif
