/*
 * Batch normalization, backward, all of it for units of few values: a work-group reads its unit twice, the second time
 * from caches, for the sums of backward_plane_sums.cl and the result of backward_data.cl; may run in place. With
 * M = COUNT * height * width, deviation = sqrt(variance + epsilon), normalized = (input - mean) / deviation and
 * delta = output_delta * f'(normalized * scale + shift):
 * shift_gradient = sum(delta), scale_gradient = sum(delta * normalized),
 * input_delta = scale / deviation * (delta - shift_gradient / M - normalized * scale_gradient / M).
 *
 * Blobs, sizes as arguments:
 *   INPUT        read
 *   OUTPUT_DELTA read
 *   INPUT_DELTA  update
 * Arrays:
 *   STATISTICS      read   (3, units): mean, what its rounding lost, 1 / deviation
 *   SCALE           read   (units)
 *   SHIFT           read   (units)
 *   SCALE_GRADIENT  write  (units)
 *   SHIFT_GRADIENT  write  (units)
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   ACCUMULATE   1: add to INPUT_DELTA
 *   IN_PLACE     1: OUTPUT_DELTA is INPUT_DELTA
 *   SLOPE        f' of what the norm gave (blobnet/launch/elementwise.py)
 *   LOCAL_UNITS  planes of a unit that a work-group reads at a time
 * Tunables:
 *   LANES  loops 8, lanes 8 of 1 2 4 8: cells that a work-item adds at once
 *   CELLS  loops 1, lanes 8 of 1 2 4 8: cells whose deltas it makes at once
 * Global:
 *   width  work-items that share a plane
 *   units  units * LOCAL_UNITS
 * Local:
 *   width  all of the global width
 *   units  LOCAL_UNITS
 */
#include "blob.h"
#define PLANE INPUT
#include "normalization/plane_sums.h"
#include "in_place.h"
#include "put.h"
#include "normalization/normalized.h"
#include "normalization/pair_sums.h"
#include "normalization/unit_walk.h"

__kernel __attribute__((reqd_work_group_size(LOCAL_WIDTH, 1, LOCAL_UNITS))) void
normalization_backward_unit(READ_BLOB(input), READ_BLOB(output_delta), WRITE_BLOB(input_delta),
                            READ_ARRAY(real_t, statistics), READ_ARRAY(scale_t, scale),
                            READ_ARRAY(shift_t, shift), WRITE_ARRAY(real_t, scale_gradient),
                            WRITE_ARRAY(real_t, shift_gradient), const int count)
{
    PAIR_ROOM(room);
    LOAD_STATISTICS(UNIT);
    number_pair_t sums = 0;
    FOR_SAMPLES
    {
        __global const input_t *plane = input + BLOB_INDEX(INPUT, n, UNIT, 0, 0);
        __global const input_delta_t *to = input_delta + BLOB_INDEX(INPUT_DELTA, n, UNIT, 0, 0);
        __global const output_delta_t *delta_plane =
            IN_PLACE_OF(to, output_delta + BLOB_INDEX(OUTPUT_DELTA, n, UNIT, 0, 0));
        vector_t linear = 0;
        vector_t products = 0;
        FOR_STEPS
        {
            const vector_t centred = CENTRED(STEP_LOAD(plane, INPUT));
            const vector_t output_deltas = STEP_LOAD(delta_plane, OUTPUT_DELTA);
            const vector_t deltas = THROUGH_SLOPE(output_deltas, NORMALIZED(centred));
            linear += WITHIN_PLANE(deltas);
            products += WITHIN_PLANE(deltas * centred);
        }
        sums += (number_pair_t)(VECTOR_SUM(linear), VECTOR_SUM(products));
    }
    const number_pair_t total = GROUP_SUMS(sums, room);
    if (get_local_id(0) == 0 && get_local_id(2) == 0) {
        SET_UNIT_NUMBERS(total.lo, ARRAY(shift_gradient), UNIT);
        SET_UNIT_NUMBERS(total.hi * inverse, ARRAY(scale_gradient), UNIT);
    }
    const accumulator_t values = (accumulator_t)count * PLANE_CELLS;
    const number_t delta_mean = total.lo / values;
    const number_t slope = inverse * (total.hi * inverse / values);
    FOR_SAMPLES
    {
        __global const input_t *cells = input + BLOB_INDEX(INPUT, n, UNIT, 0, 0);
        __global input_delta_t *to = input_delta + BLOB_INDEX(INPUT_DELTA, n, UNIT, 0, 0);
        __global const output_delta_t *from =
            IN_PLACE_OF(to, output_delta + BLOB_INDEX(OUTPUT_DELTA, n, UNIT, 0, 0));
        FOR_UNIT_CELLS
        {
            MAKE_DELTAS(delta_mean, slope);
        }
    }
}
