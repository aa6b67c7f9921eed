/*
 * What a teacher says at each position: log(softmax(logits / TEMPERATURE)), for loss/distillation.
 *
 * Blobs:
 *   OUTPUT  read  logits
 * Arrays:
 *   TEACHER  write  (COUNT, units, height, width)
 * Macros:
 *   GLOBAL_WIDTH  work-items
 * Global:
 *   width  positions * CLASS_ITEMS
 *   units  COUNT
 */
#include "blob.h"
#include "loss/logits.h"
#include "loss/temperature.h"

__kernel void loss_teacher(SHARED_BLOB(output), WRITE_ARRAY(real_t, teacher))
{
    __local accumulator_t group[LOCAL_WIDTH];
    const int n = get_global_id(2);
    for (int i = get_global_id(0) / CLASS_ITEMS; i < OUTPUT_UNIT_ELEMENTS; i += GLOBAL_WIDTH / CLASS_ITEMS) {
        __global const output_t *logits =
            output + BLOB_INDEX(OUTPUT, n, 0, 0, 0) + BLOB_ELEMENT_OFFSET(OUTPUT, i);
        const real_t largest = largest_of(logits, group);
        const real_t log_sum = log_of_sum(logits, largest, group);
        __global real_t *answers = ARRAY(teacher) + (size_t)n * BLOB_ELEMENTS(OUTPUT) + i;
        EACH_CLASS(z)
        {
            answers[(size_t)z * OUTPUT_UNIT_ELEMENTS] =
                AT_TEMPERATURE(READ_VALUE(logits, LOGIT(z)), largest) - log_sum;
        }
    }
}
