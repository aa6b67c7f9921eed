/*
 * An epilogue with which another blob may come in: FINISHED(JOINED(BIASED(value, bias, unit), term, unit), unit), where
 * the term is RESIDUAL's value at the same place. Without one it is not looked at.
 *
 * Macros:
 *   BIASED        what is done before it comes in, first of all the sum with a bias, if there is one
 *   JOINED        how it comes in
 *   HAS_RESIDUAL  1: there is one; 2: of one value for each unit; 3: of one unit, for all of them
 */
#include "epilogue.h"

/* Where the term of a cell lies; z counts planes. */
#if HAS_RESIDUAL == 2
#define RESIDUAL_INDEX(n, z, y, x) BLOB_INDEX(RESIDUAL, n, UNIT_OF(OUTPUT, z), 0, 0)
#define AT_RESIDUAL 0
#else
#if HAS_RESIDUAL != 3
#define RESIDUAL_INDEX(n, z, y, x) BLOB_INDEX(RESIDUAL, n, z, y, x)
#elif defined(GENERAL_BLOBS)
#define RESIDUAL_INDEX(n, z, y, x) BLOB_INDEX(RESIDUAL, n, REMAINDER(z, RESIDUAL, UNIT_DEPTH), y, x)
#else
#define RESIDUAL_INDEX(n, z, y, x) BLOB_INDEX(RESIDUAL, n, 0, y, x)
#endif
#define AT_RESIDUAL AT(RESIDUAL)
#endif

/* JOINED where there is a blob. */
#if HAS_RESIDUAL
#define WITH_RESIDUAL(value, term, unit) JOINED(value, term, unit)
#else
#define WITH_RESIDUAL(value, term, unit) (value)
#endif
