/*
 * An epilogue with which another blob may come in: FINISHED(JOINED(BIASED(value, bias, unit), term, unit), unit), where
 * the term is RESIDUAL's value at the same place. Without one it is not looked at.
 *
 * Macros:
 *   BIASED        what is done before it comes in, first of all the sum with a bias, if there is one
 *   JOINED        how it comes in
 *   HAS_RESIDUAL  1: there is one
 */
#include "epilogue.h"

/* JOINED where there is a blob. */
#if HAS_RESIDUAL
#define WITH_RESIDUAL(value, term, unit) JOINED(value, term, unit)
#else
#define WITH_RESIDUAL(value, term, unit) (value)
#endif
