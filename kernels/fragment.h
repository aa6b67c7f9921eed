/*
 * Products of small matrices by the matrix unit of a processor: *fragments* of 16 x 16 sums in fp32 of factors of
 * bfloat16. Here AMX of x86, through the assembler of an OpenCL compiler, since OpenCL C has no words for it; and the same
 * in plain OpenCL C, slowly, for tests on other devices.
 *
 *     BEGIN_FRAGMENTS(pairs)          before all others, in their scope; pairs: 1 to 16, of which a factor has twice as many
 *     CLEAR_SUMS(i, j)                sums (i, j) = 0
 *     LOAD_LEFT(i, pointer, bytes)    left i: 16 rows of 2 * pairs numbers side by side, so many bytes from row to row
 *     LOAD_RIGHT(j, pointer, bytes)   right j: pairs of rows, of 16 columns side by side, each with both its numbers
 *     MULTIPLY_FRAGMENTS(i, j)        sums (i, j) += left i * right j
 *     STORE_SUMS(i, j, pointer, bytes)
 *     END_FRAGMENTS
 *
 * i and j are 0 or 1, as written: 2 x 2 sums take all of a processor's eight tiles with what they are made of. What is
 * loaded must stay as it is until it has been multiplied. AMX takes subnormal numbers for 0, and gives none.
 */
#define FRAGMENT 16

#ifdef TAKES_TILES

/* What a processor is told of its tiles: bytes of a row, and rows. Tiles 0 to 3 are sums, 4 and 5 left, 6 and 7 right. */
typedef struct {
    uchar palette, started, unused[14];
    ushort row_bytes[16];
    uchar rows[16];
} __attribute__((aligned(64))) tile_shapes_t;

INLINE void begin_fragments(const int pairs)
{
    tile_shapes_t shapes = {1};
    for (int i = 0; i < 8; i++) {
        shapes.row_bytes[i] = i == 4 || i == 5 ? 4 * pairs : 64;
        shapes.rows[i] = i >= 6 ? pairs : 16;
    }
    __asm__ volatile("ldtilecfg (%0)" : : "r"(&shapes) : "memory");
}

#define SUMS_00 "%%tmm0"
#define SUMS_01 "%%tmm1"
#define SUMS_10 "%%tmm2"
#define SUMS_11 "%%tmm3"
#define LEFT_0 "%%tmm4"
#define LEFT_1 "%%tmm5"
#define RIGHT_0 "%%tmm6"
#define RIGHT_1 "%%tmm7"
#define LOAD_TILE(tile, pointer, bytes) \
    __asm__ volatile("tileloadd (%0,%1,1), " tile : : "r"(pointer), "r"((size_t)(bytes)) : "memory")
#define BEGIN_FRAGMENTS(pairs) begin_fragments(pairs)
#define CLEAR_SUMS(i, j) __asm__ volatile("tilezero " SUMS_##i##j : : : "memory")
#define LOAD_LEFT(i, pointer, bytes) LOAD_TILE(LEFT_##i, pointer, bytes)
#define LOAD_RIGHT(j, pointer, bytes) LOAD_TILE(RIGHT_##j, pointer, bytes)
#define MULTIPLY_FRAGMENTS(i, j) \
    __asm__ volatile("tdpbf16ps " RIGHT_##j ", " LEFT_##i ", " SUMS_##i##j : : : "memory")
#define STORE_SUMS(i, j, pointer, bytes)                     \
    __asm__ volatile("tilestored " SUMS_##i##j ", (%0,%1,1)" \
                     :                                       \
                     : "r"(pointer), "r"((size_t)(bytes))    \
                     : "memory")
#define END_FRAGMENTS __asm__ volatile("tilerelease" : : : "memory")

#else

typedef struct {
    __global const uchar *first;
    size_t bytes;
} factor_t;

INLINE float number_of(const factor_t factor, const int row, const int i)
{
    return as_float((uint)((__global const ushort *)(factor.first + row * factor.bytes))[i] << 16);
}

INLINE void multiply_fragments(float sums[FRAGMENT][FRAGMENT], const factor_t left, const factor_t right,
                               const int pairs)
{
    for (int row = 0; row < FRAGMENT; row++) {
        for (int k = 0; k < 2 * pairs; k++) {
            for (int column = 0; column < FRAGMENT; column++) {
                sums[row][column] += number_of(left, row, k) * number_of(right, k / 2, 2 * column + k % 2);
            }
        }
    }
}

#define BEGIN_FRAGMENTS(pairs)                     \
    float fragment_sums[2][2][FRAGMENT][FRAGMENT]; \
    factor_t lefts[2], rights[2];                  \
    const int fragment_pairs = pairs
#define EACH_SUM(i, j, statement)                           \
    for (int row = 0; row < FRAGMENT; row++) {              \
        for (int column = 0; column < FRAGMENT; column++) { \
            statement;                                      \
        }                                                   \
    }
#define CLEAR_SUMS(i, j) EACH_SUM(i, j, fragment_sums[i][j][row][column] = 0)
#define LOAD_LEFT(i, pointer, stride)                   \
    lefts[i].first = (__global const uchar *)(pointer); \
    lefts[i].bytes = stride
#define LOAD_RIGHT(j, pointer, stride)                   \
    rights[j].first = (__global const uchar *)(pointer); \
    rights[j].bytes = stride
#define MULTIPLY_FRAGMENTS(i, j) multiply_fragments(fragment_sums[i][j], lefts[i], rights[j], fragment_pairs)
#define STORE_SUMS(i, j, pointer, stride) \
    EACH_SUM(i, j, (pointer)[row * ((stride) / sizeof(float)) + column] = fragment_sums[i][j][row][column])
#define END_FRAGMENTS

#endif
