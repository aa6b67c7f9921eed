/* What the steps of all optimizers share. */
#include "optimizer/runs.h"

/* NOTE: the device finds out by itself, so that the host need not wait for every loss; nothing is changed from then on. */
#define LOSS_IS_FINITE isfinite(ARRAY(totals)[0])

/* What clipping multiplies every gradient by. */
#if HAS_CLIPPING
#define CLIP_FACTOR ARRAY(clip_scale)[0]
#else
#define CLIP_FACTOR 1.0f
#endif

/*
 * value + WEIGHT_DECAY * parameter where the vector at i decays, else value; DECAYED_ELEMENTS is a
 * multiple of LANES.
 */
#define ADD_DECAY(value, parameter, i) \
    (WEIGHT_DECAY != 0 && (i) < DECAYED_ELEMENTS ? (value) + WEIGHT_DECAY * (parameter) : (value))
