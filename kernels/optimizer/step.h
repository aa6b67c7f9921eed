/* What the steps share of optimizers that do the same to all elements. */
#include "optimizer/runs.h"
#include "optimizer/clipping.h"

/*
 * value + WEIGHT_DECAY * parameter where the vector at i decays, else value; DECAYED_ELEMENTS is a
 * multiple of LANES.
 */
#define ADD_DECAY(value, parameter, i) \
    (WEIGHT_DECAY != 0 && (i) < DECAYED_ELEMENTS ? (value) + WEIGHT_DECAY * (parameter) : (value))
