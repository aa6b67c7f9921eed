/*
 * Tensor cores of NVIDIA GPUs of compute capability 9.0, whose factors lie in local memory: instructions that NVIDIA's
 * OpenCL compiler does not know. They stand in its assembly as comments, which blobnet/device/splice.py makes
 * instructions. The same in plain OpenCL C, slowly, for tests on other devices.
 *
 * A *cell* is 16 bytes: CELL numbers of one row or column, 8 of bfloat16 (with HALVES of float16) or 4 of tf32. A warp
 * group, 128 neighbouring work-items, multiplies 64 rows x 2 cells (left) with 2 cells x SUM_COLUMNS columns (right).
 * Cells of rows lie side by side: cell k of row or column i is factor[k * stride + i].
 *
 * With g = lane / 4, t = lane % 4 and w = the warp's number in its group, work-item `lane` gets, for j < SUM_COLUMNS / 8,
 *
 *     sums   [4j] (16w + g, 8j + 2t)   [4j + 1] (16w + g, 8j + 2t + 1)   [4j + 2], [4j + 3] the same of row 16w + g + 8
 *
 * Numbers of tf32 are floats of which the sign, 8 bits of exponent and the first 10 of the fraction count. Sums are fp32.
 * Products go on in the background:
 *
 *     BEGIN_PRODUCTS()                  once factors are there: after the barrier, or the signal
 *     multiply_cells(...)               sums += left * right
 *     END_PRODUCTS()
 *     AWAIT_PRODUCTS(MOST)              until all but the last MOST of them are done: their factors may be overwritten
 *     await_sums(sums)                  until all are done: sums may be read
 *
 * Where cells are of CELL rows, or columns, at one position (a gradient's), HELD_POSITIONS are multiplied at once. Sum `i`
 * is that of row ROW_OF_SUM(i) and column COLUMN_OF_SUM(i). Of 16 bits these go on in the background, too:
 *
 *     rows = hold_rows(...)             cells of positions side by side, those of the next rows `stride` further, in registers
 *     BEGIN_ROWS()                      once all are held
 *     multiply_rows(...)                sums += rows * right, whose cells are of columns
 *     END_ROWS()
 *     AWAIT_ROWS()                      until all are done: what they read may be overwritten
 *
 * Copies of whole cells, which one work-item begins, go on in the background too (COPIES_AHEAD). A *signal* in local memory
 * fills when so many have given it as it was made for, and all cells have come that it expects; await_signal waits until it
 * has filled `turn` + 1 times, and may be one turn behind at most. Where copies do not go ahead they are made between a
 * barrier and await_signal, which is a barrier then: all work-items must reach it.
 *
 * Cells that do not lie side by side are copied one by one (copy_cell), by any work-item: give_copied gives a signal once those
 * that the work-item has begun have come, and who has awaited it calls SHOW_COPIED() before products read them.
 */
#include "text.h"
#include "warp.h"
#define GROUP_WARPS 4
#define GROUP_ITEMS (GROUP_WARPS * WARP_ITEMS)
#define LANE_ROW (LANE / 4)
#define LANE_COLUMN (LANE % 4)
#define SUM_REGISTERS (SUM_COLUMNS / 2)
typedef uint4 cell_t;

/* LIST_PITCH: how far from list to list of so many cells, for hold_rows and multiply_rows. */
#if CELL == 8
#define HELD_POSITIONS 16
#define ROW_OF_SUM(i) (WARP % GROUP_WARPS * 16 + LANE_ROW + (i) / 2 % 2 * 8)
#define COLUMN_OF_SUM(i) ((i) / 4 * 8 + LANE_COLUMN * 2 + (i) % 2)
#define LIST_PITCH(cells) (cells)
#else
#define HELD_POSITIONS 8
#define ROW_OF_SUM(i) \
    (WARP % GROUP_WARPS / 2 * 32 + LANE_ROW * 4 + (i) / (SUM_REGISTERS / 2) * 2 + (i) / 2 % 2)
#define COLUMN_OF_SUM(i)                                                                                  \
    (WARP % 2 * (SUM_COLUMNS / 2) + (i) % (SUM_REGISTERS / 2) / 16 * 32 + (LANE_COLUMN * 2 + (i) % 2) * 4 \
     + (i) / 4 % 4)
