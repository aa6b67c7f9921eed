/*
 * Batch normalization, forward in training, second stage: the statistics of every unit from those of its
 * planes, in the order of the samples (Chan, Golub and LeVeque 1983; all planes have as many cells, M =
 * COUNT * CELLS in all):
 *
 *     mean = sum(plane means) / COUNT
 *     variance = (sum(plane squares) + CELLS * sum((plane mean - mean)^2)) / M
 *     running_mean += MOMENTUM * (mean - running_mean)
 *     running_variance += MOMENTUM * (variance * M / (M - 1) - running_variance)
 *
 * A single value (M = 1) has variance 0, in running_variance too.
 *
 * Arrays:
 *   PARTIALS          read    (3, UNITS, DEPTH, COUNT): mean, what its rounding lost, squares of a plane
 *   STATISTICS        write   (3, UNITS): mean, what its rounding lost, 1 / sqrt(variance + EPSILON)
 *   RUNNING_MEAN      update  (UNITS)
 *   RUNNING_VARIANCE  update  (UNITS)
 * Scalars:
 *   COUNT  samples in this batch
 *   UNITS
 *   CELLS        values in a plane
 * Macros:
 *   DEPTH        planes of a unit
 *   MOMENTUM     weight of this batch in the running statistics
 *   EPSILON      added to the variance
 *   LOCAL_WIDTH  work-items that share a unit
 *   LOCAL_UNITS  units of a work-group
 * Global:
 *   width  work-items that share a unit
 *   units  UNITS
 * Local:
 *   width  all of the global width
 *   units  units
 */
#include "blob.h"
#include "normalization/moments.h"
#include "normalization/unit_planes.h"

__kernel void normalization_forward_statistics(READ_ARRAY(accumulator_t, partials),
                                               WRITE_ARRAY(real_t, statistics),
                                               WRITE_ARRAY(real_t, running_mean),
                                               WRITE_ARRAY(real_t, running_variance), const int count,
                                               const int units, const int cells)
{
    __local accumulator_t group[LOCAL_WIDTH * LOCAL_UNITS];
    const int z = get_global_id(2);
    /* NOTE: barriers need every work-item: those after the last unit repeat it and write nothing. */
    unit_moments_t moments;
    moments_of_unit(&moments, ARRAY(partials), min(z, UNITS - 1), UNITS, UNIT_PLANES, CELLS, group);
    if (z < UNITS && get_local_id(0) == 0) {
        const accumulator_t values = (accumulator_t)UNIT_PLANES * CELLS;
        STORE_STATISTICS(z, moments, values);
    }
}
