/*
 * What is left to do for a loss whose value for each sample compiled kernels give: the metrics, and the
 * delta of that value, with which compiled kernels go back to the output.
 *
 * Arrays:
 *   SAMPLE_WEIGHTS  read   (COUNT)
 *   LOSSES          read   (COUNT)
 *   LOSS_DELTAS     write  (COUNT)
 *   SAMPLE_METRICS  write  (COUNT, METRICS)
 * Scalars:
 *   DIVISOR  what the sum of the samples' losses is divided by: the sum of their weights
 * Macros:
 *   METRICS  numbers a sample: the weighted loss, its weight, how many were right twice over, and how many there were
 * Global:
 *   units  samples
 */
#include "blob.h"
#include "loss/scale.h"

__kernel void loss_expression(READ_ARRAY(real_t, sample_weights), READ_ARRAY(real_t, losses),
                              WRITE_ARRAY(real_t, loss_deltas), WRITE_ARRAY(real_t, sample_metrics),
                              READ_ARRAY(real_t, loss_scale), const float divisor)
{
    const int n = get_global_id(2);
    const real_t weight = ARRAY(sample_weights)[n];
    const real_t metrics[METRICS] = {weight * ARRAY(losses)[n], weight, 0, 0, 1};
    for (int i = 0; i < METRICS; i++) {
        ARRAY(sample_metrics)[n * METRICS + i] = metrics[i];
    }
    ARRAY(loss_deltas)[n] = weight / DELTA_DIVISOR;
}
