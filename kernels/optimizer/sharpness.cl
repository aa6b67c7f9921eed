/*
 * Sharpness-aware minimisation, around the second gradients of a step (Foret et al. 2021). With CLIMBS it keeps all
 * parameters and the metrics, and moves the trainable ones along the first gradients:
 *   w += RHO / (norm + 1e-12) * gradient        norm: that of the gradients
 * With ADAPTIVE each gradient is times w^2, and in the norm times |w| (Kwon et al. 2021). Else it goes back: the
 * parameters, and the metrics but for sums that are not finite, are as they were kept.
 * Where the norm is not finite, nothing moves.
 *
 * Arrays:
 *   PARAMETERS       update
 *   GRADIENTS        read    not touched without CLIMBS
 *   SQUARES          read    partial sums of the norm's squares; not touched without CLIMBS
 *   TOTALS           update  the metrics; the first one is the sum of the losses
 *   KEPT             update  of all parameters
 *   KEPT_TOTALS      update
 * Scalars:
 *   TRAINABLE_ELEMENTS
 *   ELEMENTS            of all parameters
 *   GLOBAL_WIDTH        work-items
 * Macros:
 *   CLIMBS
 *   RHO
 *   ADAPTIVE
 *   PARTIALS         partial sums
 *   METRICS          numbers in TOTALS
 * Tunables:
 *   LANES loops 8, lanes 1 of 1 2 4 8 16: elements of a vector
 *   RUN loops 512, lanes 1 of 1 4 64 128 256 512 1024: vectors in a row that a work-item does
 * Global:
 *   width  runs
 */
#include "blob.h"
#include "optimizer/runs.h"

__kernel void optimizer_sharpness(WRITE_ARRAY(real_t, parameters), READ_ARRAY(real_t, gradients),
                                  READ_ARRAY(real_t, squares), WRITE_ARRAY(real_t, totals),
                                  WRITE_ARRAY(real_t, kept), WRITE_ARRAY(real_t, kept_totals),
                                  const int trainable_elements, const int elements, const int global_width)
{
    real_t scale = 0;
#if CLIMBS
    accumulator_t sum = 0;
    for (int i = 0; i < PARTIALS; i++) {
        sum += ARRAY(squares)[i];
    }
    scale = isfinite(sum) ? RHO / (sqrt(sum) + 1e-12f) : 0;
#endif
    for (int run = get_global_id(0); run < RUNS; run += GLOBAL_WIDTH) {
        for (int i = RUN_BEGIN(run); i < RUN_END(run); i += LANES) {
            if (CLIMBS) {
                const vector_t before = VECTOR_LOAD(ARRAY(parameters) + i);
                VECTOR_STORE(before, ARRAY(kept) + i);
                if (scale > 0) {
                    const vector_t slope = VECTOR_LOAD(ARRAY(gradients) + i);
                    VECTOR_STORE(before + scale * (ADAPTIVE ? before * before * slope : slope),
                                 ARRAY(parameters) + i);
                }
            } else {
                VECTOR_STORE(VECTOR_LOAD(ARRAY(kept) + i), ARRAY(parameters) + i);
            }
        }
    }
    for (int i = TRAINABLE_ELEMENTS + get_global_id(0); i < ELEMENTS; i += GLOBAL_WIDTH) {
        if (CLIMBS) {
            ARRAY(kept)[i] = ARRAY(parameters)[i];
        } else {
            ARRAY(parameters)[i] = ARRAY(kept)[i];
        }
    }
    for (int i = get_global_id(0); i < METRICS; i += GLOBAL_WIDTH) {
        if (CLIMBS) {
            ARRAY(kept_totals)[i] = ARRAY(totals)[i];
        } else if (isfinite(ARRAY(totals)[i])) {
            ARRAY(totals)[i] = ARRAY(kept_totals)[i];
        }
    }
}