/* The cells that neighbouring lanes load are in different banks: 4 more than a multiple of 8. */
#define LIST_PITCH(cells) (((cells) + 3) / 8 * 8 + 4)
#endif

#ifdef __NV_CL_C_VERSION

#define UNROLL _Pragma("unroll")

/* Whether copies go on in the background. */
#define COPIES_AHEAD 1

/* "+f" for 16 sums, and their names in the assembly. */
#define SUMS_8(s, i)                                                                            \
    "+f"(s[i]), "+f"(s[i + 1]), "+f"(s[i + 2]), "+f"(s[i + 3]), "+f"(s[i + 4]), "+f"(s[i + 5]), \
        "+f"(s[i + 6]), "+f"(s[i + 7])
#define SUMS_16(s, i) SUMS_8(s, i), SUMS_8(s, i + 8)
#define NAMES_0 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define NAMES_16 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define NAMES_32 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define NAMES_48 "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define NAMES_64 "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define NAMES_80 "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define NAMES_96 "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111"
#define NAMES_112 "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#if SUM_COLUMNS == 32
#define SUM_NAMES NAMES_0
#define ALL_SUMS(s) SUMS_16(s, 0)
#define FACTOR_NAMES "%16, %17"
#define ROWS_NAMES "{%16, %17, %18, %19}, %20"
#elif SUM_COLUMNS == 64
#define SUM_NAMES NAMES_0 "," NAMES_16
#define ALL_SUMS(s) SUMS_16(s, 0), SUMS_16(s, 16)
#define FACTOR_NAMES "%32, %33"
#define ROWS_NAMES "{%32, %33, %34, %35}, %36"
#elif SUM_COLUMNS == 96
#define SUM_NAMES NAMES_0 "," NAMES_16 "," NAMES_32
#define ALL_SUMS(s) SUMS_16(s, 0), SUMS_16(s, 16), SUMS_16(s, 32)
#define FACTOR_NAMES "%48, %49"
#define ROWS_NAMES "{%48, %49, %50, %51}, %52"
#elif SUM_COLUMNS == 128
#define SUM_NAMES NAMES_0 "," NAMES_16 "," NAMES_32 "," NAMES_48
#define ALL_SUMS(s) SUMS_16(s, 0), SUMS_16(s, 16), SUMS_16(s, 32), SUMS_16(s, 48)
#define FACTOR_NAMES "%64, %65"
#define ROWS_NAMES "{%64, %65, %66, %67}, %68"
#elif SUM_COLUMNS == 192
#define SUM_NAMES NAMES_0 "," NAMES_16 "," NAMES_32 "," NAMES_48 "," NAMES_64 "," NAMES_80
#define ALL_SUMS(s) \
    SUMS_16(s, 0), SUMS_16(s, 16), SUMS_16(s, 32), SUMS_16(s, 48), SUMS_16(s, 64), SUMS_16(s, 80)
#define FACTOR_NAMES "%96, %97"
#define ROWS_NAMES "{%96, %97, %98, %99}, %100"
#elif SUM_COLUMNS == 256
#define SUM_NAMES \
    NAMES_0 "," NAMES_16 "," NAMES_32 "," NAMES_48 "," NAMES_64 "," NAMES_80 "," NAMES_96 "," NAMES_112
#define ALL_SUMS(s)                                                                                \
    SUMS_16(s, 0), SUMS_16(s, 16), SUMS_16(s, 32), SUMS_16(s, 48), SUMS_16(s, 64), SUMS_16(s, 80), \
        SUMS_16(s, 96), SUMS_16(s, 112)
#define FACTOR_NAMES "%128, %129"
#define ROWS_NAMES "{%128, %129, %130, %131}, %132"
#endif
/* With units of both factors behind one another, as here. */
#if CELL == 8 && HALVES
#define SHAPE_AND_TYPES "k16.f32.f16.f16"
#elif CELL == 8
#define SHAPE_AND_TYPES "k16.f32.bf16.bf16"
#endif
#if CELL == 8
#define BOTH_AS_THEY_LIE ", 0, 0"
#else
#define SHAPE_AND_TYPES "k8.f32.tf32.tf32"
#define BOTH_AS_THEY_LIE ""
#endif

