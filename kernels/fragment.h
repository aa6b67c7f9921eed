/*
 * Products of small matrices by the matrix unit of a processor: *fragments* of 16 x 16 sums in fp32 of factors of
 * bfloat16. Here AMX of x86, and AVX-512's products of pairs, through the assembler of an OpenCL compiler, since OpenCL C
 * has no words for them; and the same in plain OpenCL C, slowly, for tests on other devices.
 *
 *     __local float sums[FRAGMENT_ROWS * FRAGMENT * SUMS_PITCH] __attribute__((aligned(64)));
 *     BEGIN_FRAGMENTS               before all others, in their scope
 *     CLEAR_SUMS(sums)
 *     ADD_PRODUCTS(sums, columns, left, right, places, count)
 *     STORE_SUMS(sums)              now they are in `sums`
 *     END_FRAGMENTS
 *
 * ADD_PRODUCTS adds left k times right k, for all k < count, to the sums. There is at least one k. Left k lies places[k].x
 * words of 4 bytes behind `left`, right k places[k].y behind `right`. Who includes this defines:
 *
 *   FRAGMENT_ROWS  1 or 2: fragments of rows; `columns` of ADD_PRODUCTS, 1 or 2, are those of columns
 *   PAIRS          1 to 16: a left factor has 16 rows for each fragment, of 2 * PAIRS numbers side by side
 *   LEFT_BYTES     from row to row
 *   RIGHT_BYTES    a right factor has PAIRS rows of 16 columns, each both numbers of a pair; so far from row to row
 *   RIGHT_NEXT     bytes to the columns of the second fragment
 *
 * Both units take subnormal numbers for 0, and give none.
 */
#include "text.h"

#define FRAGMENT 16
/* From a row of sums to the next. */
#define SUMS_PITCH (2 * FRAGMENT)
#define LEFT_NEXT (FRAGMENT * LEFT_BYTES)

#ifdef TAKES_TILES

/* What a processor is told of its tiles: bytes of a row, and rows. Tiles 0 to 3 are sums, 4 and 5 left, 6 and 7 right. */
typedef struct {
    uchar palette, started, unused[14];
    ushort row_bytes[16];
    uchar rows[16];
} __attribute__((aligned(64))) tile_shapes_t;

