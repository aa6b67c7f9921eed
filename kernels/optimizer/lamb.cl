/*
 * LAMB over all trainable parameters, in two launches. The first one:
 *   g = clipped gradient
 *   m = beta1 * m + (1 - beta1) * g
 *   v = beta2 * v + (1 - beta2) * g^2
 * and for each piece of each parameter the sums of w^2 and u^2, where
 *   u = m / (1 - beta1^t) / (sqrt(v) / sqrt(1 - beta2^t) + epsilon) + weight_decay * w
 * The second one MOVES the parameters:
 *   w -= learning_rate * |w| / |u| * u
 *
 * Arrays:
 *   PARAMETERS       update
 *   GRADIENTS        read
 *   FIRST_MOMENT     update  m
 *   SECOND_MOMENT    update  v
 *   NORMS            update  for each parameter PIECES pairs of sums
 *   HYPERPARAMETERS  read    for each group 8: learning rate, 1 / (1 - beta1^t), 1 / sqrt(1 - beta2^t)
 *   CLIP_SCALE       read    not touched unless HAS_CLIPPING is 1
 *   TOTALS           read    the first one is the sum of the losses
 * Macros:
 *   TENSORS          rows of ints (optimizer/tensors.h)
 *   TENSOR_COUNT
 *   PIECES           of each parameter
 *   MOVES
 *   WEIGHT_DECAY
 *   HAS_CLIPPING     0, 1 by norm, 2 by value
 *   BETA1
 *   ONE_MINUS_BETA1
 *   BETA2
 *   ONE_MINUS_BETA2
 *   EPSILON
 *   ALWAYS_ADAPTS    also what does not decay
 *   LOCAL_WIDTH      work-items of a group, a power of two
 * Tunables:
 *   LANES loops 8, lanes 1 of 1 2 4 8 16: elements of a vector
 * Global:
 *   width   pieces
 *   height  parameters
 * Local:
 *   width  elements of a piece
 */
#include "blob.h"
#include "group_sum.h"
#include "optimizer/tensors.h"

__constant int lamb_tensors[TENSOR_COUNT][4] = TENSORS;

__kernel __attribute__((reqd_work_group_size(LOCAL_WIDTH, 1, 1))) void
optimizer_lamb(WRITE_ARRAY(real_t, parameters), READ_ARRAY(real_t, gradients),
               WRITE_ARRAY(real_t, first_moment), WRITE_ARRAY(real_t, second_moment),
               WRITE_ARRAY(real_t, norms), READ_ARRAY(real_t, hyperparameters),
               READ_ARRAY(real_t, clip_scale), READ_ARRAY(real_t, totals))
{
    if (!STEPS) {
        return;
    }
    const int number = get_global_id(1), piece = get_group_id(0);
    const int offset = lamb_tensors[number][0], elements = lamb_tensors[number][1];
    const bool decays = lamb_tensors[number][3];
    __global const real_t *values = HYPERPARAMETERS_OF(lamb_tensors[number][2]);
    __global real_t *sums = ARRAY(norms) + 2 * PIECES * number;
    const int end = offset + PIECE_END(elements, piece);
    const int begin = offset + PIECE_BEGIN(elements, piece) + LANES * (int)get_local_id(0);
    const real_t decay = decays ? WEIGHT_DECAY : 0;
#if MOVES
    accumulator_t own = 0, step = 0;
    for (int i = 0; i < PIECES; i++) {
        own += sums[2 * i];
        step += sums[2 * i + 1];
    }
    const bool adapts = (decays || ALWAYS_ADAPTS) && own > 0 && step > 0;
    const real_t rate = values[0] * (adapts ? sqrt(own) / sqrt(step) : 1);
#else
    __local accumulator_t group[LOCAL_WIDTH];
    const real_t scale = CLIP_FACTOR;
    vector_t own = 0, step = 0;
#endif
    for (int i = begin; i < end; i += LANES * LOCAL_WIDTH) {
        const vector_t parameter = VECTOR_LOAD(ARRAY(parameters) + i);
        vector_t mean = VECTOR_LOAD(ARRAY(first_moment) + i);
        vector_t square = VECTOR_LOAD(ARRAY(second_moment) + i);
#if !MOVES
        const vector_t gradient = CLIPPED(VECTOR_LOAD(ARRAY(gradients) + i), scale);
        mean = BETA1 * mean + ONE_MINUS_BETA1 * gradient;
        square = BETA2 * square + ONE_MINUS_BETA2 * gradient * gradient;
        VECTOR_STORE(mean, ARRAY(first_moment) + i);
        VECTOR_STORE(square, ARRAY(second_moment) + i);
#endif
        const vector_t update = values[1] * mean / (sqrt(square) * values[2] + EPSILON) + decay * parameter;
#if MOVES
        VECTOR_STORE(parameter - rate * update, ARRAY(parameters) + i);
#else
        own += parameter * parameter;
        step += update * update;
#endif
    }
#if !MOVES
    const accumulator_t own_sum = GROUP_SUM(VECTOR_SUM(own), group);
    const accumulator_t step_sum = GROUP_SUM(VECTOR_SUM(step), group);
    if (get_local_id(0) == 0) {
        sums[2 * piece] = own_sum;
        sums[2 * piece + 1] = step_sum;
    }
#endif
}
