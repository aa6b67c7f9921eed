/* What the steps of all optimizers share: when they do nothing, and what they make of the gradients. */
#include "optimizer/finite.h"

/*
 * A vector of gradients, clipped: all are multiplied by one factor (1), or each stays within a bound (2), where NaN stays
 * NaN.
 */
#if HAS_CLIPPING == 2
#define CLIP_FACTOR ARRAY(hyperparameters)[7]
#define CLIPPED(gradients, bound) clipped(gradients, (vector_t)(bound))
INLINE vector_t clipped(const vector_t gradients, const vector_t bound)
{
    return gradients > bound ? bound : gradients < -bound ? -bound : gradients;
}
#else
#if HAS_CLIPPING
#define CLIP_FACTOR ARRAY(clip_scale)[0]
#else
#define CLIP_FACTOR 1.0f
#endif
#define CLIPPED(gradients, factor) ((factor) * (gradients))
#endif
