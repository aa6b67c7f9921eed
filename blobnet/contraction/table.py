"""The flat table: a contraction as ranges, strides and offsets into buffers; all that schedules and code are made of.

Where tensors have the zeros around them that :mod:`blobnet.contraction.analysis` asks for, edges are no constraints any
more. What is left of the constraints is met by the limits of loops.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from blobnet.contraction import analysis, ranges
from blobnet.contraction.form import Affine, Constraint, Expression, Position, Read, Statement, rewritten
from blobnet.contraction.layout import Layout

#: Parts of an index: the neighbours of a run where it is cut, and the pieces of a sum that is split.
CUT, PIECE = "cut", "part"


def part_of(name: str, kind: str) -> str:
    """Return the name of an index that a schedule makes of another; texts of the language have no such names."""
    return f"{name}/{kind}"


def join_name(names: Iterable[str]) -> str:
    """Return the name of several indexes as one; texts have no such names either."""
    return ".".join(names)


@dataclass(frozen=True)
class Index:
    """An index from 0 on. ``period`` and ``kept``: of each so many values only the first ones are cells (0: all)."""

    name: str
    extent: int
    is_output: bool
    period: int = 0
    kept: int = 0


@dataclass(frozen=True)
class Operand:
    """A tensor as a statement touches it: for each axis its stride in memory, and an affine form of the indexes.

    Args:
        name: of the tensor.
        axes: stride and form; forms may be negative, where zeros are.
        offset: of the element where all forms are 0.
        block: of a copy that was packed for ``packed``: values of this index that lie side by side.
        packed: this index; one step of it is one element within a block, and ``packed_stride`` from a block's first
            to the next block's, divided by the block.
        packed_stride: see above.
    """

    name: str
    axes: tuple[tuple[int, Affine], ...]
    offset: int
    block: int = 0
    packed: str = ""
    packed_stride: int = 0

    def stride(self, index: str) -> int:
        """Elements that one step of an index moves."""
        return sum(stride * form.coefficient(index) for stride, form in self.axes)

    def origin_stride(self, index: str) -> int:
        """The same for the first index of a tile."""
        return self.packed_stride if index == self.packed else self.stride(index)

    @property
    def start(self) -> int:
        """The element for which all indexes are 0."""
        return self.offset + sum(stride * form.offset for stride, form in self.axes)

    @property
    def indexes(self) -> set[str]:
        """The indexes that move it."""
        return {name for _, form in self.axes for name in form.indexes if self.stride(name)}

    def with_axes(self, axes: Sequence[tuple[int, Affine]]) -> Operand:
        """The operand with other axes."""
        return replace(self, axes=tuple(axes))


@dataclass(frozen=True)
class Load(Expression):
    """The element of an operand."""

    operand: Operand

    def __str__(self) -> str:
        return self.operand.name


@dataclass(frozen=True)
class Value(Expression):
    """The result of the aggregation, in the expression of a store."""

    def __str__(self) -> str:
        return "value"


@dataclass(frozen=True)
class Store:
    """An element that is written for every cell, and what of."""

    operand: Operand
    expression: Expression


@dataclass(frozen=True)
class Table:
    """A contraction, flattened.

    Args:
        indexes: outputs first.
        aggregation: as of statements.
        expression: of one term: numbers, positions, loads.
        constraints: what terms must meet, beside being in their ranges.
        stores: what becomes of each cell's value.
        accumulates: whether the first store's element holds one more term.
        covers: whether every cell of what is stored is written, so that what lies between rows are their zeros.
        has_slack: whether something else may lie there, too, that is not to be written.
        sample: the number of the sample that a point is of, where the batch may have fewer than there is memory for:
            what is of others is neither a term nor a cell.
    """

    indexes: tuple[Index, ...]
    aggregation: str
    expression: Expression
    constraints: tuple[Constraint, ...]
    stores: tuple[Store, ...]
    accumulates: bool = False
    covers: bool = False
    sample: Affine | None = None
    has_slack: bool = False

    @cached_property
    def outputs(self) -> tuple[Index, ...]:
        """Indexes that tell cells apart."""
        return tuple(index for index in self.indexes if index.is_output)

    @cached_property
    def reductions(self) -> tuple[Index, ...]:
        """Indexes that are aggregated over."""
        return tuple(index for index in self.indexes if not index.is_output)

    @cached_property
    def extents(self) -> dict[str, int]:
        """The extent of each index."""
        return {index.name: index.extent for index in self.indexes}

    @cached_property
    def loads(self) -> tuple[Operand, ...]:
        """The operands of the terms, each once."""
        return loads_of(self.expression)

    @property
    def buffers(self) -> tuple[str, ...]:
        """The tensors that are touched: those that are read alone, then those that are written."""
        written = {store.operand.name: None for store in self.stores}
        read = [*self.loads, *(operand for store in self.stores for operand in loads_of(store.expression))]
        return (*dict.fromkeys(operand.name for operand in read if operand.name not in written), *written)

    @property
    def updates(self) -> bool:
        """True if something is stored where something was loaded, so that no cell may be made twice."""
        loads = [*self.loads, *(operand for store in self.stores for operand in loads_of(store.expression))]
        return self.accumulates or not {store.operand.name for store in self.stores}.isdisjoint(o.name for o in loads)

    @property
    def cell_constraints(self) -> tuple[Constraint, ...]:
        """Constraints of outputs alone: where one fails there is no term, and no cell unless all cells are covered."""
        inner = {index.name for index in self.reductions}
        return tuple(constraint for constraint in self.constraints if not inner & set(constraint.form.indexes))

    @cached_property
    def sample_reduction(self) -> str:
        """The reduction index that runs over samples, whose last value is known at launch alone; "" if none does."""
        inner = {index.name for index in self.reductions}
        return next((name for name in (self.sample.indexes if self.sample else ()) if name in inner), "")

    @property
    def sample_cell(self) -> Affine | None:
        """The number of the sample that a cell is of; None if cells are of all."""
        return None if self.sample_reduction else self.sample

    def index(self, name: str) -> Index:
        """The index of a name."""
        return next(index for index in self.indexes if index.name == name)

    def changed(
        self, form: Callable[[Affine], Affine] = lambda form: form, operand: Callable[[Operand], Operand] | None = None
    ) -> Table:
        """The table with other forms everywhere, and other operands: those with such forms by default."""

        def with_forms(old: Operand) -> Operand:
            return old.with_axes([(stride, form(own)) for stride, own in old.axes])

        def expression(old: Expression) -> Expression:
            return changed_forms(old, form, operand or with_forms)

        return replace(
            self,
            expression=expression(self.expression),
            constraints=tuple(replace(bound, form=form(bound.form)) for bound in self.constraints),
            stores=tuple(Store((operand or with_forms)(s.operand), expression(s.expression)) for s in self.stores),
            sample=self.sample and form(self.sample),
        )

    def __str__(self) -> str:
        return _text(self)


def loads_of(expression: Expression) -> tuple[Operand, ...]:
    """The operands that an expression loads, each once."""
    return tuple(dict.fromkeys(node.operand for node in expression.walk() if isinstance(node, Load)))


def changed_forms(
    expression: Expression, form: Callable[[Affine], Affine], operand: Callable[[Operand], Operand]
) -> Expression:
    """The expression with other forms and operands."""

    def change(node: Expression) -> Expression | None:
        if isinstance(node, Load):
            return Load(operand(node.operand))
        return Position(form(node.form)) if isinstance(node, Position) else None

    return rewritten(expression, change)


# -- from statements -------------------------------------------------------------------------------------------------


def flatten(
    statement: Statement,
    layouts: Mapping[str, Layout],
    stores: Sequence[tuple[Read, Expression]] = (),
    sample: str = "",
) -> Table:
    """The table of a statement for tensors that lie in memory so; a halo that is large enough replaces constraints.

    Args:
        statement: one whose output indexes tell cells apart.
        layouts: of every tensor that it touches.
        stores: what is written for each cell: the element, with maps of the statement's output indexes, and the value,
            in which :class:`Value` is the cell's; the statement's own output if empty.
        sample: the index that runs over the samples of a batch, from 0 on.
    """
    box = statement.box
    shifts = {name: Affine.index(name) + span.start for name, span in statement.ranges}

    def operand(read: Read) -> Operand:
        layout = layouts[read.tensor.name]
        forms = read.substitute(shifts).map
        axes = [(stride, form) for stride, form in zip(layout.strides, forms, strict=True) if stride]
        return Operand(read.tensor.name, tuple(axes), layout.offset)

    def lowered(expression: Expression) -> Expression:
        def change(node: Expression) -> Expression | None:
            if isinstance(node, Read):
                return Load(operand(node))
            return Position(node.form.substitute(shifts)) if isinstance(node, Position) else None

        return rewritten(expression, change)

    met = analysis.met_within(statement, zeros_of(layouts))
    outputs = set(statement.output_indexes)
    names = [*statement.output_indexes, *statement.reduction_indexes]
    kept = [constraint for constraint in statement.constraints if constraint not in met]
    return Table(
        tuple(Index(name, len(box[name]), name in outputs) for name in names),
        statement.aggregation,
        lowered(statement.expression),
        tuple(constraint.substitute(shifts) for constraint in kept),
        tuple(Store(operand(read), lowered(value)) for read, value in stores or [(statement.output, Value())]),
        statement.accumulates,
        covers(statement),
        Affine.index(sample) if sample else None,
    )


def zeros_of(layouts: Mapping[str, Layout]) -> Callable[[Read, int, tuple[int, int]], bool]:
    """Return a function that tells whether a read finds so many zeros before and after a tensor, along an axis."""

    def has_zeros(read: Read, axis: int, sides: tuple[int, int]) -> bool:
        before, after = layouts[read.tensor.name].halo[axis]
        return before >= sides[0] and after >= sides[1]

    return has_zeros


def covers(statement: Statement) -> bool:
    """Return True if every cell of the output is written."""
    box = statement.box
    if len(statement.output_indexes) != sum(bool(form.terms) for form in statement.output.map):
        return False
    return all(
        abs(form.terms[0][1]) == 1 and len(form.terms) == 1 and len(box[form.indexes[0]]) == size
        if form.terms
        else size == 1
        for form, size in zip(statement.output.map, statement.output.tensor.shape, strict=True)
    )


# -- rewriting -------------------------------------------------------------------------------------------------------


def period_of(table: Table, outer: str, inner: str) -> int:
    """Steps of ``inner`` that are one step of ``outer`` in every operand; 0 if they cannot be one index."""
    first, second = table.index(outer), table.index(inner)
    constrained = {name for constraint in table.constraints for name in constraint.form.indexes}
    everything = [table.expression, *(store.expression for store in table.stores)]
    positions = {
        name
        for expression in everything
        for node in expression.walk()
        if isinstance(node, Position)
        for name in node.form.indexes
    }
    if table.sample:
        constrained |= set(table.sample.indexes)
    if first.is_output != second.is_output or {outer, inner} & (constrained | positions) or first.period:
        return 0
    operands = [operand for expression in everything for operand in loads_of(expression)]
    operands += [store.operand for store in table.stores]
    periods = set()
    for operand in operands:
        far, near = operand.stride(outer), operand.stride(inner)
        if not far and not near:
            continue
        if not near or far % near or operand.packed in (outer, inner):
            return 0
        periods.add(far // near)
    period = periods.pop() if len(periods) == 1 else 0
    # Gaps between rows are for cells alone: a reduction never takes in what is between them.
    fits = period >= second.extent if first.is_output and not second.period else period == second.extent
    return period if fits and period > 0 else 0


def joined(table: Table, outer: str, inner: str) -> Table:
    """The table with two neighbours as one index, called by both names; see :func:`period_of`."""
    period = period_of(table, outer, inner)
    first, second = table.index(outer), table.index(inner)
    name = join_name((outer, inner))
    extent = (first.extent - 1) * period + second.extent

    def operand(old: Operand) -> Operand:
        near = [axis for axis in old.axes if axis[1].coefficient(inner)]
        if not near:
            return old
        far = [axis for axis in old.axes if axis[1].coefficient(outer) and axis not in near]
        others = [axis for axis in old.axes if axis not in near and axis not in far]
        unit = math.gcd(*(stride for stride, _ in near + far))
        total = Affine()
        for stride, form in near + far:
            total += form * (stride // unit)
        step = total.coefficient(inner)
        rest = total.substitute({outer: Affine(), inner: Affine()})
        return old.with_axes([*others, (unit, rest + Affine.index(name) * step)])

    gaps = (period, second.extent) if period > second.extent else (0, 0)
    if second.period:
        gaps = second.period, second.kept
    new = Index(name, extent, first.is_output, *gaps)
    indexes = [new if index.name == outer else index for index in table.indexes if index.name != inner]
    return replace(table.changed(operand=operand), indexes=tuple(indexes))


def cut(table: Table, name: str, size: int) -> Table:
    """The table with a reduction index as two: runs of ``size`` neighbours, and ``NAME/cut`` within a run."""
    inner = part_of(name, CUT)
    forms = {name: Affine.index(name) * size + Affine.index(inner)}

    def operand(old: Operand) -> Operand:
        axes: list[tuple[int, Affine]] = []
        for stride, form in old.axes:
            if form.indexes == (name,):  # Two axes: each has its own stride in local memory.
                factor = form.coefficient(name)
                within = form.substitute({name: Affine.index(inner)})
                axes += [(stride * size, Affine.index(name) * factor), (stride, within)]
            else:
                axes.append((stride, form.substitute(forms)))
        return old.with_axes(axes)

    indexes: list[Index] = []
    for index in table.indexes:
        parts = [replace(index, extent=index.extent // size), Index(inner, size, False)]
        indexes += parts if index.name == name else [index]
    return replace(table.changed(lambda form: form.substitute(forms), operand), indexes=tuple(indexes))


def interior(table: Table, name: str) -> range:
    """The values of an output index for which no constraint with it can fail."""
    spans = {index.name: range(index.extent) for index in table.indexes}
    first, last = 0, spans[name].stop - 1
    for bound in table.constraints:
        factor = bound.form.coefficient(name)
        if factor:
            rest = (bound.form - Affine.index(name) * factor).range(spans)
            ends = -rest.start, bound.size - rest.stop  # 0 <= factor * value + rest < size
            low, high = ends if factor > 0 else (-ends[1], -ends[0])
            first, last = max(first, -(-low // abs(factor))), min(last, high // abs(factor))
    return range(first, max(first, last + 1))


def restricted(table: Table, name: str, span: range) -> Table:
    """The table for some values of an output index alone, counted from the first of them."""
    forms = {name: Affine.index(name) + span.start}

    moved = table.changed(lambda form: form.substitute(forms))
    indexes = tuple(replace(index, extent=len(span)) if index.name == name else index for index in table.indexes)
    spans = {index.name: range(index.extent) for index in indexes}
    covers = table.covers and len(span) == table.extents[name]
    return replace(moved, indexes=indexes, constraints=ranges.needed(moved.constraints, spans), covers=covers)


def _text(table: Table) -> str:
    """The table as the seed prints it: a row an index, a column an operand."""
    operands = {f"{store.operand.name} =": store.operand for store in table.stores}
    loads = [*table.loads, *(operand for store in table.stores for operand in loads_of(store.expression))]
    for operand in dict.fromkeys(loads):
        name = operand.name
        while name in operands:
            name += "'"
        operands[name] = operand
    rows = [["", "range", *operands]]
    for index in table.indexes:
        kind = "" if index.is_output else "+"
        rows.append(
            [index.name + kind, str(index.extent), *(str(item.stride(index.name)) for item in operands.values())]
        )
    rows.append(["offset", "", *(str(item.start) for item in operands.values())])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)) for row in rows]
    lines += [f"constraint: {constraint}" for constraint in table.constraints]
    lines += [f"samples: {table.sample} < count"] if table.sample else []
    lines += [f"gaps: {item.name} % {item.period} < {item.kept}" for item in table.indexes if item.period]
    lines += [
        f"store: {store.operand.name} = {store.expression}" for store in table.stores if store.expression != Value()
    ]
    return "\n".join(lines)
