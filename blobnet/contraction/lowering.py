"""From programs to launches: layouts with their halos, fused statements, phases, split sums and packed operands."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from blobnet.contraction import analysis
from blobnet.contraction.form import NEUTRAL, Affine, Apply, Expression, Number, Program, Read, Statement, Tensor
from blobnet.contraction.fusion import Fused, fuse
from blobnet.contraction.layout import Halo, Layout
from blobnet.contraction.phases import disjoint, gathered
from blobnet.contraction.schedule import Schedule, Tile, check, constrained, operand_names, with_joins
from blobnet.contraction.source import Kernel, generate, program_text
from blobnet.contraction.table import (
    Index,
    Load,
    Operand,
    Store,
    Table,
    Value,
    changed_forms,
    covers,
    flatten,
    rewritten,
)

#: Times its data that a tensor's memory may be for its zeros; beyond that, loops are clamped.
MOST_ZEROS = 4
#: Rows of two tensors get the same pitch if none grows by more than this.
MOST_PITCH = 1.3


@dataclass(frozen=True)
class Step:
    """One launch, and the table and the schedule that it was made from."""

    table: Table
    schedule: Schedule
    kernel: Kernel


@dataclass(frozen=True)
class Lowered:
    """A program for a device.

    Args:
        layouts: of its tensors; each has a buffer.
        elements: of every buffer, those of kernels' own use too.
        steps: launches, one after another.
    """

    program: Program
    layouts: Mapping[str, Layout]
    elements: Mapping[str, int]
    steps: tuple[Step, ...]

    @property
    def source(self) -> str:
        """The text of the program of all launches."""
        return program_text(step.kernel for step in self.steps)


@dataclass(frozen=True)
class Group:
    """A statement whose output indexes tell cells apart, and what is stored for each cell."""

    statement: Statement
    stores: tuple[tuple[Read, Expression], ...]


def lower(program: Program, choose: Callable[[Table], Schedule]) -> Lowered:
    """The launches of a program.

    Args:
        program: what to run.
        choose: gives the schedule of each table.
    """
    groups = grouped(program)
    layouts = laid_out(program, groups)
    elements = {name: layout.elements for name, layout in layouts.items()}
    tables: list[tuple[Table, Schedule]] = []
    for group in groups:
        table = flatten(group.statement, layouts, group.stores)
        tables += scheduled(table, choose(table), elements)
    steps = [
        Step(table, schedule, generate(table, schedule, f"make_{table.stores[0].operand.name}_{number}"))
        for number, (table, schedule) in enumerate(tables)
    ]
    return Lowered(program, layouts, elements, tuple(steps))


# -- statements ------------------------------------------------------------------------------------------------------


def grouped(program: Program) -> list[Group]:
    """The statements as kernels will make them: phases apart, element-wise expressions fused to what they follow."""
    statements: list[Statement] = []
    for number, statement in enumerate(program.statements):
        later = program.statements[number + 1 :]
        statements += _pieces(statement, any(_adds_to(other, statement) for other in later))
    groups = [_group(part) for part in fuse(replace(program, statements=tuple(statements)))]
    return [group for group in groups if group.stores]  # of others nobody reads anything


def _adds_to(later: Statement, statement: Statement) -> bool:
    return later.accumulates and later.output.tensor == statement.output.tensor


def _pieces(statement: Statement, is_added_to: bool) -> list[Statement]:
    """The phases of a statement, behind one that fills the output if they leave cells out.

    NOTE: cells that no phase writes keep what a buffer begins with, zeros; so these need no filling, unless a later
    statement adds to them.
    """
    pieces = list(gathered(statement))
    if statement.accumulates or (len(pieces) == 1 and covers(pieces[0])):
        return pieces
    apart = all(disjoint(a.output, b.output) for number, a in enumerate(pieces) for b in pieces[:number])
    if apart and NEUTRAL[statement.aggregation] == 0 and not is_added_to:
        return [replace(piece, accumulates=False) for piece in pieces]
    tensor = statement.output.tensor
    axes = tuple((f"_{axis}", range(size)) for axis, size in enumerate(tensor.shape))
    whole = Read(tensor, tuple(Affine.index(name) for name, _ in axes))
    fill = Statement(whole, "=", Number(NEUTRAL[statement.aggregation]), axes)
    return [fill, *(replace(piece, accumulates=True) for piece in pieces)]


def _group(fused: Fused) -> Group:
    """A statement, with the expressions of what follows it in terms of its cell's value."""
    head = fused.head
    values: dict[Tensor, Expression] = {head.output.tensor: Value()}
    for part in fused.after:

        def change(node: Expression) -> Expression | None:
            return values.get(node.tensor) if isinstance(node, Read) else None

        value = rewritten(part.expression, change)
        tensor = part.output.tensor
        if part.accumulates:
            value = Apply(_COMBINE[part.aggregation], (values.get(tensor, part.output), value))
        values[tensor] = value
    needed = {*fused.stored, *([head.output.tensor.name] if head.accumulates else [])}
    return Group(
        head, tuple((Read(tensor, head.output.map), v) for tensor, v in values.items() if tensor.name in needed)
    )


