/*
 * A walk through the cells of planes, for kernels that compute each cell from those at the same place of
 * other blobs. A file that includes this defines PLANE, the role of such a blob, before, and writes
 *
 *     const int n = SAMPLE;
 *     FOR_PLANES {
 *         FOR_CELLS {
 *             real_t results[CELLS];
 *             EACH_CELL { results[i] = f(from[AT(INPUT)]); }
 *             EACH_CELL { to[AT(OUTPUT)] = results[i]; }
 *         }
 *     }
 *
 * with z the plane's number in the sample (UNIT_OF is its unit), and AT(ROLE) how far after the first cell of its plane
 * a cell of that blob lies.
 *
 * A CPU's work-item takes PLANES planes, cell by cell, row by row, and compilers vectorize the inner loop. A GPU's takes
 * CELLS cells of one plane, LOCAL_WIDTH apart, so that neighbours take neighbours: all loads are under way before the
 * first store, also where both go to the same memory. NOTE: it does so little that loops, and divisions by arguments,
 * would be half of its work: there are none, and LOCAL_WIDTH is known.
 *
 * Macros:
 *   GAPLESS      1: the rows of no blob have anything between them
 *   LOCAL_WIDTH  work-items of a group that share a plane
 *   PLANES       planes of a work-item
 */
#define SIZE_OF_(ROLE, SIZE) ROLE##_##SIZE
#define SIZE_OF(ROLE, SIZE) SIZE_OF_(ROLE, SIZE)
#define PLANE_WIDTH SIZE_OF(PLANE, UNIT_WIDTH)
#define PLANE_HEIGHT SIZE_OF(PLANE, UNIT_HEIGHT)
#define PLANE_CELLS SIZE_OF(PLANE, PLANE_ELEMENTS)
#define SAMPLE_PLANES SIZE_OF(PLANE, PLANE_COUNT)
#define QUOTIENT_OF(number, ROLE, SIZE) QUOTIENT(number, ROLE, SIZE)

#if PLANES == 1
#define SAMPLE QUOTIENT_OF((int)get_global_id(2), PLANE, PLANE_COUNT)
#define FOR_PLANES const int z = (int)get_global_id(2) - SAMPLE * SAMPLE_PLANES;
#else
#define UNIT_STEP ((SAMPLE_PLANES + PLANES - 1) / PLANES)
#define SAMPLE ((int)get_global_id(2) / UNIT_STEP)
#define FOR_PLANES for (int z = (int)get_global_id(2) % UNIT_STEP; z < SAMPLE_PLANES; z += UNIT_STEP)
#endif

#if LOCAL_WIDTH == 1
#define FOR_CELLS                          \
    for (int y = 0; y < PLANE_HEIGHT; y++) \
        for (int x = 0; x < PLANE_WIDTH; x++)
#define EACH_CELL for (int i = 0; i < 1; i++)
#define AT(ROLE) (y * ROLE##_UNIT_MEMORY_WIDTH + x)
#else
#define FIRST_CELL_OF_ITEM ((int)get_group_id(0) * LOCAL_WIDTH * CELLS + (int)get_local_id(0))
#define FOR_CELLS const int first = FIRST_CELL_OF_ITEM;
#define EACH_CELL                   \
    for (int i = 0; i < CELLS; i++) \
        if (CELL(i) < PLANE_CELLS)
#define CELL(i) (first + (i) * LOCAL_WIDTH)
#define AT(ROLE) CELL_OFFSET(ROLE, CELL(i))
#endif

/* How far after the first cell of its plane cell number `cell` lies. */
#if GAPLESS
#define CELL_OFFSET(ROLE, cell) (cell)
#else
#define CELL_OFFSET(ROLE, cell) \
    ((cell) + QUOTIENT_OF(cell, PLANE, UNIT_WIDTH) * (ROLE##_UNIT_MEMORY_WIDTH - PLANE_WIDTH))
#endif
