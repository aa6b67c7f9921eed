/*
 * A walk through the cells of a plane, for kernels that compute each cell from those at the same place of
 * other blobs. A file that includes this defines PLANE, the role of such a blob, before, and writes
 *
 *     FOR_CELLS {
 *         real_t results[CELLS];
 *         EACH_CELL { results[i] = f(from[AT(INPUT)]); }
 *         EACH_CELL { to[AT(OUTPUT)] = results[i]; }
 *     }
 *
 * with AT(ROLE) how far behind the first cell of its plane a cell of that blob lies.
 *
 * A CPU's work-item (sizes are constants) takes cell by cell, row by row, and compilers vectorize the inner loop. A
 * GPU's takes CELLS at once, LOCAL_WIDTH apart, so that neighbours take neighbours: all loads are under way before the
 * first store, also where both go to the same memory.
 *
 * Macros:
 *   GAPLESS  1: the rows of no blob have anything between them
 */
#define SIZE_OF_(ROLE, SIZE) ROLE##_##SIZE
#define SIZE_OF(ROLE, SIZE) SIZE_OF_(ROLE, SIZE)
#define PLANE_WIDTH SIZE_OF(PLANE, UNIT_WIDTH)
#define PLANE_HEIGHT SIZE_OF(PLANE, UNIT_HEIGHT)
#define PLANE_CELLS SIZE_OF(PLANE, UNIT_ELEMENTS)
#define ROW_OF_(cell, ROLE) QUOTIENT(cell, ROLE, UNIT_WIDTH)
#define ROW_OF(cell, ROLE) ROW_OF_(cell, ROLE)

#if !defined(SIZES_AS_ARGUMENTS) && LOCAL_WIDTH == 1
#define FOR_CELLS                          \
    for (int y = 0; y < PLANE_HEIGHT; y++) \
        for (int x = 0; x < PLANE_WIDTH; x++)
#define EACH_CELL for (int i = 0; i < 1; i++)
#define AT(ROLE) (y * ROLE##_UNIT_MEMORY_WIDTH + x)
#else
#define FOR_CELLS                                                                                  \
    for (int first = get_group_id(0) * LOCAL_WIDTH * CELLS + get_local_id(0); first < PLANE_CELLS; \
         first += GLOBAL_WIDTH * CELLS)
#define EACH_CELL                   \
    for (int i = 0; i < CELLS; i++) \
        if (CELL(i) < PLANE_CELLS)
#define CELL(i) (first + (i) * LOCAL_WIDTH)
#define AT(ROLE) CELL_OFFSET(ROLE, CELL(i))
#endif

/* How far behind the first cell of its plane cell number `cell` lies. */
#if GAPLESS
#define CELL_OFFSET(ROLE, cell) (cell)
#else
#define CELL_OFFSET(ROLE, cell) ((cell) + ROW_OF(cell, PLANE) * (ROLE##_UNIT_MEMORY_WIDTH - PLANE_WIDTH))
#endif
