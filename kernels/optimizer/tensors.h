/*
 * What steps share that know which elements are one parameter: TENSORS is a constant table with a row of ints for each,
 * which begins with its offset, its elements, the number of its group and whether it decays.
 */
#include "vector.h"
#include "optimizer/clipping.h"

/* The elements of piece `piece` of PIECES begin at BEGIN and end before END, multiples of LANES; behind the last of a
 * parameter are zeros, up to a multiple of 16. */
#define PIECE_ELEMENTS(elements) ((((elements) + 15) / 16 + PIECES - 1) / PIECES * 16)
#define PIECE_BEGIN(elements, piece) min(((elements) + 15) / 16 * 16, (piece) * PIECE_ELEMENTS(elements))
#define PIECE_END(elements, piece) PIECE_BEGIN(elements, (piece) + 1)
#define HYPERPARAMETERS_OF(group) (ARRAY(hyperparameters) + 8 * (group))
