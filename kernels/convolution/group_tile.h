/*
 * A work-group's tile of a product with positions as columns, tile after tile of units.
 */
/* Positions of a sample: from its first result to its last one, or with those of the zeros between samples. */
#ifdef SAMPLE_POSITIONS
#define POSITIONS SAMPLE_POSITIONS
#define IS_RESULT(y, x) ((x) < RESULT_WIDTH && (y) < RESULT_HEIGHT)
#else
#define POSITIONS ((RESULT_HEIGHT - 1) * ROW_POSITIONS + RESULT_WIDTH)
#define IS_RESULT(y, x) ((x) < RESULT_WIDTH)
#endif
/* The row and column of position p. IS_RESULT: whether it is one of the result. */
#define POSITION_Y(p) ((p) % POSITIONS / ROW_POSITIONS)
#define POSITION_X(p) ((p) % POSITIONS % ROW_POSITIONS)
#define BLOCKS ((UNIT_COLUMNS + TILE_UNITS - 1) / TILE_UNITS)
#define GROUP ((int)GLOBAL_ID_OF_GROUP(1))
/* The first unit and the first position of a tile, and of the one that has the work-group's number. */
#define FIRST_UNIT_OF(tile) ((tile) % BLOCKS * TILE_UNITS)
#define FIRST_POSITION_OF(tile) ((tile) / BLOCKS * TILE_COLUMNS)
#define OWN_TILE ((int)get_group_id(0))
#define FIRST_UNIT FIRST_UNIT_OF(OWN_TILE)
#define FIRST_POSITION FIRST_POSITION_OF(OWN_TILE)
