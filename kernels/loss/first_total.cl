/*
 * Makes the first total NaN where the loss of another output is not finite: steps of training look at the first alone.
 *
 * Arrays:
 *   TOTALS  update  (LOSSES, STRIDE)
 * Macros:
 *   LOSSES  outputs with a loss
 *   STRIDE  totals of each, the first of which is its loss
 * Global:
 *   width  1
 */
#include "blob.h"

__kernel void loss_first_total(WRITE_ARRAY(real_t, totals))
{
    for (int i = 1; i < LOSSES; i++) {
        if (!isfinite(ARRAY(totals)[i * STRIDE])) {
            ARRAY(totals)[0] = NAN;
        }
    }
}
