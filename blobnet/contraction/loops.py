"""Clamped ranges: loops that meet constraints by where they begin and end, with no test inside.

Where no halo can stand for a constraint (maxima, sums of several operands, triangles), the innermost index in it takes
what the others leave: 0 <= 2 k - x < 5 lets k run from ceil(x / 2) to floor((x + 4) / 2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from blobnet.contraction.form import Affine, Constraint


class Quotient(NamedTuple):
    """``form`` / ``divisor``, rounded down (towards minus infinity: C's division is not for negative numbers)."""

    form: Affine
    divisor: int


def clamped(
    index: str, constraints: Sequence[Constraint], box: Mapping[str, range]
) -> tuple[list[Quotient], list[Quotient]]:
    """Return what ``constraints``, whose other indexes are set outside of an index' loop, leave of its range.

    It runs from the greatest of the first ones (and of its range's first) to the least of the others (and its last);
    there may be nothing between.
    """
    firsts, lasts = [], []
    for constraint in constraints:
        factor = constraint.form.coefficient(index)
        rest = constraint.form - Affine.index(index) * factor
        reached = constraint.form.range(box)
        # With d = |factor|: low / d <= index <= high / d, the first rounded up.
        low, high = (-rest, -rest + (constraint.size - 1)) if factor > 0 else (rest - (constraint.size - 1), rest)
        can_be_less, can_be_more = reached.start < 0, reached.stop > constraint.size
        if can_be_less if factor > 0 else can_be_more:
            firsts.append(Quotient(low + (abs(factor) - 1), abs(factor)))
        if can_be_more if factor > 0 else can_be_less:
            lasts.append(Quotient(high, abs(factor)))
    return firsts, lasts
