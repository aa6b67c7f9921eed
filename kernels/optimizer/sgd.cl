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
 *   CLIP_SCALE       read    not touched without HAS_CLIPPING
 * Macros:
 *   TRAINABLE_ELEMENTS
 *   DECAYED_ELEMENTS   the first parameters, those that decay
 *   WEIGHT_DECAY
 *   HAS_CLIPPING
 *   HAS_MOMENTUM
 *   MOMENTUM_FACTOR
 *   NESTEROV
 *   GLOBAL_WIDTH       work-items
 * Tunables:
 *   VECTOR cpu 16, gpu 1 of 1 2 4 8 16: elements of a vector
 *   RUN cpu 256, gpu 1 of 1 4 64 256 1024: vectors in a row that a work-item does
 * Global:
 *   width  runs
 */
#include "blob.h"
#include "optimizer/step.h"

__kernel void optimizer_sgd(WRITE_ARRAY(real_t, parameters), READ_ARRAY(real_t, gradients),
                            WRITE_ARRAY(real_t, momentum), READ_ARRAY(real_t, hyperparameters),
                            READ_ARRAY(real_t, clip_scale))
{
    const real_t learning_rate = ARRAY(hyperparameters)[0];
    const real_t scale = CLIP_FACTOR;
    for (int run = get_global_id(0); run < RUNS; run += GLOBAL_WIDTH) {
        for (int i = run * RUN; i < RUN_END(run); i++) {
            const vector_t parameter = LOAD(parameters, i);
            vector_t step = ADD_DECAY(scale * LOAD(gradients, i), parameter, i);
#if HAS_MOMENTUM
            const vector_t sum = SCALE_ADD(MOMENTUM_FACTOR, LOAD(momentum, i), step);
            STORE(sum, momentum, i);
            step = NESTEROV ? SCALE_ADD(MOMENTUM_FACTOR, sum, step) : sum;
#endif
            STORE(SCALE_ADD(-learning_rate, step, parameter), parameters, i);
        }
    }
}
