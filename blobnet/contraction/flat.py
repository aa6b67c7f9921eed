"""Statements as tables: with the memory layout known, every access is one affine form of the indexes.

As in PlaidML (J. Bruestle, "Automatic Kernel Generation in PlaidML", 2018): a row an index, with its range and how many
elements one step of it moves each access, and constraints one side at a time. Ranges start at 0 here, and an index of
one value is no row: both are in the offsets.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from blobnet.contraction.form import Affine, Read, Shape, Statement


@dataclass(frozen=True)
class Access:
    """Where a statement reads or writes: element ``offset`` + sum of stride * index, one stride an index."""

    tensor: str
    strides: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class Bound:
    """One side of a constraint: sum of factor * index <= ``most``, one factor an index."""

    factors: tuple[int, ...]
    most: int

    def __str__(self) -> str:
        return f"({','.join(map(str, self.factors))}) <= {self.most}"


@dataclass(frozen=True)
class Flat:
    """A statement's table.

    Args:
        indexes: in alphabetical order.
        ranges: how many values each takes, from 0.
        output: what is written.
        operands: what is read, in the order of the expression.
        bounds: the sides of constraints that the ranges do not imply.
    """

    indexes: tuple[str, ...]
    ranges: tuple[int, ...]
    output: Access
    operands: tuple[Access, ...]
    bounds: tuple[Bound, ...]

    def __str__(self) -> str:
        accesses = (self.output, *self.operands)
        lines: list[list[object]] = [["", "Range", *(access.tensor for access in accesses)]]
        for row, (index, size) in enumerate(zip(self.indexes, self.ranges, strict=True)):
            lines.append([index, size, *(access.strides[row] for access in accesses)])
        lines.append(["off", "", *(access.offset for access in accesses)])
        table = ["".join(str(cell).rjust(10 if column else 8) for column, cell in enumerate(line)) for line in lines]
        return "\n".join([*table, *(f"Constraint: {bound}" for bound in self.bounds)])


def packed(shape: Shape) -> tuple[int, ...]:
    """The strides of an array in C order without padding."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def flatten(statement: Statement, strides: Mapping[str, tuple[int, ...]] | None = None) -> Flat:
    """The table of a statement.

    Args:
        statement: what to flatten.
        strides: elements from one cell to the next along each axis, for tensors that are not :func:`packed`.
    """
    box = statement.box
    indexes = tuple(sorted(name for name, span in box.items() if len(span) > 1))
    # Every index counts from its first value.
    starts = {name: Affine.index(name) + span.start for name, span in box.items()}
    starts |= {name: Affine((), span.start) for name, span in box.items() if len(span) == 1}

    def access(read: Read) -> Access:
        pitches = (strides or {}).get(read.tensor.name, packed(read.tensor.shape))
        total = Affine()
        for form, pitch in zip(read.map, pitches, strict=True):
            total += form.substitute(starts) * pitch
        return Access(read.tensor.name, tuple(map(total.coefficient, indexes)), total.offset)

    bounds = []
    counted = {name: range(len(span)) for name, span in box.items()}
    for constraint in statement.constraints:
        form = constraint.form.substitute(starts)
        factors = tuple(map(form.coefficient, indexes))
        reached = form.range(counted)
        if reached.start < 0:
            bounds.append(Bound(tuple(-factor for factor in factors), form.offset))
        if reached.stop > constraint.size:
            bounds.append(Bound(factors, constraint.size - 1 - form.offset))
    ranges = tuple(len(box[name]) for name in indexes)
    return Flat(indexes, ranges, access(statement.output), tuple(map(access, statement.reads)), tuple(bounds))