#: The functions that do for two terms what aggregations do.
_COMBINE = {"+": "add", "=": "add", "*": "multiply", ">": "max", "<": "min"}


# -- layouts -----------------------------------------------------------------------------------------------------------


def laid_out(program: Program, groups: Sequence[Group]) -> dict[str, Layout]:
    """Where every tensor lies: with the zeros that its readers need, and rows that go together equally far apart."""
    tensors = {tensor.name: tensor for tensor in program.inputs}
    for group in groups:
        tensors |= {read.tensor.name: read.tensor for read, _ in group.stores}
        tensors |= {read.tensor.name: read.tensor for read in group.statement.reads}
    halos: dict[str, tuple[Halo, ...]] = {name: ((0, 0),) * len(tensor.shape) for name, tensor in tensors.items()}
    for group in groups:
        needed = analysis.halos(group.statement)
        merged: dict[str, tuple[Halo, ...]] = {}
        for read, halo in needed.items():
            old = merged.get(read.tensor.name, halos[read.tensor.name])
            merged[read.tensor.name] = tuple((max(a, c), max(b, d)) for (a, b), (c, d) in zip(old, halo, strict=True))
        bearable = all(
            Layout.padded(tensors[name].shape, halo).elements <= MOST_ZEROS * tensors[name].elements + 4096
            for name, halo in merged.items()
        )
        if bearable:
            halos |= merged
    pitches = {name: tensor.shape[-1] + max(halos[name][-1]) if tensor.shape else 1 for name, tensor in tensors.items()}
    for _ in tensors:  # A pitch may travel through as many tensors as there are.
        before = dict(pitches)
        for group in groups:
            for name, other in _same_rows(group):
                pitch = max(pitches[name], pitches[other])
                if pitch <= MOST_PITCH * min(tensors[name].shape[-1], tensors[other].shape[-1]):
                    pitches[name] = pitches[other] = pitch
        if pitches == before:
            break
    return {name: Layout.padded(tensor.shape, halos[name], pitches[name]) for name, tensor in tensors.items()}


def _same_rows(group: Group) -> list[tuple[str, str]]:
    """Pairs of tensors of which a statement goes through rows and columns together."""
    found = []
    for output, _ in group.stores:
        if len(output.map) < 2 or not all(len(form.terms) == 1 for form in output.map[-2:]):
            continue
        row, column = (form.indexes[0] for form in output.map[-2:])
        steps = output.map[-2].coefficient(row), output.map[-1].coefficient(column)
        for read in group.statement.reads:
            if len(read.map) > 1 and (read.map[-2].coefficient(row), read.map[-1].coefficient(column)) == steps:
                found.append((output.tensor.name, read.tensor.name))
        found += [(output.tensor.name, other.tensor.name) for other, _ in group.stores]
    return found


# -- tables ------------------------------------------------------------------------------------------------------------


def scheduled(table: Table, schedule: Schedule, elements: dict[str, int]) -> list[tuple[Table, Schedule]]:
    """The tables of a table's launches under a schedule; buffers of its own join ``elements``.

    Raises:
        OptionError: the schedule does not fit the table.
    """
    table = with_joins(table, schedule)
    check(table, schedule)
    steps: list[tuple[Table, Schedule]] = []
    names = operand_names(table)
    for operand in [names[key] for key in schedule.packed]:
        table, packing = packed(table, operand, schedule, _new_name("packed", elements), elements)
        steps += packing
    part, parts = schedule.split
    if parts == 1:
        return [*steps, (table, schedule)]
    first, second = split(table, part, parts, _new_name("partial", elements))
    elements[first.stores[0].operand.name] = math.prod(index.extent for index in first.outputs)
    order = (f"{part}_part", *schedule.order)
    last = simple(second) if schedule.threads == 1 else spread(second)
    check(second, last)
    return [*steps, (first, replace(schedule, split=("", 1), order=order)), (second, last)]


def _new_name(wanted: str, elements: Mapping[str, int]) -> str:
    name, count = wanted, 1
    while name in elements:
        count += 1
        name = f"{wanted}{count}"
    return name


