"""Analysis of statements: halos and the constraints that they meet, terms, flops, bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

import numpy as np

from blobnet.contraction import ranges
from blobnet.contraction.form import Apply, Constraint, Expression, Number, Read, Statement
from blobnet.contraction.functions import FUNCTIONS

Sides = tuple[int, int]
"""Zeros before and after the data, along one axis."""
Halo = tuple[Sides, ...]
"""The same for every axis."""

#: Points that are counted one by one at most, where constraints tie indexes together.
_COUNTED = 2**22


def map_range(read: Read, statement: Statement) -> Halo:
    """Return how far a read leaves its tensor over the whole box, (before, after) for every axis."""
    box = statement.box
    reached = [form.range(box) for form in read.map]
    return tuple(
        (max(0, -span.start), max(0, span.stop - size)) for span, size in zip(reached, read.tensor.shape, strict=True)
    )


def met_by_halos(statement: Statement) -> tuple[Constraint, ...]:
    """The constraints that need no test where operands have their :func:`halos`: beyond them terms are exactly 0.

    A constraint is if the aggregation is a sum and the constraint is the edge of a read at whose zeros the expression
    vanishes: a factor of the product, the only operand, every summand, both branches of a choice. All others (other
    aggregations, sums of several operands, comparisons, constraints that were written) take clamped ranges.
    """
    if statement.aggregation != "+":
        return ()
    return tuple(constraint for constraint in statement.constraints if _is_met(statement, constraint))


def _is_met(statement: Statement, constraint: Constraint) -> bool:
    # What would be written outside cannot be made good by zeros that are read.
    if any(ranges.implies(constraint, edge) for edge in statement.output.edges if _can_fail(edge, statement)):
        return False
    beyond = {read for read in statement.reads if any(ranges.implies(edge, constraint) for edge in read.edges)}
    return bool(beyond) and _vanishes(statement.expression, beyond, statement)


def _can_fail(edge: Constraint, statement: Statement) -> bool:
    reached = edge.form.range(statement.box)
    return reached.start < 0 or reached.stop > edge.size


def _vanishes(expression: Expression, reads: set[Read], statement: Statement) -> bool:
    """Return True if the expression is exactly 0 wherever ``reads`` are and all other operands are finite."""

    def vanishes(part: Expression) -> bool:
        if part in reads or part == Number(0.0):
            return True
        if not isinstance(part, Apply):
            return False
        first, second = part.arguments[0], part.arguments[-1]
        if part.function == "multiply":
            return (vanishes(first) and _is_safe(second, statement)) or (
                vanishes(second) and _is_safe(first, statement)
            )
        if part.function == "divide":
            return vanishes(first) and isinstance(second, Number) and second.value != 0
        if part.function == "pow":
            return vanishes(first) and isinstance(second, Number) and second.value > 0
        if part.function == "select":
            return vanishes(second) and (vanishes(first) or vanishes(part.arguments[1]))
        return FUNCTIONS[part.function].keeps_zero and all(map(vanishes, part.arguments))

    return vanishes(expression)


def _is_safe(factor: Expression, statement: Statement) -> bool:
    """Return True if a factor is finite wherever its operands are, also where they are the zeros of a halo."""
    parts = list(factor.walk())
    if all(FUNCTIONS[part.function].tame for part in parts if isinstance(part, Apply)):
        return True
    edges = [edge for part in parts if isinstance(part, Read) for edge in part.edges]
    return not any(_can_fail(edge, statement) for edge in edges)


def met_within(statement: Statement, has_zeros: Callable[[Read, int, Sides], bool]) -> tuple[Constraint, ...]:
    """Return those of :func:`met_by_halos` whose zeros are there: ``has_zeros(read, axis, (before, after))``."""
    reach = {read: map_range(read, statement) for read in statement.reads}

    def is_met(constraint: Constraint) -> bool:
        return all(
            has_zeros(read, axis, reach[read][axis])
            for read in statement.reads
            for axis, edge in enumerate(read.edges)
            if reach[read][axis] != (0, 0) and ranges.implies(constraint, edge)
        )

    return tuple(filter(is_met, met_by_halos(statement)))


def halos(statement: Statement, met: Collection[Constraint] | None = None) -> dict[Read, Halo]:
    """The zeros that each read needs around its tensor, if ``met`` are met so and the rest is clamped.

    By default they are :func:`met_by_halos`.
    """
    met = met_by_halos(statement) if met is None else met
    clamped = [constraint for constraint in statement.constraints if constraint not in met]
    needed = {}
    for read in statement.reads:
        inside = [any(ranges.implies(constraint, edge) for constraint in clamped) for edge in read.edges]
        reached = map_range(read, statement)
        needed[read] = tuple((0, 0) if within else sides for within, sides in zip(inside, reached, strict=True))
    return needed


def terms(statement: Statement) -> int:
    """Return the number of terms: points of the box that meet the constraints.

    Exact but for constraints that tie together more than 4 million points, which count as if all were terms.
    """
    box = statement.box
    total = math.prod(len(span) for name, span in statement.ranges)
    for names, constraints in _tied(statement.constraints):
        points = math.prod(len(box[name]) for name in names)
        if points > _COUNTED:
            continue
        place = dict(zip(names, np.ix_(*(np.arange(box[n].start, box[n].stop) for n in names)), strict=True))
        keep = np.ones([len(box[name]) for name in names], bool)
        for constraint in constraints:
            value = constraint.form.offset + sum(factor * place[name] for name, factor in constraint.form.terms)
            keep &= (value >= 0) & (value < constraint.size)
        total = total // points * int(keep.sum())
    return total


def _tied(constraints: tuple[Constraint, ...]) -> list[tuple[list[str], list[Constraint]]]:
    """Groups of constraints that share indexes, each with its indexes."""
    groups: list[tuple[list[str], list[Constraint]]] = []
    for constraint in constraints:
        names, members = list(constraint.form.indexes), [constraint]
        apart = []
        for group in groups:
            if set(group[0]) & set(names):
                names, members = list(dict.fromkeys(group[0] + names)), group[1] + members
            else:
                apart.append(group)
        groups = [*apart, (names, members)]
    return groups


def flops(statement: Statement) -> int:
    """Floating-point operations: for every term its functions, and one to aggregate it."""
    functions = sum(FUNCTIONS[part.function].flops for part in statement.expression.walk() if isinstance(part, Apply))
    return terms(statement) * (functions + (statement.aggregation != "="))


def bytes_moved(statement: Statement, element: int = 4) -> int:
    """Bytes of memory that must move at least: each operand once, the output once, twice if it accumulates."""
    tensors = {read.tensor.name: read.tensor.elements for read in statement.reads}
    written = statement.output.tensor.elements * (1 + statement.accumulates)
    return element * (sum(tensors.values()) + written)
