/*
 * Folds a batch norm with running statistics into the weights in front of it: with factor = scale /
 * sqrt(running_variance + EPSILON), weight * factor and (bias - running_mean) * factor + shift.
 *
 * Arrays:
 *   WEIGHT            read   (units, COLUMNS)
 *   BIAS              read   a unit, as the next four, if HAS_BIAS
 *   RUNNING_MEAN      read
 *   RUNNING_VARIANCE  read
 *   SCALE             read
 *   SHIFT             read
 *   FOLDED_WEIGHT     write  (units, COLUMNS)
 *   FOLDED_BIAS       write  (units)
 * Scalars:
 *   COLUMNS       weights of a unit
 *   HAS_BIAS      0: the bias is 0
 *   GLOBAL_WIDTH  work-items that share a unit
 * Macros:
 *   EPSILON  added to the variance
 * Global:
 *   width  work-items that share a unit
 *   units  units
 */
#include "blob.h"
#include "normalization/running.h"

__kernel void normalization_fold(READ_ARRAY(weight_t, weight), READ_ARRAY(bias_t, bias),
                                 READ_ARRAY(running_mean_t, running_mean),
                                 READ_ARRAY(running_variance_t, running_variance), READ_ARRAY(scale_t, scale),
                                 READ_ARRAY(shift_t, shift), WRITE_ARRAY(real_t, folded_weight),
                                 WRITE_ARRAY(real_t, folded_bias), const int columns, const int has_bias,
                                 const int global_width)
{
    const int unit = get_global_id(2);
    const running_norm_t norm = RUNNING_NORM(unit);
    const int first = unit * COLUMNS;
    for (int column = get_global_id(0); column < COLUMNS; column += GLOBAL_WIDTH) {
        ARRAY(folded_weight)[first + column] = READ_VALUE(ARRAY(weight), first + column) * norm.factor;
    }
    if (get_global_id(0) == 0) {
        const real_t sum = HAS_BIAS ? READ_VALUE(ARRAY(bias), unit) : 0;
        ARRAY(folded_bias)[unit] = NORMALIZE(sum, norm);
    }
}
