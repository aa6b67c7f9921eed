/*
 * The losses that are the mean of a term for each output of a sample; labels are targets of the output's
 * shape, and there are no classes to be right about. A kernel defines loss_term() before, which gives the
 * term and its slope by the output, and calls sample_loss().
 *
 * Blobs:
 *   OUTPUT        read
 *   OUTPUT_DELTA  write
 * Arrays:
 *   LABELS  read  targets: (COUNT, units, height, width)
 */
#include "loss/shared_classes.h"
#include "loss/partners.h"
#include "loss/parts.h"

#define BETWEEN(own, other) ((own) + partner_share * ((other) - (own)))

INLINE void sample_loss(__global const output_t *output, const int output_unit_offset,
                        __global output_delta_t *output_delta, const int output_delta_unit_offset,
                        __global const real_t *labels, __global const real_t *partner_shares,
                        __global const real_t *sample_weights, __global real_t *sample_metrics,
                        const real_t divisor, __local accumulator_t *group)
{
    const int n = get_global_id(2);
    /* The targets, and the weight, of a sample that is mixed lie between its own and those of its partner. */
    const real_t partner_share = partner_shares[n];
    const int partner = partner_share > 0 ? PARTNER(n) : n;
    const real_t weight = BETWEEN(sample_weights[n], sample_weights[partner]);
    const real_t scale = weight / (ROWS * OUTPUT_UNIT_WIDTH);
    accumulator_t sum = 0;
    for (int row = FIRST_ROW; row < END_ROW; row += ROW_STEP) {
        const int z = row / OUTPUT_UNIT_HEIGHT;
        const int y = row % OUTPUT_UNIT_HEIGHT;
        __global const output_t *values = output + BLOB_INDEX(OUTPUT, n, z, y, 0);
        __global const real_t *own = labels + ((size_t)n * ROWS + row) * OUTPUT_UNIT_WIDTH;
        __global const real_t *other = labels + ((size_t)partner * ROWS + row) * OUTPUT_UNIT_WIDTH;
#if HAS_DELTA
        __global output_delta_t *deltas = output_delta + BLOB_INDEX(OUTPUT_DELTA, n, z, y, 0);
#endif
        /* NOTE: sums of rows first, so that a large output does not lose small terms. */
        accumulator_t row_sum = 0;
        for (int x = FIRST_COLUMN; x < OUTPUT_UNIT_WIDTH; x += ROW_ITEMS) {
            real_t slope;
            row_sum += loss_term(READ_VALUE(values, x), BETWEEN(own[x], other[x]), &slope);
#if HAS_DELTA
            WRITE_VALUE(deltas, x, slope * scale / divisor);
#endif
        }
        sum += row_sum;
    }
    const bool is_first = PART == 0 && get_local_id(0) == 0;
    accumulator_t sums[METRICS] = {sum * scale, is_first ? weight : 0.0f, 0, 0, is_first ? 1.0f : 0.0f};
    put_metrics(sums, sample_metrics, n, group);
}
