/*
 * Lookahead, around the steps of another optimizer. At the BEGINning of the first step it keeps the parameters; at the
 * end of every k-th one they go back to a part of their way:
 *   slow += PART * (w - slow);  w = slow
 * A step that the optimizer leaves out goes nowhere back.
 *
 * Arrays:
 *   PARAMETERS       update
 *   SLOW             update  the parameters as they were when they last went back
 *   HYPERPARAMETERS  read    number 6: 1 in the first step, 2 in one that goes back, 3 in one that is both
 *   CLIP_SCALE       read    not touched unless HAS_CLIPPING is 1
 *   TOTALS           read    the first one is the sum of the losses
 * Scalars:
 *   TRAINABLE_ELEMENTS
 *   GLOBAL_WIDTH       work-items
 * Macros:
 *   BEGINS             1 at the beginning of a step, 0 at its end
 *   PART
 *   HAS_CLIPPING       1: steps may be left out, which CLIP_SCALE says
 * Tunables:
 *   LANES loops 8, lanes 1 of 1 2 4 8 16: elements of a vector
 *   RUN loops 512, lanes 1 of 1 4 64 128 256 512 1024: vectors in a row that a work-item does
 * Global:
 *   width  runs
 */
#include "blob.h"
#include "optimizer/runs.h"
#include "optimizer/clipping.h"

__kernel void optimizer_lookahead(WRITE_ARRAY(real_t, parameters), WRITE_ARRAY(real_t, slow),
                                  READ_ARRAY(real_t, hyperparameters), READ_ARRAY(real_t, clip_scale),
                                  READ_ARRAY(real_t, totals), const int trainable_elements,
                                  const int global_width)
{
    const int looks = (int)ARRAY(hyperparameters)[6];
    if (!(BEGINS ? LOSS_IS_FINITE : STEPS) || !(looks & (BEGINS ? 1 : 2))) {
        return;
    }
    for (int run = get_global_id(0); run < RUNS; run += GLOBAL_WIDTH) {
        for (int i = RUN_BEGIN(run); i < RUN_END(run); i += LANES) {
            vector_t kept = VECTOR_LOAD(ARRAY(parameters) + i);
            if (!BEGINS) {
                const vector_t before = VECTOR_LOAD(ARRAY(slow) + i);
                kept = before + PART * (kept - before);
                VECTOR_STORE(kept, ARRAY(parameters) + i);
            }
            VECTOR_STORE(kept, ARRAY(slow) + i);
        }
    }
}
