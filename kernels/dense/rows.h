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
#define VECTOR_INDEX(ROLE, k) ((ROWS == 1 ? 0 : ROW_INDEX(ROLE, (k) / CHUNKS)) + IN_RUN(k) * LANES)
#define ELEMENT_INDEX(k) ((k) / CHUNKS * ROW_ELEMENTS + (k) % CHUNKS * LANES)
/* The lanes of vector k that hold elements. */
#define FILLED(k) (VECTOR_LANE_NUMBERS < ROW_ELEMENTS - (k) % CHUNKS * LANES)

/*
 * The number of a vector in its run; where number `index` of a row lies, which has less than 4 GB; and the head of a loop
 * over the vectors of a work-item of LOCAL_WIDTH. NOTE: AMD's GPUs add a work-item's 32 bits to a pointer that all have
 * in common as they load. Their compiler keeps both apart, and writes rounds out, where it can count the rounds; with a
 * loop that each work-item leaves by itself it added 64 bits to all pointers, twice a round.
 */
#ifdef __AMDGCN__
#define IN_RUN(k) (ROWS == 1 ? (k) : (k) % CHUNKS)
#define BEHIND(pointer, index) \
    (__typeof__(pointer))((__global const char *)(pointer) + (uint)(index) * (uint)sizeof(*(pointer)))
#define EACH_VECTOR(k)                                                                                \
    for (int first = 0, k = get_local_id(0); first < VECTORS; first += LOCAL_WIDTH, k += LOCAL_WIDTH) \
        if (VECTORS % LOCAL_WIDTH == 0 || k < VECTORS)
#else
/* clang-format off */
#define IN_RUN(k) (k) % CHUNKS
#define BEHIND(pointer, index) pointer + index
#define EACH_VECTOR(k) for (int k = get_local_id(0); k < VECTORS; k += LOCAL_WIDTH)
/* clang-format on */
#endif
