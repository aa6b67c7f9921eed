/*
 * Adds the metrics of a batch to the running totals, in the order of the samples; the last total counts samples. Once
 * the first total is not finite, all stay as they are: the count then says which batch did that.
 *
 * Arrays:
 *   SAMPLE_METRICS  read    (COUNT, METRICS)
 *   TOTALS          update  METRICS sums, and the number of samples
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   METRICS  numbers a sample
 * Global:
 *   width  1
 */
#include "blob.h"

__kernel void loss_accumulate(READ_ARRAY(real_t, sample_metrics), WRITE_ARRAY(real_t, totals),
                              const int count)
{
    if (!isfinite(ARRAY(totals)[0])) {
        return;
    }
    accumulator_t sums[METRICS];
    for (int i = 0; i < METRICS; i++) {
        sums[i] = 0;
    }
    for (int n = 0; n < count; n++) {
        for (int i = 0; i < METRICS; i++) {
            sums[i] += ARRAY(sample_metrics)[n * METRICS + i];
        }
    }
    for (int i = 0; i < METRICS; i++) {
        ARRAY(totals)[i] += sums[i];
    }
    ARRAY(totals)[METRICS] += count;
}