/* An instruction of compute capability 9.0: see blobnet/device/splice.py. */
#define INSTRUCTION(text) "//sm_90a " text ";"

#define BEGIN_PRODUCTS() __asm__ volatile(INSTRUCTION("wgmma.fence.sync.aligned") : : : "memory")
#define END_PRODUCTS() __asm__ volatile(INSTRUCTION("wgmma.commit_group.sync.aligned") : : : "memory")
#define AWAIT_PRODUCTS(MOST) \
    __asm__ volatile(INSTRUCTION("wgmma.wait_group.sync.aligned " TEXT_OF(MOST)) : : : "memory")

/* Where a factor lies: its address, how far it is to the next cells, and to the next eight rows or columns, in bytes. */
INLINE ulong place_of_cells(__local const cell_t *cells, const uint leading, const uint stride)
{
    return (((uint)(size_t)cells & 0x3FFFF) >> 4) | (ulong)(leading >> 4) << 16 | (ulong)(stride >> 4) << 32;
}

INLINE void multiply_cells(real_t sums[SUM_REGISTERS], __local const cell_t *left, const uint left_stride,
                           __local const cell_t *right, const uint right_stride)
{
    const ulong left_place = place_of_cells(left, left_stride * 16, 128);
    const ulong right_place = place_of_cells(right, right_stride * 16, 128);
    __asm__ volatile(INSTRUCTION("wgmma.mma_async.sync.aligned.m64n" TEXT_OF(SUM_COLUMNS) SHAPE_AND_TYPES
                                 " {" SUM_NAMES "}, " FACTOR_NAMES ", 1, 1, 1" BOTH_AS_THEY_LIE)
                     : ALL_SUMS(sums)
                     : "l"(left_place), "l"(right_place)
                     : "memory");
}

#if CELL == 4
/*
 * NOTE: these products take no factor whose rows lie side by side: a warp loads both, and multiplies 32 rows with half of the
 * columns. Lane (g, t) loads cell g of positions t and t + 4, whose four rows are g and g + 8 of two products of 16 x 8.
 */
#define BEGIN_ROWS()
#define END_ROWS()
#define AWAIT_ROWS() WARP_BARRIER()
typedef struct {
    float4 near;
    float4 far;
} rows_t;

INLINE rows_t hold_rows(__local const cell_t *left, const uint left_stride)
{
    __local const cell_t *from = left + (WARP % GROUP_WARPS / 2 * 8 + LANE_ROW) * left_stride + LANE_COLUMN;
    rows_t rows;
    rows.near = as_float4(from[0]);
    rows.far = as_float4(from[4]);
    return rows;
}

#define MULTIPLY_FRAGMENTS(sums, left_0, left_1, left_2, left_3, right_0, right_1)                    \
    __asm__("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, " \
            "{%8, %9}, {%0, %1, %2, %3};"                                                             \
            : "+f"((sums)[0]), "+f"((sums)[1]), "+f"((sums)[2]), "+f"((sums)[3])                      \
            : "r"(as_uint(left_0)), "r"(as_uint(left_1)), "r"(as_uint(left_2)), "r"(as_uint(left_3)), \
              "r"(as_uint(right_0)), "r"(as_uint(right_1)))
#define MULTIPLY_COLUMNS(place, unit)                                                                   \
    MULTIPLY_FRAGMENTS(sums + (place), rows.near.s0, rows.near.s1, rows.far.s0, rows.far.s1, near.unit, \
                       far.unit);                                                                       \
    MULTIPLY_FRAGMENTS(sums + SUM_REGISTERS / 2 + (place), rows.near.s2, rows.near.s3, rows.far.s2,     \
                       rows.far.s3, near.unit, far.unit)

