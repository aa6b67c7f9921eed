/*
 * RMSprop over all trainable parameters, one launch:
 *   g = clip_scale * gradient + weight_decay * w
 *   s = alpha * s + (1 - alpha) * g^2
 *   m = momentum * m + g / (sqrt(s) + epsilon)
 *   w -= learning_rate * m
 *
 * Arrays:
 *   PARAMETERS       update
 *   GRADIENTS        read
 *   MEAN_SQUARE      update
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
 *   ALPHA
 *   ONE_MINUS_ALPHA    rounded once: 1 - ALPHA would lose half its digits
 *   EPSILON
 *   HAS_MOMENTUM
 *   MOMENTUM_FACTOR
 * Tunables:
 *   LANES loops 8, lanes 1 of 1 2 4 8 16: elements of a vector
 *   RUN loops 512, lanes 1 of 1 4 64 128 256 512 1024: vectors in a row that a work-item does
 * Global:
 *   width  runs
 */
#include "blob.h"
#include "optimizer/step.h"

__kernel void optimizer_rmsprop(WRITE_ARRAY(real_t, parameters), READ_ARRAY(real_t, gradients),
                                WRITE_ARRAY(real_t, mean_square), WRITE_ARRAY(real_t, momentum),
                                READ_ARRAY(real_t, hyperparameters), READ_ARRAY(real_t, clip_scale),
                                READ_ARRAY(real_t, totals), const int trainable_elements,
                                const int decayed_elements, const int global_width)
{
    if (!STEPS) {
        return;
    }
    const real_t learning_rate = ARRAY(hyperparameters)[0];
    const real_t scale = CLIP_FACTOR;
    for (int run = get_global_id(0); run < RUNS; run += GLOBAL_WIDTH) {
        for (int i = RUN_BEGIN(run); i < RUN_END(run); i += LANES) {
            const vector_t parameter = VECTOR_LOAD(ARRAY(parameters) + i);
            vector_t gradient = CLIPPED(VECTOR_LOAD(ARRAY(gradients) + i), scale);
            gradient = ADD_DECAY(gradient, parameter, i);
            const vector_t before = VECTOR_LOAD(ARRAY(mean_square) + i);
            const vector_t square = ALPHA * before + ONE_MINUS_ALPHA * gradient * gradient;
            VECTOR_STORE(square, ARRAY(mean_square) + i);
            vector_t step = gradient / (sqrt(square) + EPSILON);
#if HAS_MOMENTUM
            step = MOMENTUM_FACTOR * VECTOR_LOAD(ARRAY(momentum) + i) + step;
            VECTOR_STORE(step, ARRAY(momentum) + i);
#endif
            VECTOR_STORE(parameter - learning_rate * step, ARRAY(parameters) + i);
        }
    }
}
