"""The values of indexes: interval propagation of affine forms against their constraints."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from blobnet.contraction.form import Affine, Constraint

#: Rounds of propagation at most. Each takes all constraints; boxes of any use are found in two or three.
_ROUNDS = 32

Interval = tuple[float, float]
"""First and last value, both included; infinite where nothing is known yet."""


def propagate(constraints: Sequence[Constraint]) -> dict[str, Interval]:
    """Return the first and last value that ``constraints`` leave every index, in order of appearance.

    For each constraint 0 <= c k + rest < size, k is within what the least and greatest ``rest`` leave; this is repeated
    until nothing changes. The box is the least that intervals can show: points in it may still break a constraint. An
    index of infinite ends is not bounded by the constraints; one whose first value is above its last has none.
    """
    box: dict[str, Interval] = {
        name: (-math.inf, math.inf) for constraint in constraints for name in constraint.form.indexes
    }
    for _ in range(_ROUNDS):
        before = dict(box)
        for constraint in constraints:
            for name in constraint.form.indexes:
                box[name] = _narrowed(name, constraint, box)
                if box[name][0] > box[name][1]:
                    return box
        if box == before:
            break
    return box


def _narrowed(name: str, constraint: Constraint, box: dict[str, Interval]) -> Interval:
    """The interval of ``name`` within ``box`` and one constraint."""
    low, high = box[name]
    rest_low: float = constraint.form.offset
    rest_high: float = rest_low
    for other, factor in constraint.form.terms:
        if other != name:
            ends = factor * box[other][0], factor * box[other][1]
            rest_low, rest_high = rest_low + min(ends), rest_high + max(ends)
    # 0 - rest_high <= factor * name <= size - 1 - rest_low
    factor = constraint.form.coefficient(name)
    first, last = -rest_high, constraint.size - 1 - rest_low
    if factor < 0:
        first, last = -last, -first
    return max(low, _divided(first, abs(factor), up=True)), min(high, _divided(last, abs(factor), up=False))


def _divided(value: float, factor: int, up: bool) -> float:
    if math.isinf(value):
        return value
    return -(-value // factor) if up else value // factor


def needed(constraints: Iterable[Constraint], box: dict[str, range]) -> tuple[Constraint, ...]:
    """The constraints that neither the box nor another of them implies, in their order."""
    kept: list[Constraint] = []
    for constraint in constraints:
        reached = constraint.form.range(box)
        if reached.start >= 0 and reached.stop <= constraint.size:
            continue
        if not any(implies(other, constraint) for other in kept):
            kept = [other for other in kept if not implies(constraint, other)] + [constraint]
    return tuple(kept)


def implies(stronger: Constraint, weaker: Constraint) -> bool:
    """Return True if all points that meet one constraint meet the other, whose form differs by an offset."""
    for form in (stronger.form, -stronger.form + (stronger.size - 1)):
        if form.terms == weaker.form.terms:
            shift = weaker.form.offset - form.offset
            return shift >= 0 and stronger.size + shift <= weaker.size
    return False


def tells_apart(forms: Sequence[Affine], box: Mapping[str, range]) -> bool:
    """Return True if forms, as a tensor's element, differ for any two values of the indexes in them, by a simple rule.

    Each index is in one form only, and in each form the steps of an index are longer than all that indexes of shorter
    steps reach together: ``x``, ``2*x + 1``, ``8*g + o`` for o < 8. A statement with such an output has, for each cell,
    the terms of the reduction indexes and no others.
    """
    names = [name for form in forms for name in form.indexes]
    if len(names) != len(set(names)):
        return False
    for form in forms:
        reach = 0
        for step, name in sorted((abs(factor), name) for name, factor in form.terms):
            if step <= reach and len(box[name]) > 1:
                return False
            reach += step * (len(box[name]) - 1)
    return True
