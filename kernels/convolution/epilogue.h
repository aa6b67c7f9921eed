/*
 * What a forward convolution does to its sums before it stores them, for itself and for the layers behind it:
 *
 *     output = f((sum + bias - running_mean) / sqrt(running_variance + EPSILON) * scale + shift + residual)
 *
 * A kernel takes EPILOGUE_BLOBS behind its own blobs and EPILOGUE_ARRAYS behind its own arrays. What is the same for a
 * unit is UNIT_TERMS, to be loaded once; UNIT_EPILOGUE takes a sum, or a vector of sums, and CELL_EPILOGUE what that
 * gave; ACTIVATE is the last.
 *
 * Blobs:
 *   RESIDUAL read   if HAS_RESIDUAL
 * Arrays:
 *   BIAS             read   nothing, a unit or a position: BIAS_MODE
 *   RUNNING_MEAN     read   a unit, as the next three, if HAS_NORM
 *   RUNNING_VARIANCE read
 *   SCALE            read
 *   SHIFT            read
 * Macros:
 *   BIAS_MODE     0 none, 1 one a unit, 2 one a position (not with a norm)
 *   HAS_NORM      1: normalize with running statistics
 *   EPSILON       added to the variance
 *   HAS_RESIDUAL  1: add RESIDUAL
 *   ACTIVATION    the function f, see activation/functions.h
 */
#include "activation/functions.h"
#include "normalization/running.h"

#define EPILOGUE_BLOBS READ_BLOB(residual)
#define EPILOGUE_ARRAYS                                                                               \
    READ_ARRAY(real_t, bias), READ_ARRAY(real_t, running_mean), READ_ARRAY(real_t, running_variance), \
        READ_ARRAY(real_t, scale), READ_ARRAY(real_t, shift)

/* To hand all of it on to a function that takes EPILOGUE_BLOBS and EPILOGUE_ARRAYS. */
#define EPILOGUE_ARGUMENTS                                                                            \
    residual, residual_unit_offset, bias_array, bias_offset, running_mean_array, running_mean_offset, \
        running_variance_array, running_variance_offset, scale_array, scale_offset, shift_array,      \
        shift_offset

typedef struct {
    real_t bias;
    running_norm_t norm;
} unit_terms_t;

#if BIAS_MODE == 1
#define UNIT_BIAS(unit) ARRAY(bias)[unit]
#define PLUS_BIAS(value, terms) ((value) + (terms).bias)
#else
#define UNIT_BIAS(unit) 0
#define PLUS_BIAS(value, terms) (value)
#endif
#if HAS_NORM
#define UNIT_TERMS(unit) ((unit_terms_t){UNIT_BIAS(unit), RUNNING_NORM(unit)})
#define UNIT_EPILOGUE(value, terms) NORMALIZE(PLUS_BIAS(value, terms), (terms).norm)
#else
#define UNIT_TERMS(unit) ((unit_terms_t){UNIT_BIAS(unit), {0, 1, 0}})
#define UNIT_EPILOGUE(value, terms) PLUS_BIAS(value, terms)
#endif

/* What is added to a cell; kernels that load it ahead of time may do so if there is one. */
#define HAS_CELL_TERM (BIAS_MODE == 2 || HAS_RESIDUAL)
#define POSITION_BIAS(unit, y, x) ARRAY(bias)[((unit) * OUTPUT_UNIT_HEIGHT + (y)) * OUTPUT_UNIT_WIDTH + (x)]
#define RESIDUAL_CELL(n, unit, y, x) residual[BLOB_INDEX(RESIDUAL, n, unit, y, x)]
#if BIAS_MODE == 2 && HAS_RESIDUAL
#define CELL_TERM(n, unit, y, x) (POSITION_BIAS(unit, y, x) + RESIDUAL_CELL(n, unit, y, x))
#elif BIAS_MODE == 2
#define CELL_TERM(n, unit, y, x) POSITION_BIAS(unit, y, x)
#elif HAS_RESIDUAL
#define CELL_TERM(n, unit, y, x) RESIDUAL_CELL(n, unit, y, x)
#endif
#if HAS_CELL_TERM
#define CELL_EPILOGUE(value, n, unit, y, x) ((value) + CELL_TERM(n, unit, y, x))
#else
#define CELL_EPILOGUE(value, n, unit, y, x) (value)
#endif
