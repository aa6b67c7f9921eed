"""Clamped ranges: loops that meet constraints by where they begin and end, with no test inside.

Where no halo can stand for a constraint (maxima, sums of several operands, triangles), the innermost index in it takes
what the others leave: 0 <= 2 k - x < 5 lets k run from ceil(x / 2) to floor((x + 4) / 2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from blobnet.contraction.form import Affine, Constraint


@dataclass(frozen=True)
class Quotient:
    """``form`` / ``divisor``, rounded down (towards minus infinity: C's division is not for negative numbers)."""

    form: Affine
    divisor: int

    def __str__(self) -> str:
        if self.divisor == 1:
            return str(self.form)
        text = str(self.form)
        return f"floor({f'({text})' if ' ' in text else text} / {self.divisor})"


@dataclass(frozen=True)
class Loop:
    """An index that runs from the greatest of ``firsts`` and the span's first to the least of ``lasts`` and its last.

    The forms are of indexes that are set outside of the loop. There may be nothing between.
    """

    index: str
    span: range
    firsts: tuple[Quotient, ...]
    lasts: tuple[Quotient, ...]

    def values(self, outside: Mapping[str, int]) -> range:
        """Return the values that it runs through, for values of the indexes outside."""
        here = {name: range(value, value + 1) for name, value in outside.items()}
        first = [quotient.form.range(here).start // quotient.divisor for quotient in self.firsts]
        last = [quotient.form.range(here).start // quotient.divisor for quotient in self.lasts]
        return range(max([self.span.start, *first]), min([self.span.stop - 1, *last]) + 1)


def clamped(index: str, constraints: Sequence[Constraint], box: Mapping[str, range]) -> Loop:
    """The loop of an index over what ``constraints``, whose other indexes are set outside, leave of its range."""
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
    return Loop(index, box[index], tuple(firsts), tuple(lasts))
