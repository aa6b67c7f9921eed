/* What the steps of all optimizers share. */
#include "optimizer/runs.h"

/* What clipping multiplies every gradient by. */
#if HAS_CLIPPING
#define CLIP_FACTOR ARRAY(clip_scale)[0]
#else
#define CLIP_FACTOR 1.0f
#endif

/* constant * vector + vector */
#define SCALE_ADD(constant, a, b) ((constant) * (a) + (b))

/*
 * value + WEIGHT_DECAY * parameter where vector i decays, else value; DECAYED_ELEMENTS is a multiple
 * of VECTOR.
 */
#define ADD_DECAY(value, parameter, i)                                                             \
    ((i)*VECTOR < DECAYED_ELEMENTS ? SCALE_ADD(WEIGHT_DECAY, parameter, value) : (value))
