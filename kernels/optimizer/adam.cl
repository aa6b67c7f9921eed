/*
 * Adam over all trainable parameters, one launch; with DECOUPLED weight decay AdamW:
 *   g = clip_scale * gradient + weight_decay * w
 *   (DECOUPLED: w -= learning_rate * weight_decay * w instead)
 *   m = beta1 * m + (1 - beta1) * g
 *   v = beta2 * v + (1 - beta2) * g^2
 *   w -= learning_rate / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + epsilon)
 *
 * Arrays:
 *   PARAMETERS       update
 *   GRADIENTS        read
 *   FIRST_MOMENT     update  m
 *   SECOND_MOMENT    update  v
 *   HYPERPARAMETERS  read    learning rate, learning rate / (1 - beta1^t), 1 / sqrt(1 - beta2^t)
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
 *   ONE_MINUS_BETA2    rounded once: 1 - BETA2 would lose half its digits
 *   EPSILON
 *   DECOUPLED
 * Tunables:
 *   LANES loops 8, lanes 1 of 1 2 4 8 16: elements of a vector
 *   RUN loops 512, lanes 1 of 1 4 64 128 256 512 1024: vectors in a row that a work-item does
 * Global:
 *   width  runs
 */
#include "blob.h"
#include "optimizer/step.h"

__kernel void optimizer_adam(WRITE_ARRAY(real_t, parameters), READ_ARRAY(real_t, gradients),
                             WRITE_ARRAY(real_t, first_moment), WRITE_ARRAY(real_t, second_moment),
                             READ_ARRAY(real_t, hyperparameters), READ_ARRAY(real_t, clip_scale),
                             READ_ARRAY(real_t, totals), const int trainable_elements,
                             const int decayed_elements, const int global_width)
{
    if (!STEPS) {
        return;
    }
    const real_t learning_rate = ARRAY(hyperparameters)[0];
    const real_t step_size = ARRAY(hyperparameters)[1];
    const real_t correction = ARRAY(hyperparameters)[2];
    const real_t scale = CLIP_FACTOR;
    for (int run = get_global_id(0); run < RUNS; run += GLOBAL_WIDTH) {
        for (int i = RUN_BEGIN(run); i < RUN_END(run); i += LANES) {
            vector_t parameter = VECTOR_LOAD(ARRAY(parameters) + i);
            vector_t gradient = CLIPPED(VECTOR_LOAD(ARRAY(gradients) + i), scale);
#if DECOUPLED
            parameter = ADD_DECAY(parameter, -learning_rate * parameter, i);
#else
            gradient = ADD_DECAY(gradient, parameter, i);
#endif
            vector_t mean = VECTOR_LOAD(ARRAY(first_moment) + i);
            mean = BETA1 * mean + ONE_MINUS_BETA1 * gradient;
            vector_t square = VECTOR_LOAD(ARRAY(second_moment) + i);
            square = BETA2 * square + ONE_MINUS_BETA2 * gradient * gradient;
            VECTOR_STORE(mean, ARRAY(first_moment) + i);
            VECTOR_STORE(square, ARRAY(second_moment) + i);
            const vector_t step = mean / (sqrt(square) * correction + EPSILON);
            VECTOR_STORE(parameter - step_size * step, ARRAY(parameters) + i);
        }
    }
}
