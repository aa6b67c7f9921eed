/*
 * Softmax cross-entropy from logits: delta = (softmax(output) - target) / COUNT, and the metrics of each sample.
 * The target is 1 - s + s/C for the label and s/C for the others (s: LABEL_SMOOTHING, C: units).
 *
 * Blobs:
 *   OUTPUT       read    logits, height and width 1
 *   OUTPUT_DELTA write
 * Arrays:
 *   LABELS          read   class numbers, int32
 *   SAMPLE_METRICS  write  (COUNT, 3): loss, label has the largest logit, label is among the five largest
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   LABEL_SMOOTHING
 *   HAS_DELTA  0: only the metrics
 * Global:
 *   units  COUNT
 */
#include "blob.h"

__kernel void loss_cross_entropy(SHARED_BLOB(output), MUTABLE_BLOB(output_delta), READ_ARRAY(int, labels),
                                 WRITE_ARRAY(real_t, sample_metrics), const int count)
{
    const int n = get_global_id(2);
    if (n >= count) {
        return;
    }
    const int label = ARRAY(labels)[n];
    __global const real_t *logits = output + BLOB_INDEX(OUTPUT, n, 0, 0, 0);
    real_t largest = logits[0];
    for (int z = 1; z < OUTPUT_UNIT_COUNT; z++) {
        largest = fmax(largest, logits[z * OUTPUT_UNIT_MEMORY_ELEMENTS]);
    }
    /* NOTE: all that follows sees logits minus the largest, so that a common offset costs no digits. */
    const real_t own = logits[label * OUTPUT_UNIT_MEMORY_ELEMENTS] - largest;
    accumulator_t sum = 0;
    accumulator_t total = 0;
    int better = 0;
    for (int z = 0; z < OUTPUT_UNIT_COUNT; z++) {
        const real_t logit = logits[z * OUTPUT_UNIT_MEMORY_ELEMENTS] - largest;
        sum += exp(logit);
        total += logit;
        better += logit > own || (logit == own && z < label);
    }
    /* Without smoothing, classes masked by a logit of minus infinity must not make 0 * infinity. */
    const real_t smoothed = LABEL_SMOOTHING > 0 ? LABEL_SMOOTHING / OUTPUT_UNIT_COUNT * total : 0;
    __global real_t *metrics = ARRAY(sample_metrics) + 3 * n;
    metrics[0] = log(sum) - (1 - LABEL_SMOOTHING) * own - smoothed;
    /* NOTE: a NaN compares false, so a sample whose logits are NaN must not count as right. */
    const bool valid = !isnan(own) && !isnan(sum);
    metrics[1] = valid && better == 0 ? 1.0f : 0.0f;
    metrics[2] = valid && better < 5 ? 1.0f : 0.0f;
#if HAS_DELTA
    __global real_t *deltas = output_delta + BLOB_INDEX(OUTPUT_DELTA, n, 0, 0, 0);
    for (int z = 0; z < OUTPUT_UNIT_COUNT; z++) {
        const real_t probability = exp(logits[z * OUTPUT_UNIT_MEMORY_ELEMENTS] - largest) / sum;
        const real_t target = (z == label ? 1 - LABEL_SMOOTHING : 0.0f) + LABEL_SMOOTHING / OUTPUT_UNIT_COUNT;
        deltas[z * OUTPUT_DELTA_UNIT_MEMORY_ELEMENTS] = (probability - target) / count;
    }
#endif
}
