"""Contractions: index variables with ranges, operands read through affine maps of them, combined and aggregated.

    f = blobnet.contraction.function('''
        function (D[N, X, Y, CI], K[I, J, CO, CI]) -> (R) {
          O[n, x, y, co : N, X, Y, CO] = +(D[n, x+i-1, y+j-1, ci] * K[i, j, co, ci]);
          R = (O > 0 ? O : 0);
        }''')

**Text.** The head names the inputs with their sizes and the outputs; an input without brackets has any shape. Then
come statements. A *contraction* aggregates, with ``+`` sum, ``*`` product, ``>`` maximum or ``<`` minimum, a term that
any expression of elements, sizes and indexes may be, over all values of the indexes. Maps in brackets are affine: sums
of indexes times whole numbers or sizes, and a whole number; so may be the output's. Sizes stand after ``:`` and are
expressions of sizes, whose division rounds down; they may be missing where an operand has the output's index by itself.
Constraints follow after commas: ``e < r`` means 0 <= e < r. ``A[i] == B[j] ? C[i]`` without ``:`` leaves out terms. An
*element-wise* statement names whole tensors, with NumPy's broadcasting. Functions: abs, ceil, cos, detach, erf, exp,
expm1, floor, log, log1p, max, min, pow, round (half to even), sigmoid, sin, sqrt, tanh. The grammar is at the head of
:mod:`blobnet.contraction.syntax`.

**Ranges** follow from the edges: every operand's element, and the output's, is inside its tensor; what would be outside
is no term. So nothing is ever read outside, and padding is what is left out. But where an index is aggregated over and
only walks along axes, as ``k`` in ``A[n, k] * B[k, m]``, these must have one size, or a constraint says how many are
meant: matrices that do not fit are a mistake.

**Infinities, NaN and ties.** One rule for all that runs contractions:

1. A cell is the aggregation of its terms by IEEE arithmetic, and of nothing else. 0 * inf within a term is NaN; sums,
   products, maxima and minima with a NaN are NaN. The order of a sum is free, and so is the sign of a zero.
2. A cell without terms is 0 for sums, 1 for products, -inf for maxima, inf for minima.
3. Zeros of a halo may stand for terms that are left out, where that changes no finite number. Only where an infinity or
   NaN meets such a zero in a product, the cell may be NaN instead. No other cell may differ, and no infinity or NaN
   vanishes. (The two results are ``reference.run(...)`` and ``reference.run(..., with_halos=True)``.)
4. The delta of a maximum or minimum goes to the first term that equals it, in the order of the indexes as they appear,
   the output first, the last index fastest; for a result of NaN, to the first NaN. ``max`` and ``min`` of two arguments
   give theirs to the first of equal arguments. (As max pooling does everywhere.)
5. What ``?`` does not choose gets a delta of exactly 0, be its derivative infinite or NaN. Comparisons, ``floor``,
   ``ceil`` and ``detach(x)``, which is x, give 0, and ``abs`` at 0; ``pow`` gives 0 to its base for an exponent of 0
   and to its exponent for a base of 0. ``round`` hands its delta on as it is, so that what is quantised trains;
   ``detach(round(x))`` does not. All else is the chain rule by IEEE arithmetic, so sqrt at 0 gives an infinity.

**From text to execution.** :mod:`syntax` parses; :mod:`binding` and :mod:`ranges` give the intermediate form of
:mod:`form` for the inputs' shapes. All else reads that form, and what makes statements gives statements of it:

* :mod:`build`: statements that code states, as values;
* :mod:`derivatives`: gradients, as programs;
* :mod:`phases`: outputs that no two threads share;
* :mod:`fusion`: element-wise statements on a result that is not stored yet;
* :mod:`analysis`: halos, which constraints they meet, terms, flops, bytes;
* :mod:`table`: statements whose tensors have a place in memory, as ranges and strides;
* :mod:`loops`: clamped ranges for the constraints that halos do not meet;
* :mod:`schedule`, :mod:`search`, :mod:`costs`: how a table becomes a kernel, and the choice of that;
* :mod:`lowering`, :mod:`source`, :mod:`calls`: kernels, and their launches on a plan's blobs;
* :mod:`reference`: what it all means, in NumPy.
"""

from blobnet.contraction.function import Function, function

__all__ = ["Function", "function"]