INLINE void begin_fragments(void)
{
    tile_shapes_t shapes = {1};
    for (int i = 0; i < 8; i++) {
        shapes.row_bytes[i] = i == 4 || i == 5 ? 4 * PAIRS : 64;
        shapes.rows[i] = i >= 6 ? PAIRS : 16;
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
#define CLEAR_TILE(tile) __asm__ volatile("tilezero " tile : : : "memory")
#define MULTIPLY_TILES(i, j) \
    __asm__ volatile("tdpbf16ps " RIGHT_##j ", " LEFT_##i ", " SUMS_##i##j : : : "memory")
#define STORE_TILE(i, j, sums)                                                     \
    __asm__ volatile("tilestored " SUMS_##i##j ", (%0,%1,1)"                       \
                     :                                                             \
                     : "r"((sums) + (i) * FRAGMENT * SUMS_PITCH + (j) * FRAGMENT), \
                       "r"((size_t)(4 * SUMS_PITCH))                               \
                     : "memory")

INLINE void add_products(const int columns, __global const uchar *left, __global const uchar *right,
                         const int2 *places, const int count)
{
    for (int k = 0; k < count; k++) {
        LOAD_TILE(LEFT_0, left + 4L * places[k].x, LEFT_BYTES);
        LOAD_TILE(RIGHT_0, right + 4L * places[k].y, RIGHT_BYTES);
        MULTIPLY_TILES(0, 0);
#if FRAGMENT_ROWS == 2
        LOAD_TILE(LEFT_1, left + 4L * places[k].x + LEFT_NEXT, LEFT_BYTES);
        MULTIPLY_TILES(1, 0);
#endif
        if (columns == 2) {
            LOAD_TILE(RIGHT_1, right + 4L * places[k].y + RIGHT_NEXT, RIGHT_BYTES);
            MULTIPLY_TILES(0, 1);
#if FRAGMENT_ROWS == 2
            MULTIPLY_TILES(1, 1);
#endif
        }
    }
}

#define BEGIN_FRAGMENTS begin_fragments();
#define CLEAR_SUMS(sums) \
    CLEAR_TILE(SUMS_00); \
    CLEAR_TILE(SUMS_01); \
    CLEAR_TILE(SUMS_10); \
    CLEAR_TILE(SUMS_11);
#define ADD_PRODUCTS(sums, columns, left, right, places, count) \
    add_products(columns, (__global const uchar *)(left), (__global const uchar *)(right), places, count);
#if FRAGMENT_ROWS == 2
#define STORE_SUMS(sums)    \
    STORE_TILE(0, 0, sums); \
    STORE_TILE(0, 1, sums); \
    STORE_TILE(1, 0, sums); \
    STORE_TILE(1, 1, sums);
#else
#define STORE_SUMS(sums)    \
    STORE_TILE(0, 0, sums); \
    STORE_TILE(0, 1, sums);
#endif
#define END_FRAGMENTS __asm__ volatile("tilerelease" : : : "memory");

#else

#ifdef TAKES_PAIRS

/* Two numbers of the depth in one instruction, and a row of sums in a register. Intel's compiler cannot be told which
 * registers change, but takes a call to change all; PoCL's makes a call part of its caller, but can be told. */
#ifdef __x86_64__
#define CHANGED_REGISTERS                                                                               \
    , "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", \
        "xmm12", "xmm13", "xmm14", "xmm15", "xmm16"
#else
#define CHANGED_REGISTERS
#endif
/* clang-format off */
#define EACH_ROW(text) \
    text(0) text(1) text(2) text(3) text(4) text(5) text(6) text(7) \
    text(8) text(9) text(10) text(11) text(12) text(13) text(14) text(15)
#define SUMS_ROW(row) #row "*4*" TEXT_OF(SUMS_PITCH) "(%[sums])"
#define LOAD_ROW(row) "vmovups " SUMS_ROW(row) ", %%zmm" #row "\n"
#define STORE_ROW(row) "vmovups %%zmm" #row ", " SUMS_ROW(row) "\n"
#define MULTIPLY_ROW(row) "vdpbf16ps " #row "*" TEXT_OF(LEFT_BYTES) "(%[row])%{1to16%}, %%zmm16, %%zmm" #row "\n"

static __attribute__((noinline)) void add_products(__local float *sums, __global const uchar *left,
                                                   __global const uchar *right, const int2 *places, const int count)
{
    __global const uchar *row, *column;
    size_t pairs, more = count;
    __asm__ volatile(
        EACH_ROW(LOAD_ROW)
        "1: movslq (%[places]), %[row]\n"
        "movslq 4(%[places]), %[column]\n"
        "lea (%[left], %[row], 4), %[row]\n"
        "lea (%[right], %[column], 4), %[column]\n"
        "mov $" TEXT_OF(PAIRS) ", %[pairs]\n"
        "2: vmovups (%[column]), %%zmm16\n"
        EACH_ROW(MULTIPLY_ROW)
        "add $4, %[row]\n"
        "add $" TEXT_OF(RIGHT_BYTES) ", %[column]\n"
        "dec %[pairs]\n"
        "jnz 2b\n"
        "add $8, %[places]\n"
        "dec %[more]\n"
        "jnz 1b\n"
        EACH_ROW(STORE_ROW)
        : [places] "+r"(places), [more] "+r"(more), [row] "=&r"(row), [column] "=&r"(column), [pairs] "=&r"(pairs)
        : [sums] "r"(sums), [left] "r"(left), [right] "r"(right)
        : "memory", "cc" CHANGED_REGISTERS);
}
/* clang-format on */

#else

INLINE float number_of(__global const uchar *row, const int i)
{
    return as_float((uint)((__global const ushort *)row)[i] << 16);
}

INLINE void add_products(__local float *sums, __global const uchar *left, __global const uchar *right,
                         const int2 *places, const int count)
{
    for (int k = 0; k < count; k++) {
        for (int row = 0; row < FRAGMENT; row++) {
            for (int i = 0; i < 2 * PAIRS; i++) {
                for (int column = 0; column < FRAGMENT; column++) {
                    sums[row * SUMS_PITCH + column] +=
                        number_of(left + 4L * places[k].x + row * LEFT_BYTES, i)
                        * number_of(right + 4L * places[k].y + i / 2 * RIGHT_BYTES, 2 * column + i % 2);
                }
            }
        }
    }
}

#endif

#define BEGIN_FRAGMENTS
#define CLEAR_SUMS(sums)                                              \
    for (int i = 0; i < FRAGMENT_ROWS * FRAGMENT * SUMS_PITCH; i++) { \
        (sums)[i] = 0;                                                \
    }
#define ADD_PRODUCTS(sums, columns, left, right, places, count)                            \
    for (int i = 0; i < FRAGMENT_ROWS; i++) {                                              \
        for (int j = 0; j < columns; j++) {                                                \
            add_products((sums) + i * FRAGMENT * SUMS_PITCH + j * FRAGMENT,                \
                         (__global const uchar *)(left) + i * LEFT_NEXT,                   \
                         (__global const uchar *)(right) + j * RIGHT_NEXT, places, count); \
        }                                                                                  \
    }
#define STORE_SUMS(sums)
#define END_FRAGMENTS

#endif
