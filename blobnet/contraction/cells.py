"""Programs whose tensors have units in cells: u = CELL * cell + unit, an axis of cells and one of their units.

In a blob of cells (docs/memory_layout.md) the units of a cell are the innermost axis. A statement that walks units one
after another walks cells, and the units of each. Where it walks axes of other tensors by the same index, these are in
two as well, so that each axis has an index by itself, as before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeVar

from blobnet.contraction.form import (
    Affine,
    Constraint,
    Expression,
    Position,
    Program,
    Read,
    Statement,
    Tensor,
    rewritten,
    unused,
)
from blobnet.contraction.layout import Layout

#: The axis of the units of a tensor in a blob.
UNITS = 1
#: An axis of a tensor, by name and number.
_Axis = tuple[str, int]
_Value = TypeVar("_Value")


@dataclass(frozen=True)
class InCells:
    """Which axes of a program's tensors are in two.

    Attributes:
        cell: units of a cell.
        names: the tensors that lie in cells: the units of a cell are their innermost axis.
        axes: all axes that are in two, those of ``names`` among them.
    """

    cell: int
    names: frozenset[str] = frozenset()
    axes: frozenset[_Axis] = frozenset()

    def each(
        self, name: str, values: Sequence[_Value], parts: Callable[[_Value], tuple[_Value, _Value]]
    ) -> tuple[_Value, ...]:
        """What each axis of a tensor has, with two parts for those in two: of cells, and of the units of a cell."""
        found, innermost = list[_Value](), list[_Value]()
        for axis, value in enumerate(values):
            if (name, axis) in self.axes:
                cells, units = parts(value)
                found.append(cells)
                (innermost if name in self.names else found).append(units)
            else:
                found.append(value)
        return (*found, *innermost)

    def tensor(self, tensor: Tensor) -> Tensor:
        """A tensor with its axes in two."""
        return Tensor(tensor.name, self.each(tensor.name, tensor.shape, lambda size: (size // self.cell, self.cell)))

    def layout(self, name: str, layout: Layout) -> Layout:
        """The layout of a tensor that does not lie in cells, with its axes in two."""
        return replace(
            layout,
            shape=self.each(name, layout.shape, lambda size: (size // self.cell, self.cell)),
            strides=self.each(name, layout.strides, lambda stride: (self.cell * stride, stride)),
            halo=self.each(name, layout.halo, lambda zeros: (zeros, zeros)),
        )

    def read(self, read: Read, forms: dict[str, Affine]) -> Read:
        """An element, by forms of other indexes."""

        def parts(form: Affine) -> tuple[Affine, Affine]:
            whole = Affine.of({name: factor // self.cell for name, factor in form.terms}, form.offset // self.cell)
            return whole, form - whole * self.cell

        maps = [form.substitute(forms) for form in read.map]
        return Read(self.tensor(read.tensor), self.each(read.tensor.name, maps, parts))


@lru_cache(1024)
def in_cells(
    program: Program, cell: int, names: frozenset[str], blobs: frozenset[str] = frozenset()
) -> tuple[Program, InCells] | None:
    """Return a program with some of its tensors in cells, and which axes of all are in two.

    Args:
        program: what it is made of.
        cell: units of a cell.
        names: the inputs and outputs (samples, units, ...) that lie in cells.
        blobs: other tensors that lie in blobs, which have zeros around all but samples and units.

    Returns:
        None if a statement does not walk whole cells, one after another.
    """
    wanted = frozenset((name, UNITS) for name in names)
    refused = {
        (read.tensor.name, axis)
        for statement in program.statements
        for read, axis, _ in _elements(statement)
        if axis != UNITS and read.tensor.name in names | blobs
    }
    while True:
        axes = _joined(program, cell, wanted, refused)
        unfit = {
            (read.tensor.name, axis)
            for statement in program.statements
            for read, axis, form in _elements(statement)
            if (read.tensor.name, axis) in axes and not _is_whole(statement, form, read.tensor.shape[axis], cell)
        }
        if unfit & wanted:
            return None
        if not unfit:
            break
        refused |= unfit
    # What is the program's own lies as what it is made of.
    given = {tensor.name for tensor in (*program.inputs, *program.outputs)}
    own = {
        one.output.tensor.name
        for one in program.statements
        if len(one.output.map) > UNITS + 1 and (one.output.tensor.name, UNITS) in axes
    }
    cells = InCells(cell, names | own - given, axes)
    inputs, outputs = (tuple(map(cells.tensor, side)) for side in (program.inputs, program.outputs))
    return Program(inputs, outputs, tuple(_changed(statement, cells) for statement in program.statements)), cells


def _elements(statement: Statement) -> list[tuple[Read, int, Affine]]:
    """All that a statement reads and writes, axis by axis."""
    return [(read, axis, form) for read in (statement.output, *statement.reads) for axis, form in enumerate(read.map)]


def _walkers(statement: Statement, form: Affine, cell: int) -> list[str]:
    """The indexes of which a step is not one of whole cells, but for those that are 0."""
    return [name for name, factor in form.terms if factor % cell and statement.box[name] != range(1)]


def _is_whole(statement: Statement, form: Affine, size: int, cell: int) -> bool:
    """Return True if a form walks the units of whole cells within an axis, or stays at one unit of each cell."""
    walkers, span = _walkers(statement, form, cell), form.range(statement.box)
    if size % cell or span.start < 0 or span.stop > size or len(walkers) > 1:
        return False
    walked = [statement.box[name] for name in walkers]
    starts = [form.offset, *(end for box in walked for end in (box.start, box.stop))]
    return not walkers or (form.coefficient(walkers[0]) == 1 and not any(number % cell for number in starts))


def _joined(program: Program, cell: int, wanted: frozenset[_Axis], refused: Collection[_Axis]) -> frozenset[_Axis]:
    """The axes that are walked by an index that walks one of the wanted axes, or one of these, and so on."""
    axes, before = set(wanted), set[_Axis]()
    while axes != before:
        before = set(axes)
        for statement in program.statements:
            walkers = _split_indexes(statement, cell, axes)
            for read, axis, form in _elements(statement):
                if walkers.intersection(_walkers(statement, form, cell)) and (read.tensor.name, axis) not in refused:
                    axes.add((read.tensor.name, axis))
    return frozenset(axes)


def _split_indexes(statement: Statement, cell: int, axes: Collection[_Axis]) -> set[str]:
    """The indexes that walk the units of axes in two."""
    return {
        name
        for read, axis, form in _elements(statement)
        if (read.tensor.name, axis) in axes
        for name in _walkers(statement, form, cell)
    }


def _changed(statement: Statement, cells: InCells) -> Statement:
    """A statement of tensors with axes in two."""
    walkers, taken = _split_indexes(statement, cells.cell, cells.axes), set(statement.box)
    units = dict[str, str]()
    for name in sorted(walkers):
        units[name] = unused(f"{name}_unit", taken)
        taken.add(units[name])
    forms = {name: Affine.of({name: cells.cell, unit: 1}) for name, unit in units.items()}

    def change(node: Expression) -> Expression | None:
        if isinstance(node, Read):
            return cells.read(node, forms)
        return Position(node.form.substitute(forms)) if isinstance(node, Position) else None

    ranges = list[tuple[str, range]]()
    for name, span in statement.ranges:
        if name in units:
            ranges += [(name, range(span.start // cells.cell, span.stop // cells.cell))]
            ranges += [(units[name], range(cells.cell))]
        else:
            ranges.append((name, span))
    return replace(
        statement,
        output=cells.read(statement.output, forms),
        expression=rewritten(statement.expression, change),
        ranges=tuple(ranges),
        constraints=tuple(Constraint(item.form.substitute(forms), item.size) for item in statement.constraints),
    )
