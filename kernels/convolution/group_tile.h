/*
 * A work-group's tile of a product with positions as columns, tile after tile of units.
 */
#define POSITIONS ((RESULT_HEIGHT - 1) * ROW_POSITIONS + RESULT_WIDTH)
#define BLOCKS ((UNIT_COLUMNS + TILE_UNITS - 1) / TILE_UNITS)
#define GROUP ((int)GLOBAL_ID_OF_GROUP(1))
#define FIRST_UNIT ((int)get_group_id(0) % BLOCKS * TILE_UNITS)
#define FIRST_POSITION ((int)get_group_id(0) / BLOCKS * TILE_COLUMNS)
