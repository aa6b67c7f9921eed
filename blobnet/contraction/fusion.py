"""Element-wise statements that are computed where a contraction has a cell in its registers, before it is stored.

Statements of one term a cell, as derivatives of element-wise ones are, count as element-wise whatever they aggregate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

from blobnet.contraction import ranges
from blobnet.contraction.derivatives import substituted
from blobnet.contraction.form import Affine, Apply, Expression, Program, Read, Statement, Tensor, rewritten
from blobnet.contraction.table import Value


@dataclass(frozen=True)
class Fused:
    """A statement, and what follows it cell by cell.

    Args:
        head: gives each cell its value.
        after: element-wise statements in the indexes of the head's output, with its map. Of what is computed here they
            read the same cell only.
        stored: the names of the tensors that others read; the rest need no memory.
    """

    head: Statement
    after: tuple[Statement, ...]
    stored: tuple[str, ...]

    @cached_property
    def stores(self) -> tuple[tuple[Read, Expression], ...]:
        """The elements that are stored for each cell, and their values in terms of that of the head."""
        output = self.head.output
        values: dict[Tensor, Expression] = {output.tensor: Value()}
        for part in self.after:
            tensor = part.output.tensor

            def change(node: Expression) -> Expression | None:
                return values.get(node.tensor) if isinstance(node, Read) else None

            value = rewritten(part.expression, change)
            if part.accumulates:
                value = Apply(_COMBINE[part.aggregation], (values.get(tensor, part.output), value))
            values[tensor] = value
        needed = {*self.stored, *([output.tensor.name] if self.head.accumulates else [])}
        return tuple((Read(tensor, output.map), value) for tensor, value in values.items() if tensor.name in needed)


#: The functions that do for two terms what aggregations do.
_COMBINE = {"+": "add", "=": "add", "*": "multiply", ">": "max", "<": "min"}


def fuse(program: Program) -> tuple[Fused, ...]:
    """The program's statements, each element-wise one with the last that it waits for, where that is possible.

    It is where both outputs have the same shape, the head gives every cell at once (not a phase of them), and nothing
    is read at other cells. Statements come earlier by that, but never before what they read or add to.
    """
    groups: list[list[Statement]] = []
    written: dict[str, int] = {}  # the group that wrote a tensor last
    read: dict[str, int] = {}  # and that read it last
    for statement in program.statements:
        own = statement.output.tensor.name
        names = [operand.tensor.name for operand in statement.reads]
        place = max((written.get(name, -1) for name in [*names, *([own] if statement.accumulates else [])]), default=-1)
        joins = _is_cellwise(statement) and place >= max(0, read.get(own, 0))
        if joins and _fits(statement, groups[place]):
            groups[place].append(_at_cell(statement, groups[place][0]))
        else:
            place = len(groups)
            groups.append([statement])
        written[own] = place
        for name in names:
            read[name] = max(place, read.get(name, 0))
    outputs = {tensor.name for tensor in program.outputs}
    return tuple(Fused(group[0], tuple(group[1:]), _stored(group, groups, outputs)) for group in groups)


def _is_cellwise(statement: Statement) -> bool:
    """Return True if each cell has one term, at indexes that are the output's axes: as in element-wise statements."""
    axes = [form.indexes[0] for form in statement.output.map if form.terms]
    plain = statement.output.map == tuple(map(Affine.index, axes))
    alone = not statement.reduction_indexes and not statement.constraints
    return plain and alone and _gives_every_cell(statement)


def _fits(statement: Statement, group: list[Statement]) -> bool:
    output = group[0].output
    computed = {other.output.tensor.name for other in group}
    return (
        statement.output.tensor.shape == output.tensor.shape
        and _gives_every_cell(group[0])
        and all(read.map == statement.output.map for read in statement.reads if read.tensor.name in computed)
    )


def _gives_every_cell(statement: Statement) -> bool:
    """Return True if the output's indexes run through all cells, each once."""
    box, output = statement.box, statement.output
    inside = all(
        form.range(box).start >= 0 and form.range(box).stop <= size
        for form, size in zip(output.map, output.tensor.shape, strict=True)
    )
    cells = math.prod(len(box[name]) for name in statement.output_indexes)
    # Constraints may leave out all terms of a cell, but not the cell, which is neutral then.
    return inside and cells == output.tensor.elements and ranges.tells_apart(output.map, box)


def _at_cell(statement: Statement, head: Statement) -> Statement:
    """An element-wise statement in the indexes of another one's output."""
    axes = zip(statement.output.map, head.output.map, strict=True)
    forms = {axis.indexes[0]: form for axis, form in axes}
    outer = head.output_indexes
    return replace(
        statement,
        output=Read(statement.output.tensor, head.output.map),
        aggregation="=",
        expression=substituted(statement.expression, forms),
        ranges=tuple((name, span) for name, span in head.ranges if name in outer),
    )


def _stored(group: list[Statement], groups: list[list[Statement]], outputs: set[str]) -> tuple[str, ...]:
    elsewhere = {read.tensor.name for other in groups if other is not group for part in other for read in part.reads}
    names = dict.fromkeys(part.output.tensor.name for part in group)
    return tuple(name for name in names if name in elsewhere | outputs)