INLINE void multiply_rows(real_t sums[SUM_REGISTERS], const rows_t rows, const uint left_stride,
                          __local const cell_t *right, const uint right_stride)
{
    __local const cell_t *from =
        right + (WARP % 2 * (SUM_COLUMNS / 8) + LANE_ROW) * right_stride + LANE_COLUMN;
    UNROLL
    for (int i = 0; i < SUM_REGISTERS / 2; i += 16) {
        const float4 near = as_float4(from[i / 2 * right_stride]);
        const float4 far = as_float4(from[i / 2 * right_stride + 4]);
        MULTIPLY_COLUMNS(i, s0);
        MULTIPLY_COLUMNS(i + 4, s1);
        MULTIPLY_COLUMNS(i + 8, s2);
        MULTIPLY_COLUMNS(i + 12, s3);
    }
}
#else
#define BEGIN_ROWS() BEGIN_PRODUCTS()
#define END_ROWS() END_PRODUCTS()
#define AWAIT_ROWS() AWAIT_PRODUCTS(0)
/* Matrices of 8 x 8: rows 0 and 8 of the warp's 16, at positions 0 and then 8. */
typedef uint4 rows_t;

INLINE rows_t hold_rows(__local const cell_t *left, const uint left_stride)
{
    __local const cell_t *from =
        left + (WARP % GROUP_WARPS * 2 + LANE / 8 % 2) * left_stride + LANE / 16 * 8 + LANE % 8;
    rows_t rows;
    __asm__ volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(rows.x), "=r"(rows.y), "=r"(rows.z), "=r"(rows.w)
                     : "r"((uint)(size_t)from)
                     : "memory");
    return rows;
}

INLINE void multiply_rows(real_t sums[SUM_REGISTERS], const rows_t rows, const uint left_stride,
                          __local const cell_t *right, const uint right_stride)
{
    const ulong right_place = place_of_cells(right, 128, right_stride * 16);
    __asm__ volatile(INSTRUCTION("wgmma.mma_async.sync.aligned.m64n" TEXT_OF(SUM_COLUMNS) SHAPE_AND_TYPES
                                 " {" SUM_NAMES "}, " ROWS_NAMES ", 1, 1, 1, 1")
                     : ALL_SUMS(sums)
                     : "r"(rows.x), "r"(rows.y), "r"(rows.z), "r"(rows.w), "l"(right_place)
                     : "memory");
}
#endif

INLINE void await_sums(real_t sums[SUM_REGISTERS])
{
    __asm__ volatile(INSTRUCTION("wgmma.wait_group.sync.aligned 0") : ALL_SUMS(sums) : : "memory");
}

typedef ulong signal_t;

INLINE void init_signal(__local signal_t *signal, const uint count)
{
    __asm__ volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
                     :
                     : "r"((uint)(size_t)signal), "r"(count)
                     : "memory");
}

/* One of the `count` that fill a signal. */
INLINE void give_signal(__local signal_t *signal)
{
    __asm__ volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" : : "r"((uint)(size_t)signal) : "memory");
}

/* A barrier of the work-items of a warp group alone. */
INLINE void await_warp_group(void)
{
    __asm__ volatile("bar.sync %0, %1;" : : "r"(1 + WARP / GROUP_WARPS), "n"(GROUP_ITEMS) : "memory");
}

/* After signals are there, before the barrier that others wait at. */
#define SHOW_SIGNALS() \
    __asm__ volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async;" : : : "memory")

/* Has a signal wait for the copies of so many cells, which follow. */
INLINE void expect_cells(__local signal_t *signal, const uint count)
{
    __asm__ volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                     :
                     : "r"((uint)(size_t)signal), "r"(count * 16)
                     : "memory");
}

/* Begins to copy cells that lie side by side. */
INLINE void copy_cells(__local cell_t *to, __global const cell_t *from, const uint count,
                       __local signal_t *signal)
{
    __asm__ volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                     :
                     : "r"((uint)(size_t)to), "l"(from), "r"(count * 16), "r"((uint)(size_t)signal)
                     : "memory");
}

/* Begins to copy a cell, or to put zeros there. */
INLINE void copy_cell(__local cell_t *to, __global const cell_t *from, const bool is_there)
{
    __asm__ volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;"
                     :
                     : "r"((uint)(size_t)to), "l"(from), "r"(is_there ? 16 : 0)
                     : "memory");
}

