"""Clamped loops run through the terms of a cell, all of them and no others."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest

from blobnet.contraction import analysis, function, reference
from blobnet.contraction.derivatives import differentiate
from blobnet.contraction.form import Constraint, Statement
from blobnet.contraction.loops import Quotient, clamped
from tests.contraction.conformance import gathered_program
from tests.contraction.random_contractions import bound

Point = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Loop:
    """An index from the greatest of ``firsts`` and the span's first to the least of ``lasts`` and its last."""

    index: str
    span: range
    firsts: Sequence[Quotient]
    lasts: Sequence[Quotient]

    def values(self, outside: Mapping[str, int]) -> range:
        """The values that it runs through, for values of the indexes outside."""
        here = {name: range(value, value + 1) for name, value in outside.items()}
        first, last = ([form.range(here).start // by for form, by in ends] for ends in (self.firsts, self.lasts))
        return range(max([self.span.start, *first]), min([self.span.stop - 1, *last]) + 1)


def texts(ends: Sequence[Quotient]) -> list[tuple[str, int]]:
    return [(str(form), divisor) for form, divisor in ends]


@dataclass(frozen=True)
class Nest:
    """The loops of one cell, outermost first; ``conditions`` are of the cell alone: if one fails there are no terms."""

    conditions: tuple[Constraint, ...]
    loops: tuple[Loop, ...]


def nest(statement: Statement, order: Sequence[str] | None = None, met: Collection[Constraint] = ()) -> Nest:
    """The loops over the terms of one cell.

    Args:
        statement: whose output's indexes tell cells apart (:func:`blobnet.contraction.phases.gathered`).
        order: its reduction indexes, outermost first; as they appear by default.
        met: constraints that are met otherwise, by halos.
    """
    order = statement.reduction_indexes if order is None else order
    left = [constraint for constraint in statement.constraints if constraint not in met]
    loops: list[Loop] = []
    for index in reversed(order):
        own = [constraint for constraint in left if constraint.form.coefficient(index)]
        left = [constraint for constraint in left if constraint not in own]
        loops.insert(0, Loop(index, statement.box[index], *clamped(index, own, statement.box)))
    return Nest(tuple(left), tuple(loops))


def looped(statement: Statement, order: list[str], met: tuple[Constraint, ...]) -> list[Point]:
    """The points that loops run through, cell by cell."""
    found = nest(statement, order, met)
    points: list[Point] = []

    def run(loops: tuple[Loop, ...], place: dict[str, int]) -> None:
        if not loops:
            points.append(tuple(sorted(place.items())))
            return
        for value in loops[0].values(place):
            run(loops[1:], {**place, loops[0].index: value})

    for cell in product(*(statement.box[name] for name in statement.output_indexes)):
        place = dict(zip(statement.output_indexes, cell, strict=True))
        here = {name: range(value, value + 1) for name, value in place.items()}
        if all(0 <= bound.form.range(here).start < bound.size for bound in found.conditions):
            run(found.loops, place)
    return points


def terms(statement: Statement, met: tuple[Constraint, ...]) -> list[Point]:
    return [
        tuple(sorted((name, int(points[name][n])) for name in statement.box))
        for points in reference.blocks(statement, met)
        for n in range(len(points[""]))
    ]


@pytest.mark.parametrize("seed", range(4))
def test_loops_run_through_the_terms(seed: int) -> None:
    rng = np.random.default_rng(seed)
    clamped = 0
    for _, program in bound(300 + seed, 60):
        for statement in (*program.statements, *gathered_program(differentiate(program)).statements):
            if statement.points > 2000:
                continue
            order = [str(name) for name in rng.permutation(statement.reduction_indexes)]
            met = analysis.met_by_halos(statement) if rng.random() < 0.5 else ()
            points = looped(statement, order, met)
            assert len(points) == len(set(points))
            assert sorted(points) == sorted(terms(statement, met))
            clamped += bool(set(statement.constraints) - set(met))
    assert clamped > 15


def test_a_padded_maximum_clamps_its_windows() -> None:
    (statement,) = function("O[y : 4] = >(I[2*y + a - 1]), a < 3").program(I=(7,)).statements
    (loop,) = nest(statement).loops
    assert (loop.index, loop.span) == ("a", range(3))
    assert (texts(loop.firsts), texts(loop.lasts)) == ([("-2*y + 1", 1)], [("-2*y + 7", 1)])
    assert [loop.values({"y": y}) for y in range(4)] == [range(1, 3), range(3), range(3), range(2)]


def test_a_triangle_is_a_loop_that_ends_early() -> None:
    (statement,) = function("O[i : 5] = +(A[j]), i - 2*j < 9").program(A=(5,)).statements
    (loop,) = nest(statement).loops
    assert (texts(loop.firsts), texts(loop.lasts)) == ([], [("i", 2)])
    assert [loop.values({"i": i}) for i in range(5)] == [range(i // 2 + 1) for i in range(5)]


def test_constraints_of_the_cell_alone_are_conditions() -> None:
    (statement,) = function("O[i, j : 5, 5] = +(A[i] * A[j] * A[k]), i - j < 5").program(A=(5,)).statements
    found = nest(statement)
    assert list(map(str, found.conditions)) == ["i - j < 5"]
    assert [(loop.firsts, loop.lasts) for loop in found.loops] == [([], [])]
