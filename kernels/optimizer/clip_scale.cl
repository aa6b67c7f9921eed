/*
 * The second stage of the gradients' norm, and what clipping multiplies them by:
 *   clip_scale = min(1, clip_norm / (sqrt(sum of the partial sums) + 1e-6))
 *
 * Arrays:
 *   CLIP_PARTIALS  read
 *   CLIP_SCALE     write  one number; NaN if a gradient is NaN
 * Macros:
 *   PARTIALS   partial sums
 *   CLIP_NORM
 * Global:
 *   width  1
 */
#include "blob.h"

__kernel void optimizer_clip_scale(READ_ARRAY(real_t, clip_partials), WRITE_ARRAY(real_t, clip_scale))
{
    accumulator_t sum = 0;
    for (int i = 0; i < PARTIALS; i++) {
        sum += ARRAY(clip_partials)[i];
    }
    const real_t scale = CLIP_NORM / (sqrt(sum) + 1e-6f);
    ARRAY(clip_scale)[0] = scale > 1 ? 1.0f : scale;
}
