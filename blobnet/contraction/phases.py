"""Outputs that no two threads share: statements rewritten so that output indexes tell cells apart.

Derivatives write through the maps that the forward pass read: the gradient of a convolution's input is

    dI[S y + D a - P] += dO[y] * W[a]

and several (y, a) are one cell. With g = gcd(S, D), a = (S/g) m + r and Q = y + (D/g) m + (D r - P) // S that is, for
each r, a dense sum for the cells of one *phase* f = (D r - P) mod S:

    dI[S Q + f] += dO[Q - (D/g) m - (D r - P) // S] * W[(S/g) m + r]

Phases that no r gives have no terms, and neither has what lies between the last Q and the edge: they are zero. Where
taps do not overlap, as for S >= K and D = 1, the statement tells cells apart as it is.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

from blobnet.contraction import ranges
from blobnet.contraction.derivatives import filled, substituted
from blobnet.contraction.form import NEUTRAL, Affine, Constraint, Number, Read, Statement


def gathered(statement: Statement) -> tuple[Statement, ...]:
    """Statements that together do the same, each with an output whose indexes tell cells apart.

    The first fills the output with the neutral element, the others accumulate. Those of different phases write
    different cells (:func:`disjoint`). A statement that is so already comes back by itself. There may be none at all:
    of a statement that accumulates and turns out to have no terms.
    """
    if statement.aggregation == "=" or ranges.tells_apart(statement.output.map, statement.box):
        return (statement,)
    pieces = [(replace(statement, accumulates=True), frozenset[str]())]
    for axis in range(len(statement.output.map)):
        pieces = [after for piece, own in pieces for after in _solved(piece, axis, own)]
    found = [piece for piece, _ in pieces]
    if found and not statement.accumulates:
        found[0] = replace(found[0], accumulates=False)
    elif not statement.accumulates:
        return (filled(statement.output.tensor, Number(NEUTRAL[statement.aggregation])),)
    return tuple(found)


def disjoint(a: Read, b: Read) -> bool:
    """Return True if two outputs have no cell in common by the remainders of their maps, whatever their ranges."""
    for form, other in zip(a.map, b.map, strict=True):
        divisor = math.gcd(*(factor for _, factor in form.terms + other.terms))
        if (form.offset - other.offset) % divisor if divisor else form.offset != other.offset:
            return True
    return False


def _solved(statement: Statement, axis: int, own: frozenset[str]) -> list[tuple[Statement, frozenset[str]]]:
    """The statement such that one axis of its output tells the indexes in it that are not ``own``, and all these.

    ``own`` are the indexes that the axes before this one tell.
    """
    form = statement.output.map[axis]
    box = statement.box
    free = {name: factor for name, factor in form.terms if name not in own}
    if ranges.tells_apart([Affine.of(free)], box):
        return [(statement, own | set(free))]
    # The longest index: what is left to sum over are the taps, and their edges stay out of the constraints. Few strided
    # positions, which come before taps, may reach further than these all the same.
    named = [name for name in box if name in free]
    pivot = max(named, key=lambda name: len(box[name]))
    if len(box[named[0]]) * abs(form.coefficient(named[0])) > len(box[pivot]):
        pivot = named[0]
    stride = form.coefficient(pivot)
    splits = {name: abs(stride) // math.gcd(stride, factor) for name, factor in form.terms if name != pivot}
    found = []
    for remainders in itertools.product(*(range(count) for count in splits.values())):
        forms = {
            name: Affine.index(name) * count + remainder
            for (name, count), remainder in zip(splits.items(), remainders, strict=True)
        }
        # stride * pivot + the others = stride * (pivot + the others / stride + quotient) + phase
        rest = (form - Affine.of({pivot: stride})).substitute(forms)
        quotient = rest.offset // stride
        forms[pivot] = Affine.index(pivot) - Affine.of({name: f // stride for name, f in rest.terms}, quotient)
        piece = _changed(statement, forms)
        if piece:
            found.append((piece, own | {pivot}))
    return found


def _changed(statement: Statement, forms: dict[str, Affine]) -> Statement | None:
    """The statement with forms of indexes in place of indexes; None if no terms are left."""
    output = statement.output.substitute(forms)
    bounds = [
        *(Constraint(Affine.index(name) - span.start, len(span)) for name, span in statement.ranges),
        *statement.constraints,
    ]
    constraints = [*(bound.substitute(forms) for bound in bounds), *output.edges]
    found = ranges.propagate(constraints)
    if any(first > last for first, last in found.values()):
        return None
    box = {name: range(int(found[name][0]), int(found[name][1]) + 1) for name in statement.box}
    return replace(
        statement,
        output=output,
        expression=substituted(statement.expression, forms),
        ranges=tuple(box.items()),
        constraints=ranges.needed(constraints, box),
    )
