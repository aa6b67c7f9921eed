/*
 * Adds the metrics of a batch to the running totals, in the order of the samples; the last total counts samples. Once
 * the first total is not finite, all stay as they are: the count then says which batch did that.
 *
 * Arrays:
 *   SAMPLE_METRICS  read    (COUNT, PARTS, METRICS)
 *   TOTALS          update  METRICS sums, and the number of samples
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   METRICS  numbers a part
 *   PARTS    of a sample
 * Global:
 *   width  METRICS + 1
 * Local:
 *   width  all of them
 */
#include "blob.h"

__kernel __attribute__((reqd_work_group_size(METRICS + 1, 1, 1))) void
loss_accumulate(READ_ARRAY(real_t, sample_metrics), WRITE_ARRAY(real_t, totals), const int count)
{
    const int i = get_local_id(0);
    const bool goes_on = isfinite(ARRAY(totals)[0]);
    /* The first work-item changes what all of them have looked at. */
    barrier(CLK_GLOBAL_MEM_FENCE);
    accumulator_t sum = i < METRICS ? 0 : count;
    if (i < METRICS) {
        for (int part = 0; part < count * PARTS; part++) {
            sum += ARRAY(sample_metrics)[part * METRICS + i];
        }
    }
    if (goes_on) {
        ARRAY(totals)[i] += sum;
    }
}
