/*
 * Batch normalization, backward, first stage: for every plane sum(delta) and sum(delta * normalized), with
 * normalized = (input - mean) / sqrt(variance + epsilon).
 *
 * Blobs:
 *   INPUT        read
 *   OUTPUT_DELTA read
 * Arrays:
 *   STATISTICS  read   (3, units): mean, what its rounding lost, 1 / sqrt(variance + epsilon)
 *   PARTIALS    write  (2, units, COUNT): both sums
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

__kernel void normalization_backward_plane_sums(READ_BLOB(input), READ_BLOB(output_delta),
                                                READ_ARRAY(real_t, statistics),
                                                WRITE_ARRAY(accumulator_t, partials), const int count)
{
    __local accumulator_t group[LOCAL_WIDTH * LOCAL_UNITS];
    const int n = get_global_id(2) / GLOBAL_UNITS;
    /* NOTE: barriers need every work-item: those behind the last sample repeat it and write nothing. */
    const int sample = min(n, count - 1);
    for (int z = get_global_id(2) % GLOBAL_UNITS; z < INPUT_UNIT_COUNT; z += GLOBAL_UNITS) {
        const accumulator_t mean = ARRAY(statistics)[z];
        const accumulator_t lost = ARRAY(statistics)[INPUT_UNIT_COUNT + z];
        __global const real_t *plane = input + BLOB_INDEX(INPUT, sample, z, 0, 0);
        __global const real_t *delta_plane = output_delta + BLOB_INDEX(OUTPUT_DELTA, sample, z, 0, 0);
        vector_t sums = 0;
        vector_t products = 0;
        for (int step = get_local_id(0); step < PLANE_STEPS; step += LOCAL_WIDTH) {
            const int y = STEP_Y(step);
            const int x = STEP_X(step);
            const vector_t values = VECTOR_LOAD(plane + y * INPUT_UNIT_MEMORY_WIDTH + x);
            const vector_t deltas = VECTOR_LOAD(delta_plane + y * OUTPUT_DELTA_UNIT_MEMORY_WIDTH + x);
            sums += WITHIN_ROW(x, deltas);
            products += WITHIN_ROW(x, deltas * ((values - mean) - lost));
        }
        const accumulator_t sum = GROUP_SUM(VECTOR_SUM(sums), group);
        const accumulator_t product = GROUP_SUM(VECTOR_SUM(products), group);
        if (n < count && get_local_id(0) == 0) {
            __global accumulator_t *partial = ARRAY(partials) + (size_t)z * count + n;
            partial[0] = sum;
            partial[(size_t)INPUT_UNIT_COUNT * count] = product * ARRAY(statistics)[2 * INPUT_UNIT_COUNT + z];
        }
    }
}
