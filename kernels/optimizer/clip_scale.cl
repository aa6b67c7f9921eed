/*
 * The second stage of the gradients' norm, and what a step multiplies them by:
 *   clip_scale = min(1, clip_norm / (sqrt(sum of the partial sums) + 1e-6))
 *
 * With HAS_LOSS_SCALE the gradients are those of loss_scale times the losses, and clip_scale divides by it. Where they
 * are not finite, the step is left out and the scale shrinks, down to LEAST_SCALE; after INTERVAL steps in a row that
 * are not, it grows.
 * Once the loss itself is not finite, nothing is changed.
 *
 * Arrays:
 *   CLIP_PARTIALS  read
 *   CLIP_SCALE     write   one number; NaN if a gradient is NaN, with HAS_LOSS_SCALE below 0 for a step that is left out
 *   LOSS_SCALE     update  the scale, and the steps since it changed; not touched without HAS_LOSS_SCALE
 *   TOTALS         read    the first one is the sum of the losses
 * Macros:
 *   PARTIALS        partial sums
 *   CLIP_NORM       0: no limit
 *   HAS_LOSS_SCALE
 *   GROWTH          what the scale is multiplied by
 *   BACKOFF         the same for a step that is left out
 *   INTERVAL
 *   LEAST_SCALE
 * Global:
 *   width  1
 */
#include "blob.h"

__kernel void optimizer_clip_scale(READ_ARRAY(real_t, clip_partials), WRITE_ARRAY(real_t, clip_scale),
                                   WRITE_ARRAY(real_t, loss_scale), READ_ARRAY(real_t, totals))
{
    accumulator_t sum = 0;
    for (int i = 0; i < PARTIALS; i++) {
        sum += ARRAY(clip_partials)[i];
    }
    real_t norm = sqrt(sum);
#if HAS_LOSS_SCALE
    const real_t factor = ARRAY(loss_scale)[0];
    if (isfinite(ARRAY(totals)[0])) {
        const real_t steps = isfinite(norm) ? ARRAY(loss_scale)[1] + 1 : 0;
        const real_t next = factor * (!isfinite(norm) ? BACKOFF : steps < INTERVAL ? 1 : GROWTH);
        ARRAY(loss_scale)[0] = isfinite(next) && next >= LEAST_SCALE ? next : factor;
        ARRAY(loss_scale)[1] = steps < INTERVAL ? steps : 0;
    }
    if (!isfinite(norm)) {
        ARRAY(clip_scale)[0] = -1;
        return;
    }
    norm /= factor;
#else
    const real_t factor = 1;
#endif
    const real_t scale = CLIP_NORM / (norm + 1e-6f);
    ARRAY(clip_scale)[0] = (CLIP_NORM == 0 || scale > 1 ? 1.0f : scale) / factor;
}