INLINE void give_copied(__local signal_t *signal)
{
    __asm__ volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];"
                     :
                     : "r"((uint)(size_t)signal)
                     : "memory");
}

#if SCATTERED
#define SHOW_COPIED() __asm__ volatile("fence.proxy.async.shared::cta;" : : : "memory")
#else
#define SHOW_COPIED()
#endif

/* Waits until a signal has filled `turn` + 1 times. */
INLINE void await_signal(__local signal_t *signal, const uint turn)
{
    __asm__ volatile("{\n"
                     ".reg .pred done;\n"
                     "AGAIN:\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                     "@!done bra AGAIN;\n"
                     "}"
                     :
                     : "r"((uint)(size_t)signal), "r"(turn % 2)
                     : "memory");
}

#else

/* NOTE: unrolled, such loops take drivers for CPUs many seconds to build. */
#define UNROLL

/* The work-item that copies does so at once: others see it after the barrier at which they wait. */
#define COPIES_AHEAD 0
typedef int signal_t;
#define init_signal(signal, count)
#define give_signal(signal)
#define SHOW_SIGNALS()
#define expect_cells(signal, count)
#define give_copied(signal)
#define SHOW_COPIED()
#define await_signal(signal, turn) barrier(CLK_LOCAL_MEM_FENCE)

INLINE void copy_cells(__local cell_t *to, __global const cell_t *from, const uint count,
                       __local signal_t *signal)
{
    for (uint i = 0; i < count; i++) {
        to[i] = from[i];
    }
}

INLINE void copy_cell(__local cell_t *to, __global const cell_t *from, const bool is_there)
{
    *to = is_there ? *from : (cell_t)(0);
}

/* NOTE: two barriers, which say no more than one: after one PoCL 3.1 gets backward data that adds to a blob wrong. */
#define await_warp_group()        \
    barrier(CLK_LOCAL_MEM_FENCE); \
    barrier(CLK_LOCAL_MEM_FENCE)
#define BEGIN_PRODUCTS()
#define END_PRODUCTS()
#define AWAIT_PRODUCTS(MOST)
#define BEGIN_ROWS()
#define END_ROWS()
#define AWAIT_ROWS()

/* Number i of a cell. */
INLINE float number_of_cell(__local const cell_t *cell, const int i)
{
#if CELL == 4
    return as_float(((__local const uint *)cell)[i] & ~0x1FFFu);
#elif HALVES
    return vload_half(i, (__local const half *)cell);
#else
    return as_float((uint)((__local const ushort *)cell)[i] << 16);
#endif
}

INLINE void multiply_cells(real_t sums[SUM_REGISTERS], __local const cell_t *left, const uint left_stride,
                           __local const cell_t *right, const uint right_stride)
{
    for (int i = 0; i < SUM_REGISTERS; i++) {
        __local const cell_t *row = left + WARP % GROUP_WARPS * 16 + LANE_ROW + i / 2 % 2 * 8;
        __local const cell_t *column = right + i / 4 * 8 + LANE_COLUMN * 2 + i % 2;
        for (int k = 0; k < 2 * CELL; k++) {
            sums[i] += number_of_cell(row + k / CELL * left_stride, k % CELL)
                       * number_of_cell(column + k / CELL * right_stride, k % CELL);
        }
    }
}

typedef __local const cell_t *rows_t;

INLINE rows_t hold_rows(__local const cell_t *left, const uint left_stride)
{
    return left;
}

INLINE void multiply_rows(real_t sums[SUM_REGISTERS], const rows_t rows, const uint left_stride,
                          __local const cell_t *right, const uint right_stride)
{
    for (int i = 0; i < SUM_REGISTERS; i++) {
        const int row = ROW_OF_SUM(i);
        const int column = COLUMN_OF_SUM(i);
        for (int k = 0; k < HELD_POSITIONS; k++) {
            sums[i] += number_of_cell(rows + row / CELL * left_stride + k, row % CELL)
                       * number_of_cell(right + column / CELL * right_stride + k, column % CELL);
        }
    }
}

INLINE void await_sums(real_t sums[SUM_REGISTERS])
{
}

#endif