def simple(table: Table) -> Schedule:
    """A schedule for a kernel that moves more than it computes: lanes of what lies closest, rows after one another."""
    store = table.stores[0].operand
    tied = constrained(table)
    near = [index for index in table.outputs if store.stride(index.name) == 1 and not index.period]
    near = [index for index in near if index.name not in tied]
    if not near:
        return Schedule()
    index = near[0]
    lanes = next(lanes for lanes in (16, 8, 4, 2, 1) if lanes <= index.extent)
    if lanes == 1:
        return Schedule()
    walk = max(1, min(index.extent // lanes, 64))
    return Schedule(tiles={index.name: Tile(1, walk, lanes)}, vector=index.name, lanes=lanes)


def spread(table: Table, most: int = 128) -> Schedule:
    """The same for devices whose work-items are lanes: neighbours beside each other."""
    store, tiles = table.stores[0].operand, {}
    order = sorted((index.name for index in table.outputs), key=lambda name: abs(store.stride(name)))
    for name in order:
        threads = min(most, table.extents[name])
        tiles[name] = Tile(threads, 1, 1)
        most //= threads
    return Schedule(tiles=tiles, order=tuple(reversed(order)))


def split(table: Table, name: str, parts: int, partial: str) -> tuple[Table, Table]:
    """Two tables for one: sums of parts of a reduction index, and the sums of these."""
    extent = table.extents[name] // parts
    part = f"{name}_part"
    forms = {name: Affine.index(name) + Affine.index(part) * extent}

    def operand(old: Operand) -> Operand:
        return old.with_axes([(stride, form.substitute(forms)) for stride, form in old.axes])

    expression = changed_forms(table.expression, lambda form: form.substitute(forms), operand)
    outputs = [Index(part, parts, True), *(replace(index, period=0, kept=0) for index in table.outputs)]
    strides, size = {}, 1
    for index in reversed(outputs):
        strides[index.name] = size
        size *= index.extent
    place = Operand(partial, tuple((strides[index.name], Affine.index(index.name)) for index in outputs), 0)
    reductions = [replace(index, extent=extent) if index.name == name else index for index in table.reductions]
    constraints = tuple(replace(bound, form=bound.form.substitute(forms)) for bound in table.constraints)
    first = Table(
        (*outputs, *reductions), table.aggregation, expression, constraints, (Store(place, Value()),), covers=True
    )
    second = replace(
        table,
        indexes=(*table.outputs, Index(part, parts, False)),
        expression=Load(place),
        constraints=table.cell_constraints,
    )
    return first, second


def packed(
    table: Table, operand: Operand, schedule: Schedule, name: str, elements: dict[str, int]
) -> tuple[Table, list[tuple[Table, Schedule]]]:
    """The table with a copy of an operand in which the lanes of the vector lie side by side, and what makes it."""
    vector, block = schedule.vector, schedule.tile(schedule.vector).step
    extents = table.extents
    spans = {index: range(size) for index, size in extents.items()}
    rows: list[tuple[int, Affine, range, str]] = []
    sources: list[tuple[int, Affine]] = []
    size = block
    for stride, form in sorted(operand.axes, key=lambda axis: abs(axis[0])):
        if form.coefficient(vector):
            source_stride, shift = stride, form.offset
            continue
        # Of the axis what is read, in steps of what all its indexes share: no element that a stride leaves out.
        reached, step = form.range(spans), math.gcd(*(factor for _, factor in form.terms)) or 1
        reached = range(reached.start, reached.stop, step)
        axis = f"axis{len(rows)}"
        steps_ = Affine.of({name: factor // step for name, factor in form.terms}, (form.offset - reached.start) // step)
        rows.insert(0, (size, steps_, reached, axis))
        sources.insert(0, (stride, Affine.index(axis) * step + reached.start))
        size *= len(reached)
    rows_of_block = size // block
    extent = extents[vector]
    blocks = -(-extent // block)
    elements[name] = blocks * size
    copy = Operand(
        name,
        (*((step, form) for step, form, _, _ in rows), (1, Affine.index(vector))),
        0,
        block,
        vector,
        rows_of_block,
    )

    def replaced(node: Expression) -> Expression | None:
        return Load(copy) if node == Load(operand) else None

    steps = []
    for first, count, width in ((0, extent // block, block), (extent // block, 1, extent % block)):
        if not count or not width:
            continue
        indexes = [Index("block", count, True), Index("lane", width, True)]
        indexes += [Index(axis, len(reached), True) for _, _, reached, axis in rows]
        place = Affine.index("block") * block + Affine.index("lane") + first * block
        source = Operand(operand.name, (*sources, (source_stride, place + shift)), operand.offset)
        target = Operand(
            name,
            (
                (size, Affine.index("block") + first),
                (1, Affine.index("lane")),
                *((step, Affine.index(axis)) for step, _, _, axis in rows),
            ),
            0,
        )
        packing = Table(tuple(indexes), "=", Load(source), (), (Store(target, Value()),))
        steps.append((packing, transposing(packing)))
    return replace(table, expression=rewritten(table.expression, replaced)), steps


def transposing(table: Table) -> Schedule:
    """The schedule of a copy whose lanes come from far apart: squares of the source's runs and the copy's lanes."""
    source = table.loads[0]
    others = [index for index in table.outputs if index.name not in ("block", "lane") and index.extent > 1]
    near = [index for index in others if source.stride(index.name) == 1]
    lane = table.index("lane")
    if not near or near[0].extent < 4:
        return Schedule(tiles={"lane": Tile(1, lane.extent, 1)})
    run = near[0]
    lanes = next(lanes for lanes in (16, 8, 4) if lanes <= run.extent)
    width = min(lane.extent, 16)
    tiles = {
        run.name: Tile(1, max(1, min(run.extent // lanes, 16)), lanes),
        "lane": Tile(1, -(-lane.extent // width), width),
    }
    return Schedule(tiles=tiles, vector=run.name, lanes=lanes)
