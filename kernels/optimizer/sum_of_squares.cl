/*
 * The first stage of a norm: each work-group leaves the sum of its elements' squares, which is not finite where one of
 * them is not.
 * The elements between parameters are 0. All sums run in a fixed order.
 *
 * Arrays:
 *   GRADIENTS      read
 *   FACTORS        read   of the elements; not touched unless HAS_FACTORS
 *   CLIP_PARTIALS  write  one sum a work-group
 * Scalars:
 *   TRAINABLE_ELEMENTS
 *   GLOBAL_WIDTH        work-items
 * Macros:
 *   HAS_FACTORS
 *   LANES               elements of a vector
 *   RUN                 vectors in a row that a work-item does
 *   LOCAL_WIDTH         work-items of a group, a power of two
 * Global:
 *   width  runs
 * Local:
 *   width  runs of one sum
 */
#include "blob.h"
#include "group_sum.h"
#include "optimizer/runs.h"

__kernel __attribute__((reqd_work_group_size(LOCAL_WIDTH, 1, 1))) void
optimizer_sum_of_squares(READ_ARRAY(real_t, gradients), READ_ARRAY(real_t, factors),
                         WRITE_ARRAY(real_t, clip_partials), const int trainable_elements,
                         const int global_width)
{
    __local accumulator_t group[LOCAL_WIDTH];
    vector_t squares = 0;
    for (int run = get_global_id(0); run < RUNS; run += GLOBAL_WIDTH) {
        for (int i = RUN_BEGIN(run); i < RUN_END(run); i += LANES) {
            const vector_t slope = VECTOR_LOAD(ARRAY(gradients) + i);
            const vector_t gradient = HAS_FACTORS ? slope * VECTOR_LOAD(ARRAY(factors) + i) : slope;
            squares += gradient * gradient;
        }
    }
    const accumulator_t sum = GROUP_SUM(VECTOR_SUM(squares), group);
    if (get_local_id(0) == 0) {
        ARRAY(clip_partials)[get_group_id(0)] = sum;
    }
}
