/*
 * Statistics of a unit from those of its parts. All that they are made of is taken relative to one mean: differences are
 * small where the data's mean is large.
 */
#include "group_sum.h"
#include "normalization/statistics.h"

/*
 * Of a unit, from those of its planes, which all have as many cells: PARTIALS is (3, units, planes). NOTE: Oclgrind gives up
 * at what the compiler puts in where a struct is returned.
 */
INLINE void moments_of_unit(unit_moments_t *moments, __global const accumulator_t *partials, const int unit,
                            const int units, const int planes, const int cells, __local accumulator_t *group)
{
    __global const accumulator_t *means = partials + (size_t)unit * planes;
    __global const accumulator_t *lost = means + (size_t)units * planes;
    __global const accumulator_t *squares = lost + (size_t)units * planes;
    const accumulator_t origin = means[0];
    accumulator_t sum = 0;
    for (int n = get_local_id(0); n < planes; n += LOCAL_WIDTH) {
        sum += (means[n] - origin) + lost[n];
    }
    const accumulator_t relative = GROUP_SUM(sum, group) / planes;
    accumulator_t within = 0;
    accumulator_t between = 0;
    for (int n = get_local_id(0); n < planes; n += LOCAL_WIDTH) {
        const accumulator_t deviation = (means[n] - origin) + lost[n] - relative;
        within += squares[n];
        between += deviation * deviation;
    }
    moments->mean = origin + relative;
    moments->lost = (origin - moments->mean) + relative;
    moments->squares = GROUP_SUM(within, group) + cells * GROUP_SUM(between, group);
}
