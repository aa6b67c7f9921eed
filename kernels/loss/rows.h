/*
 * A walk through the rows of a sample, of which each work-group takes a part. A group's work-items take
 * ROW_ITEMS neighbours of a row, and as many rows at once as that leaves; or they share the classes of one position
 * after the other: loss/shared_classes.h, which stands before.
 *
 * Macros:
 *   ROWS       of a sample: those of all units if each unit has a loss of its own
 *   PARTS      of a sample's rows
 *   ROW_ITEMS  a power of two, at most LOCAL_WIDTH / CLASS_ITEMS
 * Global:
 *   width  parts
 * Local:
 *   width  positions of a part, or work-items of a position
 */
#define PART ((int)get_group_id(0))
#define PART_ROWS ((ROWS + PARTS - 1) / PARTS)
#define FIRST_ROW (PART * PART_ROWS + POSITION_ITEM / ROW_ITEMS)
#define END_ROW min(ROWS, (PART + 1) * PART_ROWS)
#define ROW_STEP (LOCAL_WIDTH / CLASS_ITEMS / ROW_ITEMS)
#define FIRST_COLUMN (POSITION_ITEM % ROW_ITEMS)
