/*
 * Batch normalization, forward in training, first stage: for every plane its mean and the sum of its squared
 * deviations, in one pass over it. Sums are of distances from the mean of four cells, and the mean comes with what
 * its rounding lost, so that data with a mean far larger than its deviation keeps its precision (Chan, Golub and
 * LeVeque 1983).
 *
 * Blobs, sizes as arguments:
 *   INPUT  read
 * Arrays:
 *   PARTIALS  write  (3, planes, COUNT): mean, what its rounding lost, sum of squared deviations
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   LOCAL_UNITS  planes of a work-group
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
#include "normalization/pair_sums.h"

#define QUARTER_CELL(rows, columns) \
    READ_VALUE(plane, (rows) * PLANE_HEIGHT / 4 * INPUT_UNIT_MEMORY_WIDTH + (columns) * PLANE_WIDTH / 4)

__kernel void normalization_forward_plane_statistics(READ_BLOB(input), WRITE_ARRAY(accumulator_t, partials),
                                                     const int count)
{
    PAIR_ROOM(room);
    const int unit = get_local_id(0);
    const int n = SAMPLE;
    /* NOTE: barriers need every work-item: those after the last sample repeat it and write nothing. */
    const int sample = min(n, count - 1);
    FOR_PLANES
    {
        __global const input_t *plane = input + BLOB_INDEX(INPUT, sample, z, 0, 0);
        /* NOTE: a single cell may be an outlier, above all at the border; in this order equal ones lose nothing. */
        const number_t origin =
            ((QUARTER_CELL(1, 1) + QUARTER_CELL(1, 3)) + (QUARTER_CELL(3, 1) + QUARTER_CELL(3, 3))) / 4;
        vector_t sums = 0;
        vector_t squares = 0;
#if LOCAL_WIDTH > 1
        /* NOTE: a GPU must have many loads under way (docs/performance.md). */
#pragma unroll 4
#endif
        FOR_STEPS
        {
            const vector_t distances = WITHIN_PLANE(STEP_LOAD(plane, INPUT) - origin);
            sums += distances;
            squares += distances * distances;
        }
        const number_pair_t both = (number_pair_t)(VECTOR_SUM(sums), VECTOR_SUM(squares));
        const float2 total = ROW_SUMS(both, room);
        if (n < count && unit < CELL_UNITS) {
            const real_t own = OF_OWN_UNIT(origin);
            const real_t relative = total.x / PLANE_CELLS;
            const real_t mean = own + relative;
            PARTIAL(0, z, unit, n) = mean;
            PARTIAL(1, z, unit, n) = (own - mean) + relative;
            PARTIAL(2, z, unit, n) = fmax(total.y - total.x * relative, 0.0f);
        }
    }
}
