/*
 * Moves a running average of the parameters towards them: average += RATE * (parameter - average). Behind the trainable
 * parameters lie running statistics, which are averages themselves: they are copied.
 *
 * Arrays:
 *   PARAMETERS    read
 *   AVERAGE_RATE  read    one number
 *   AVERAGE       update
 * Scalars:
 *   TRAINABLE_ELEMENTS
 *   ELEMENTS            of all parameters
 *   GLOBAL_WIDTH        work-items
 * Tunables:
 *   LANES loops 8, lanes 1 of 1 2 4 8 16: elements of a vector
 *   RUN loops 512, lanes 1 of 1 4 64 128 256 512 1024: vectors in a row that a work-item does
 * Global:
 *   width  runs
 */
#include "blob.h"
#include "optimizer/runs.h"

__kernel void optimizer_average(READ_ARRAY(real_t, parameters), READ_ARRAY(real_t, average_rate),
                                WRITE_ARRAY(real_t, average), const int trainable_elements,
                                const int elements, const int global_width)
{
    const real_t rate = ARRAY(average_rate)[0];
    for (int run = get_global_id(0); run < RUNS; run += GLOBAL_WIDTH) {
        for (int i = RUN_BEGIN(run); i < RUN_END(run); i += LANES) {
            const vector_t before = VECTOR_LOAD(ARRAY(average) + i);
            VECTOR_STORE(before + rate * (VECTOR_LOAD(ARRAY(parameters) + i) - before), ARRAY(average) + i);
        }
    }
    for (int i = TRAINABLE_ELEMENTS + get_global_id(0); i < ELEMENTS; i += GLOBAL_WIDTH) {
        ARRAY(average)[i] = ARRAY(parameters)[i];
    }
}
