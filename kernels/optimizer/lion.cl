/*
 * Lion over all trainable parameters, one launch:
 *   g = clipped gradient
 *   w -= learning_rate * weight_decay * w
 *   w -= learning_rate * sign(beta1 * m + (1 - beta1) * g)
 *   m = beta2 * m + (1 - beta2) * g
 *
 * Arrays:
 *   PARAMETERS       update
 *   GRADIENTS        read
 *   FIRST_MOMENT     update  m
 *   HYPERPARAMETERS  read    learning rate
 *   CLIP_SCALE       read    not touched unless HAS_CLIPPING is 1
 *   TOTALS           read    the first one is the sum of the losses
 * Scalars:
 *   TRAINABLE_ELEMENTS
 *   DECAYED_ELEMENTS   the first parameters, those that decay
 *   GLOBAL_WIDTH       work-items
 * Macros:
 *   WEIGHT_DECAY
 *   HAS_CLIPPING       0, 1 by norm, 2 by value
 *   BETA1
 *   ONE_MINUS_BETA1
 *   BETA2
 *   ONE_MINUS_BETA2
 * Tunables:
 *   LANES loops 8, lanes 1 of 1 2 4 8 16: elements of a vector
 *   RUN loops 512, lanes 1 of 1 4 64 128 256 512 1024: vectors in a row that a work-item does
 * Global:
 *   width  runs
 */
#include "blob.h"
#include "optimizer/step.h"

__kernel void optimizer_lion(WRITE_ARRAY(real_t, parameters), READ_ARRAY(real_t, gradients),
                             WRITE_ARRAY(real_t, first_moment), READ_ARRAY(real_t, hyperparameters),
                             READ_ARRAY(real_t, clip_scale), READ_ARRAY(real_t, totals),
                             const int trainable_elements, const int decayed_elements, const int global_width)
{
    if (!STEPS) {
        return;
    }
    const real_t learning_rate = ARRAY(hyperparameters)[0];
    const real_t scale = CLIP_FACTOR;
    for (int run = get_global_id(0); run < RUNS; run += GLOBAL_WIDTH) {
        for (int i = RUN_BEGIN(run); i < RUN_END(run); i += LANES) {
            vector_t parameter = VECTOR_LOAD(ARRAY(parameters) + i);
            const vector_t gradient = CLIPPED(VECTOR_LOAD(ARRAY(gradients) + i), scale);
            const vector_t mean = VECTOR_LOAD(ARRAY(first_moment) + i);
            const vector_t along = BETA1 * mean + ONE_MINUS_BETA1 * gradient;
            /* NaN stays NaN. */
            const vector_t size = (vector_t)(learning_rate);
            const vector_t step = along > (vector_t)(0) ? size : along < (vector_t)(0) ? -size : along;
            parameter = ADD_DECAY(parameter, -learning_rate * parameter, i);
            VECTOR_STORE(BETA2 * mean + ONE_MINUS_BETA2 * gradient, ARRAY(first_moment) + i);
            VECTOR_STORE(parameter - step, ARRAY(parameters) + i);
        }
    }
}
