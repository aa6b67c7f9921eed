/*
 * The walk of a work-group through the planes of a unit, LOCAL_UNITS at a time, each by LOCAL_WIDTH work-items: the group's
 * number is the unit's, which has one plane a sample.
 */
#define UNIT ((int)get_group_id(2))
#define FOR_SAMPLES for (int n = get_local_id(2); n < count; n += LOCAL_UNITS)
#if LOCAL_WIDTH == 1
#define FOR_UNIT_CELLS FOR_CELLS
#else
#define FOR_UNIT_CELLS for (int first = get_local_id(0); first < PLANE_CELLS; first += CELLS * LOCAL_WIDTH)
#endif
