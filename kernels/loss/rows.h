/*
 * A walk through the rows of a sample, of which each work-group takes a part. A group's work-items take
 * ROW_ITEMS neighbours of a row, and as many rows at once as that leaves.
 *
 * Macros:
 *   ROWS         of a sample: those of all units if each unit has a loss of its own
 *   PARTS        of a sample's rows
 *   ROW_ITEMS    a power of two, at most LOCAL_WIDTH
 *   LOCAL_WIDTH  a power of two
 * Global:
 *   width  parts
 * Local:
 *   width  positions of a part
 */
#include "group_sum.h"

#define PART ((int)get_group_id(0))
#define PART_ROWS ((ROWS + PARTS - 1) / PARTS)
#define FIRST_ROW (PART * PART_ROWS + (int)get_local_id(0) / ROW_ITEMS)
#define END_ROW min(ROWS, (PART + 1) * PART_ROWS)
#define ROW_STEP (LOCAL_WIDTH / ROW_ITEMS)
#define FIRST_COLUMN (get_local_id(0) % ROW_ITEMS)
