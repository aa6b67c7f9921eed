/*
 * What a forward convolution does to its sums before it stores them, for itself and for the layers behind it:
 *
 *     output = f(sum + bias + residual)
 *
 * A batch norm behind it is in the weights and the bias (normalization/fold.cl). A kernel takes EPILOGUE_BLOBS behind
 * its own blobs and EPILOGUE_ARRAYS behind its own arrays. UNIT_BIAS is to be loaded once for a unit; PLUS_BIAS takes a
 * sum, or a vector of sums, and CELL_EPILOGUE what that gave; ACTIVATE is the last.
 *
 * Blobs:
 *   RESIDUAL read   if HAS_RESIDUAL
 * Arrays:
 *   BIAS read   nothing, a unit or a position: BIAS_MODE
 * Macros:
 *   BIAS_MODE     0 none, 1 one a unit, 2 one a position
 *   HAS_RESIDUAL  1: add RESIDUAL
 */
#include "activation/functions.h"

#define EPILOGUE_BLOBS READ_BLOB(residual)
#define EPILOGUE_ARRAYS READ_ARRAY(real_t, bias)

/* To hand all of it on to a function that takes EPILOGUE_BLOBS and EPILOGUE_ARRAYS. */
#define EPILOGUE_ARGUMENTS residual, residual_unit_offset, bias_array, bias_offset

#if BIAS_MODE == 1
#define UNIT_BIAS(unit) ARRAY(bias)[unit]
#define PLUS_BIAS(value, bias) ((value) + (bias))
#else
#define UNIT_BIAS(unit) 0
#define PLUS_BIAS(value, bias) (value)
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
