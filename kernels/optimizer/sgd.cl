/*
 * Stochastic gradient descent over all trainable parameters, one launch:
 *   g = clip_scale * gradient + weight_decay * w
 *   m = momentum * m + g
 *   w -= learning_rate * (g + momentum * m with Nesterov's momentum, else m)
 *
 * Arrays:
 *   PARAMETERS       update
 *   GRADIENTS        read
 *   MOMENTUM         update  not touched without HAS_MOMENTUM
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
 *   HAS_MOMENTUM
 *   MOMENTUM_FACTOR
 *   NESTEROV
 * Tunables:
 *   LANES loops 8, lanes 1 of 1 2 4 8 16: elements of a vector
 *   RUN loops 512, lanes 1 of 1 4 64 128 256 512 1024: vectors in a row that a work-item does
 * Global:
 *   width  runs
 */
#include "blob.h"
#include "optimizer/step.h"

__kernel void optimizer_sgd(WRITE_ARRAY(real_t, parameters), READ_ARRAY(real_t, gradients),
                            WRITE_ARRAY(real_t, momentum), READ_ARRAY(real_t, hyperparameters),
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
            const vector_t parameter = VECTOR_LOAD(ARRAY(parameters) + i);
            vector_t step = CLIPPED(VECTOR_LOAD(ARRAY(gradients) + i), scale);
            step = ADD_DECAY(step, parameter, i);
#if HAS_MOMENTUM
            const vector_t sum = MOMENTUM_FACTOR * VECTOR_LOAD(ARRAY(momentum) + i) + step;
            VECTOR_STORE(sum, ARRAY(momentum) + i);
            step = NESTEROV ? step + MOMENTUM_FACTOR * sum : sum;
#endif
            VECTOR_STORE(parameter - learning_rate * step, ARRAY(parameters) + i);
        }
    }
}
