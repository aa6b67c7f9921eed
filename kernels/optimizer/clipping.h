/* What the steps of all optimizers share: when they do nothing, and what they make of the gradients. */
#include "optimizer/finite.h"

/* What all gradients are multiplied by (1), for clipping and the loss scale; below 0 in a step that is left out. */
#if HAS_CLIPPING & 1
#define CLIP_FACTOR ARRAY(clip_scale)[0]
#else
#define CLIP_FACTOR 1.0f
#endif
#define STEPS (LOSS_IS_FINITE && !(CLIP_FACTOR < 0))

/* A vector of gradients, times the factor; then each stays within a bound (2), where NaN stays NaN. */
#if HAS_CLIPPING & 2
#define CLIPPED(gradients, factor) clipped((factor) * (gradients), (vector_t)(ARRAY(hyperparameters)[7]))
INLINE vector_t clipped(const vector_t gradients, const vector_t bound)
{
    return gradients > bound ? bound : gradients < -bound ? -bound : gradients;
}
#else
#define CLIPPED(gradients, factor) ((factor) * (gradients))
#endif
