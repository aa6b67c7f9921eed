/*
 * Batch normalization, backward, first stage: for every plane sum(delta) and sum(delta * normalized), with
 * normalized = (input - mean) / sqrt(variance + epsilon) and
 * delta = output_delta * f'(normalized * scale + shift).
 *
 * Blobs, sizes as arguments:
 *   INPUT        read
 *   OUTPUT_DELTA read
 * Arrays:
 *   STATISTICS  read   (3, units): mean, what its rounding lost, 1 / sqrt(variance + epsilon)
 *   SCALE       read   (units)
 *   SHIFT       read   (units)
 *   PARTIALS    write  (2, planes, COUNT): both sums
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   LOCAL_UNITS  planes of a work-group
 *   SLOPE        f' of what the norm gave (blobnet/launch/elementwise.py)
 * Tunables:
 *   LANES  loops 8, lanes 8 of 1 2 4 8: cells that a work-item adds at once
 * Global:
 *   width  work-items that share a plane
 *   units  units (some of them, if a work-item does several) * COUNT
 * Local:
 *   width  all of the global width
 *   units  planes
 */
#include "blob.h"
#define PLANE INPUT
#include "normalization/plane_sums.h"
#include "normalization/normalized.h"
#include "normalization/pair_sums.h"

__kernel void normalization_backward_plane_sums(READ_BLOB(input), READ_BLOB(output_delta),
                                                READ_ARRAY(real_t, statistics), READ_ARRAY(scale_t, scale),
                                                READ_ARRAY(shift_t, shift),
                                                WRITE_ARRAY(accumulator_t, partials), const int count)
{
    PAIR_ROOM(room);
    const int unit = get_local_id(0);
    const int n = SAMPLE;
    /* NOTE: barriers need every work-item: those after the last sample repeat it and write nothing. */
    const int sample = min(n, count - 1);
    FOR_PLANES
    {
        LOAD_STATISTICS(z);
        __global const input_t *plane = input + BLOB_INDEX(INPUT, sample, z, 0, 0);
        __global const output_delta_t *delta_plane = output_delta + BLOB_INDEX(OUTPUT_DELTA, sample, z, 0, 0);
        vector_t sums = 0;
        vector_t products = 0;
#if LOCAL_WIDTH > 1
        /* NOTE: a GPU must have many loads under way (docs/performance.md). */
#pragma unroll 2
#endif
        FOR_STEPS
        {
            const vector_t centred = CENTRED(STEP_LOAD(plane, INPUT));
            const vector_t output_deltas = STEP_LOAD(delta_plane, OUTPUT_DELTA);
            const vector_t normalized = NORMALIZED(centred);
            const vector_t deltas = THROUGH_SLOPE(output_deltas, normalized);
            sums += WITHIN_PLANE(deltas);
            products += WITHIN_PLANE(deltas * centred);
        }
        const number_pair_t both = (number_pair_t)(VECTOR_SUM(sums), VECTOR_SUM(products));
        const float2 total = ROW_SUMS(both, room);
        if (n < count && unit < CELL_UNITS) {
            PARTIAL(0, z, unit, n) = total.x;
            PARTIAL(1, z, unit, n) = total.y * OF_OWN_UNIT(inverse);
        }
    }
}
