/*
 * Which block of units and which of columns (positions, or weights of one unit) a work-item computes. Work-items follow
 * one another along the first dimension. UNITS_FIRST: these are the blocks of units, so that what a block of columns
 * reads stays in a cache for all of them; else the blocks of columns, so that what a block of units reads does.
 */
#if UNITS_FIRST
#define UNIT_BLOCK get_global_id(0)
#define COLUMN_BLOCK get_global_id(1)
#else
#define UNIT_BLOCK get_global_id(1)
#define COLUMN_BLOCK get_global_id(0)
#endif
