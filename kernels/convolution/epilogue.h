/*
 * What a forward convolution does to its sums before it stores them, for itself and for the layers after it:
 *
 *     output = FINISHED(JOINED(BIASED(sum, bias, unit), cell term, unit), unit)
 *
 * A batch norm right after it is in the weights and the bias (normalization/fold.cl). A kernel takes EPILOGUE_BLOBS
 * after its own blobs and EPILOGUE_ARRAYS after its own arrays. UNIT_BIAS is to be loaded once for a unit. BIASED,
 * JOINED and FINISHED take values or vectors of them; CELL_EPILOGUE is JOINED with the term of a cell.
 *
 * Blobs:
 *   RESIDUAL read   if HAS_RESIDUAL
 * Arrays:
 *   BIAS read   nothing, a unit or a position: BIAS_MODE
 * Macros:
 *   BIAS_MODE       0 none, 1 one a unit, 2 one a position, which is part of a cell's term
 *   MORE_ARGUMENTS  what MORE_ARRAYS are called, to hand them on
 */
#include "joined.h"

#define EPILOGUE_BLOBS READ_BLOB(residual)
#define EPILOGUE_ARRAYS READ_ARRAY(bias_t, bias) MORE_ARRAYS

/* To hand all of it on to a function that takes EPILOGUE_BLOBS and EPILOGUE_ARRAYS. */
#define EPILOGUE_ARGUMENTS residual, residual_unit_offset, bias_array, bias_offset MORE_ARGUMENTS

#if BIAS_MODE == 1
#define UNIT_BIAS(unit) UNIT_NUMBERS(ARRAY(bias), unit)
#else
#define UNIT_BIAS(unit) 0
#endif

/* What comes in at a cell; kernels that load it ahead of time may do so if there is one. */
#define HAS_CELL_TERM (BIAS_MODE == 2 || HAS_RESIDUAL)
#define POSITION_BIAS(unit, y, x) \
    (ARRAY(bias) + ((unit) * OUTPUT_UNIT_HEIGHT + (y)) * OUTPUT_UNIT_WIDTH + (x))
#define RESIDUAL_CELL(n, unit, y, x) (residual + RESIDUAL_INDEX(n, unit, y, x))
/* One number for all lanes, where there is one for each unit. */
#if HAS_RESIDUAL == 2
#define RESIDUAL_BY(load, n, unit, y, x) VALUE_OF(RESIDUAL_CELL(n, unit, y, x))
#else
#define RESIDUAL_BY(load, n, unit, y, x) load(RESIDUAL_CELL(n, unit, y, x))
#endif
#if BIAS_MODE == 2 && HAS_RESIDUAL
#define CELL_TERM_BY(load, n, unit, y, x) (load(POSITION_BIAS(unit, y, x)) + RESIDUAL_BY(load, n, unit, y, x))
#elif BIAS_MODE == 2
#define CELL_TERM_BY(load, n, unit, y, x) load(POSITION_BIAS(unit, y, x))
#elif HAS_RESIDUAL
#define CELL_TERM_BY(load, n, unit, y, x) RESIDUAL_BY(load, n, unit, y, x)
#endif
#define CELL_TERM(n, unit, y, x) CELL_TERM_BY(VALUE_OF, n, unit, y, x)
/* The terms of LANES cells of a row. */
#define CELL_TERMS(n, unit, y, x) CELL_TERM_BY(VECTOR_LOAD, n, unit, y, x)
#if HAS_CELL_TERM
#define CELL_EPILOGUE(value, n, unit, y, x) JOINED(value, CELL_TERM(n, unit, y, x), unit)
#else
#define CELL_EPILOGUE(value, n, unit, y, x) (value)
#endif
