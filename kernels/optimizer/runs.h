/*
 * Runs of RUN vectors, dealt out to the work-items; with runs of one element, neighbouring
 * work-items do neighbouring elements. TRAINABLE_ELEMENTS is a multiple of LANES, GLOBAL_WIDTH of
 * the local size, so that no run is done twice.
 */
#include "vector.h"

#define RUN_ELEMENTS (RUN * LANES)
#define RUNS ((TRAINABLE_ELEMENTS + RUN_ELEMENTS - 1) / RUN_ELEMENTS)
#define RUN_BEGIN(run) ((run) * RUN_ELEMENTS)
#define RUN_END(run) min(RUN_BEGIN(run) + RUN_ELEMENTS, TRAINABLE_ELEMENTS)
