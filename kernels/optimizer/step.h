/* What the steps of all optimizers share. */
#include "optimizer/runs.h"

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
    ((i) < DECAYED_ELEMENTS ? (value) + WEIGHT_DECAY * (parameter) : (value))
