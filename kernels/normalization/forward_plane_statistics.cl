/*
 * Batch normalization, forward in training, first stage: for every plane its mean and the sum of its squared
 * deviations, in two passes over the plane. The second pass also finds what rounding took from the mean, so
 * that data with a mean far larger than its deviation keeps its precision (Chan, Golub and LeVeque 1983).
 *
 * Blobs:
 *   INPUT  read
 * Arrays:
 *   PARTIALS  write  (3, units, COUNT): mean, what its rounding lost, sum of squared deviations
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   GLOBAL_UNITS  step along the units
 *   LOCAL_WIDTH   work-items that share a plane
 *   LOCAL_UNITS   planes of a work-group
 * Tunables:
 *   LANES  cpu 8, gpu 1 of 1 2 4 8: cells of a row that a work-item adds at once
 * Global:
 *   width  work-items that share a plane
 *   units  units (some of them, if a work-item does several) * COUNT
 * Local:
 *   width  all of the global width
 *   units  planes
 */
#include "blob.h"
#define PLANE_WIDTH INPUT_UNIT_WIDTH
#define PLANE_HEIGHT INPUT_UNIT_HEIGHT
#include "normalization/plane_sums.h"
#include "group_sum.h"

__kernel void normalization_forward_plane_statistics(READ_BLOB(input), WRITE_ARRAY(accumulator_t, partials),
                                                     const int count)
{
    __local accumulator_t group[LOCAL_WIDTH * LOCAL_UNITS];
    const int n = get_global_id(2) / GLOBAL_UNITS;
    /* NOTE: barriers need every work-item: those behind the last sample repeat it and write nothing. */
    const int sample = min(n, count - 1);
    for (int z = get_global_id(2) % GLOBAL_UNITS; z < INPUT_UNIT_COUNT; z += GLOBAL_UNITS) {
        __global const real_t *plane = input + BLOB_INDEX(INPUT, sample, z, 0, 0);
        vector_t sums = 0;
        for (int step = get_local_id(0); step < PLANE_STEPS; step += LOCAL_WIDTH) {
            const int x = STEP_X(step);
            const vector_t values = VECTOR_LOAD(plane + STEP_Y(step) * INPUT_UNIT_MEMORY_WIDTH + x);
            sums += WITHIN_ROW(x, values);
        }
        const accumulator_t mean = GROUP_SUM(VECTOR_SUM(sums), group) / INPUT_UNIT_ELEMENTS;
        vector_t squares = 0;
        sums = 0;
        for (int step = get_local_id(0); step < PLANE_STEPS; step += LOCAL_WIDTH) {
            const int x = STEP_X(step);
            const vector_t values = VECTOR_LOAD(plane + STEP_Y(step) * INPUT_UNIT_MEMORY_WIDTH + x);
            const vector_t deviations = WITHIN_ROW(x, values - mean);
            sums += deviations;
            squares += deviations * deviations;
        }
        const accumulator_t sum = GROUP_SUM(VECTOR_SUM(sums), group);
        const accumulator_t sum_of_squares = GROUP_SUM(VECTOR_SUM(squares), group);
        if (n < count && get_local_id(0) == 0) {
            const accumulator_t lost = sum / INPUT_UNIT_ELEMENTS;
            __global accumulator_t *partial = ARRAY(partials) + (size_t)z * count + n;
            partial[0] = mean;
            partial[(size_t)INPUT_UNIT_COUNT * count] = lost;
            partial[(size_t)INPUT_UNIT_COUNT * count * 2] = fmax(sum_of_squares - sum * lost, 0.0f);
        }
    }
}
