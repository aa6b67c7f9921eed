/*
 * The loop of the losses that are the mean of a term for each output of a sample; labels are targets of the
 * output's shape, and there are no classes to be right about. A kernel defines loss_term() before, which
 * gives the term and its slope by the output, and calls sample_loss() for its sample.
 */
#define ELEMENTS BLOB_ELEMENTS(OUTPUT)

INLINE void sample_loss(__global const real_t *output, const int output_unit_offset,
                        __global real_t *output_delta, const int output_delta_unit_offset,
                        __global const real_t *labels, __global real_t *sample_metrics, const int n,
                        const int count)
{
    __global const real_t *targets = labels + (size_t)n * ELEMENTS;
    const real_t scale = 1.0f / ELEMENTS;
    accumulator_t sum = 0;
    for (int z = 0; z < OUTPUT_UNIT_COUNT; z++) {
        for (int y = 0; y < OUTPUT_UNIT_HEIGHT; y++) {
            __global const real_t *values = output + BLOB_INDEX(OUTPUT, n, z, y, 0);
#if HAS_DELTA
            __global real_t *deltas = output_delta + BLOB_INDEX(OUTPUT_DELTA, n, z, y, 0);
#endif
            /* NOTE: sums of rows first, so that a large output does not lose small terms. */
            accumulator_t row_sum = 0;
            for (int x = 0; x < OUTPUT_UNIT_WIDTH; x++) {
                real_t slope;
                row_sum += loss_term(values[x], targets[x], &slope);
#if HAS_DELTA
                deltas[x] = slope * scale / count;
#endif
            }
            sum += row_sum;
            targets += OUTPUT_UNIT_WIDTH;
        }
    }
    __global real_t *metrics = sample_metrics + 3 * n;
    metrics[0] = sum * scale;
    metrics[1] = 0;
    metrics[2] = 0;
}
