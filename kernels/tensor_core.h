/*
 * Tensor cores of NVIDIA GPUs (compute capability 8.0) as inline PTX; and the same in plain OpenCL C, slowly, for tests
 * on other devices.
 *
 * A warp, 32 neighbouring work-items, multiplies 16 rows x 8 (left) with 8 x 8 columns (right). With g = lane / 4 and
 * t = lane % 4, work-item `lane` gives and gets
 *
 *     left   .s0 (g, t)   .s1 (g + 8, t)      .s2 (g, t + 4)   .s3 (g + 8, t + 4)      (row, k)
 *     right  [0] (t, g)   [1] (t + 4, g)                                               (k, column)
 *     sums   [0] (g, 2t)  [1] (g, 2t + 1)     [2] (g + 8, 2t)  [3] (g + 8, 2t + 1)     (row, column)
 *
 * Factors count as tf32: the sign, 8 bits of exponent and the first 10 of the fraction (tf32.h). Sums are fp32.
 *
 * Include it where ITEMS is the size of the work-group; local memory needs TENSOR_EXCHANGE floats for multiply_fragments.
 */
#include "tf32.h"
#include "warp.h"

#define LANE_ROW (LANE / 4)
#define LANE_COLUMN (LANE % 4)

#ifdef __NV_CL_C_VERSION

#define TENSOR_EXCHANGE 0
#define UNROLL _Pragma("unroll")

/* sums += left * right */
INLINE void multiply_fragments(real_t sums[4], const float4 left, const real_t right[2],
                               __local real_t *exchange)
{
    __asm__(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(as_uint(left.s0)), "r"(as_uint(left.s1)), "r"(as_uint(left.s2)), "r"(as_uint(left.s3)),
          "r"(as_uint(right[0])), "r"(as_uint(right[1])));
}

#else

#define TENSOR_EXCHANGE (6 * ITEMS)
/* NOTE: with a barrier in each step of the innermost loops, unrolled ones take drivers for CPUs many seconds to build. */
#define UNROLL

INLINE float as_tf32(const float value)
{
    return as_float(as_uint(value) & ~0x1FFF);
}

INLINE void multiply_fragments(real_t sums[4], const float4 left, const real_t right[2],
                               __local real_t *exchange)
{
    /* 16 rows of 8 and 8 columns of 8, a warp. */
    __local real_t *rows = exchange + get_local_id(0) / 32 * 192;
    __local real_t *columns = rows + 128;
    barrier(CLK_LOCAL_MEM_FENCE);
    rows[LANE_ROW * 8 + LANE_COLUMN] = as_tf32(left.s0);
    rows[(LANE_ROW + 8) * 8 + LANE_COLUMN] = as_tf32(left.s1);
    rows[LANE_ROW * 8 + LANE_COLUMN + 4] = as_tf32(left.s2);
    rows[(LANE_ROW + 8) * 8 + LANE_COLUMN + 4] = as_tf32(left.s3);
    columns[LANE_ROW * 8 + LANE_COLUMN] = as_tf32(right[0]);
    columns[LANE_ROW * 8 + LANE_COLUMN + 4] = as_tf32(right[1]);
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = 0; i < 4; i++) {
        const int row = LANE_ROW + i / 2 * 8;
        const int column = 2 * LANE_COLUMN + i % 2;
        for (int k = 0; k < 8; k++) {
            sums[i] += rows[row * 8 + k] * columns[column * 8 + k];
        }
    }
}

#endif
