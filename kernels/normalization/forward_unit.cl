/*
 * Batch normalization, forward in training, all of it for units of few values: a work-group reads its unit twice, the
 * second time from caches. First for the statistics, from the sums of distances from the mean of some cells of four
 * samples (see forward_plane_statistics.cl and forward_statistics.cl), then for
 * output = epilogue((input - mean) / sqrt(variance + epsilon) * scale + shift).
 *
 * Blobs, sizes as arguments everywhere:
 *   INPUT    read
 *   RESIDUAL read   if HAS_RESIDUAL
 *   OUTPUT   write
 * Arrays:
 *   STATISTICS        write   (3, UNITS): mean, what its rounding lost, 1 / sqrt(variance + EPSILON)
 *   RUNNING_MEAN      update  (UNITS)
 *   RUNNING_VARIANCE  update  (UNITS)
 *   SCALE             read    (UNITS)
 *   SHIFT             read    (UNITS)
 * Scalars:
 *   COUNT  samples in this batch
 *   UNITS
 * Macros:
 *   MOMENTUM     weight of this batch in the running statistics
 *   EPSILON      added to the variance
 *   LOCAL_UNITS  planes of a unit that a work-group reads at a time
 * Tunables:
 *   LANES  loops 8, lanes 8 of 1 2 4 8: cells that a work-item adds at once
 *   CELLS  loops 1, lanes 8 of 1 2 4 8: cells that it normalizes at once
 * Global:
 *   width  work-items that share a plane
 *   units  UNITS * LOCAL_UNITS
 * Local:
 *   width  all of the global width
 *   units  LOCAL_UNITS
 */
#include "blob.h"
#define PLANE INPUT
#include "normalization/plane_sums.h"
#include "normalization/normalized.h"
#include "normalization/statistics.h"
#include "normalization/pair_sums.h"
#include "normalization/unit_walk.h"
#include "joined.h"

/* A cell of one of four samples, in a quarter of its plane: each has others. */
#define PART_OF(size, quarters, number) (((quarters) * 4 - 2 + (number)) * (size) / 16)
#define QUARTER_CELL(number, rows, columns)                                                              \
    READ_VALUE(input, BLOB_INDEX(INPUT, (number) * count / 4, UNIT, PART_OF(PLANE_HEIGHT, rows, number), \
                                 PART_OF(PLANE_WIDTH, columns, number)))
#define FROM_FIRST(number, rows, columns) (QUARTER_CELL(number, rows, columns) - first_cell)

__kernel __attribute__((reqd_work_group_size(LOCAL_WIDTH, 1, LOCAL_UNITS))) void
normalization_forward_unit(READ_BLOB(input), READ_BLOB(residual), WRITE_BLOB(output),
                           WRITE_ARRAY(real_t, statistics), WRITE_ARRAY(real_t, running_mean),
                           WRITE_ARRAY(real_t, running_variance), READ_ARRAY(scale_t, scale),
                           READ_ARRAY(shift_t, shift) MORE_ARRAYS, const int count, const int units)
{
    PAIR_ROOM(room);
    /* NOTE: a single cell may be an outlier, above all at the border. Where all are equal, nothing is lost. */
    const number_t first_cell = QUARTER_CELL(0, 1, 1);
    number_t distance = 0;
    for (int number = 0; number < 4; number++) {
        distance += (FROM_FIRST(number, 1, 1) + FROM_FIRST(number, 1, 3))
                    + (FROM_FIRST(number, 3, 1) + FROM_FIRST(number, 3, 3));
    }
    const number_t origin = first_cell + distance / 16;
    number_pair_t sums = 0;
    FOR_SAMPLES
    {
        __global const input_t *plane = input + BLOB_INDEX(INPUT, n, UNIT, 0, 0);
        vector_t linear = 0;
        vector_t squares = 0;
        FOR_STEPS
        {
            const vector_t distances = WITHIN_PLANE(STEP_LOAD(plane, INPUT) - origin);
            linear += distances;
            squares += distances * distances;
        }
        sums += (number_pair_t)(VECTOR_SUM(linear), VECTOR_SUM(squares));
    }
    const number_pair_t total = GROUP_SUMS(sums, room);
    const accumulator_t values = (accumulator_t)count * PLANE_CELLS;
    const number_t relative = total.lo / values;
    const number_t mean = origin + relative;
    const number_t lost = (origin - mean) + relative;
    const unit_moments_t moments = {mean, lost, fmax(total.hi - total.lo * relative, 0.0f)};
    if (get_local_id(0) == 0 && get_local_id(2) == 0) {
        STORE_STATISTICS(UNIT, moments, values);
    }
    const number_t factor = INVERSE_DEVIATION(moments, values) * UNIT_NUMBERS(ARRAY(scale), UNIT);
    const number_t term = UNIT_NUMBERS(ARRAY(shift), UNIT);
    FOR_SAMPLES
    {
        __global const input_t *from = input + BLOB_INDEX(INPUT, n, UNIT, 0, 0);
        __global const residual_t *terms = residual + RESIDUAL_INDEX(n, UNIT, 0, 0);
        __global output_t *to = output + BLOB_INDEX(OUTPUT, n, UNIT, 0, 0);
        FOR_UNIT_CELLS
        {
            NORMALIZE_CELLS(UNIT);
        }
    }
}
