/*
 * A sample as one row of a matrix: ROWS runs of ROW_ELEMENTS consecutive values. A blob without padding is one run;
 * else a run is a row of a plane. Weights (OI) have the same elements without gaps. Vector k covers LANES elements of
 * one run: CHUNKS vectors a run.
 */
#define CHUNKS ((ROW_ELEMENTS + LANES - 1) / LANES)
#define VECTORS (ROWS * CHUNKS)
#define ELEMENTS (ROWS * ROW_ELEMENTS)
#define WHOLE_CHUNKS (ROW_ELEMENTS % LANES == 0)
/* Where vector k of the sample at n starts, in the blob ROLE and in a row of the weights. */
#define ROW_INDEX(ROLE, row) \
    (PLANE_OFFSET(ROLE, (row) / ROLE##_UNIT_HEIGHT) + (row) % ROLE##_UNIT_HEIGHT * ROLE##_UNIT_MEMORY_WIDTH)
#define VECTOR_INDEX(ROLE, k) ((ROWS == 1 ? 0 : ROW_INDEX(ROLE, (k) / CHUNKS)) + (k) % CHUNKS * LANES)
#define ELEMENT_INDEX(k) ((k) / CHUNKS * ROW_ELEMENTS + (k) % CHUNKS * LANES)
/* The lanes of vector k that hold elements. */
#define FILLED(k) (VECTOR_LANE_NUMBERS < ROW_ELEMENTS - (k) % CHUNKS * LANES)
