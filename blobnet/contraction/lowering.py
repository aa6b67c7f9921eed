"""From programs to launches: layouts with their halos, fused statements, phases, split sums and packed operands."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from blobnet.contraction import analysis
from blobnet.contraction.derivatives import filled
from blobnet.contraction.form import (
    NEUTRAL,
    Affine,
    Constraint,
    Expression,
    Number,
    Program,
    Read,
    Statement,
    Tensor,
    rewritten,
    unused,
)
from blobnet.contraction.fusion import Fused, fuse
from blobnet.contraction.layout import Halo, Layout
from blobnet.contraction.phases import disjoint, gathered
from blobnet.contraction.schedule import (
    Product,
    Schedule,
    Tile,
    borders,
    check,
    constrained,
    operand_names,
    part_steps,
    prepared,
    sides,
)
from blobnet.contraction.source import generate
from blobnet.contraction.table import (
    PIECE,
    Index,
    Load,
    Operand,
    Store,
    Table,
    Value,
    covers,
    flatten,
    loads_of,
    part_of,
    zeros_of,
)
from blobnet.contraction.writing import Kernel
from blobnet.errors import ContractionError
from blobnet.launch.work_sizes import GROUP_SIZE
from blobnet.memory.blob import FLOAT32, StorageType

#: Times its data that a tensor's memory may be for its zeros; beyond that, loops are clamped.
MAX_ZEROS = 4
#: Rows of two tensors get the same pitch if none grows by more than this.
MAX_PITCH = 1.3


@dataclass(frozen=True)
class Step:
    """One launch.

    Args:
        table: what it does.
        schedule: how.
        kernel: its text.
        whole: the table for which a schedule was chosen, of which this is a part: a split sum, a packed operand.
        chosen: that schedule.
        data_alone: the tensors that are read without the zeros around them.
    """

    table: Table
    schedule: Schedule
    kernel: Kernel
    whole: Table
    chosen: Schedule
    data_alone: frozenset[str]


@dataclass(frozen=True)
class Place:
    """The place of a tensor that the program does not lay out itself.

    Args:
        layout: from the first element that the buffer's offset leads to.
        unit: elements in which the offset counts; None for plain arrays, whose parameters come after the others'.
        has_samples: whether the first axis are the samples of a batch, of which the last may not be there.
        type: of its numbers.
        has_slack: whether something lies after the zeros around its planes.
    """

    layout: Layout
    unit: int | None = None
    has_samples: bool = False
    type: StorageType = FLOAT32
    has_slack: bool = False


@dataclass(frozen=True)
class LoweredProgram:
    """A program for a device.

    Args:
        layouts: of its tensors; each has a buffer.
        elements: of every buffer that is the program's own, those of kernels' own use too.
        steps: launches, one after another.
        by_sample: the names of own buffers of which each sample has a part, one after another.
        types: of the numbers of buffers, where they are known; those of others are float32.
    """

    program: Program
    layouts: Mapping[str, Layout]
    elements: Mapping[str, int]
    steps: tuple[Step, ...]
    by_sample: frozenset[str] = frozenset()
    types: Mapping[str, StorageType] = field(default_factory=dict)


@dataclass
class Buffers:
    """Memory of a program's own.

    Args:
        elements: of each buffer.
        taken: names of others.
    """

    elements: dict[str, int]
    taken: set[str] = field(default_factory=set)

    def add(self, wanted: str, elements: int) -> str:
        """One more; return its name, which is as near to the wanted one as can be."""
        name = unused(wanted, {*self.taken, *self.elements})
        self.elements[name] = elements
        return name


def lower(
    program: Program,
    choose: Callable[[Table], Schedule],
    places: Mapping[str, Place] | None = None,
    aliases: Mapping[str, str] | None = None,
    most_threads: int = GROUP_SIZE,
) -> LoweredProgram:
    """The launches of a program.

    Args:
        program: what to run.
        choose: gives the schedule of each table.
        places: where its inputs and outputs lie. Without, they are laid out here, with the zeros that code without
            tests reads, in memory that is all 0 before the first launch.
        aliases: outputs that lie where an input does, and which.
        most_threads: work-items of a group at most that the launches beside those of tables have.

    Raises:
        ContractionError: a statement mixes samples of a batch, or an alias would be overwritten before it is read.
    """
    groups = grouped(program, is_zeroed=places is None)
    layouts = laid_out(program, groups, places)
    places = places or {}
    own = Buffers({name: layout.elements for name, layout in layouts.items() if name not in places}, set(layouts))
    samples = {name: 0 for name, place in places.items() if place.has_samples and place.layout.shape[0] > 1}
    units = {name: place.unit for name, place in places.items() if place.unit is not None}
    types = {name: place.type for name, place in places.items()}
    steps: list[Step] = []

    for group in groups:  # What fills a tensor comes before what tells which of its axes the samples are.
        _sample_index(group, samples, places)
    tables = [flatten(group.head, layouts, group.stores, _sample_index(group, samples, places)) for group in groups]
    slack = {name for name, place in places.items() if place.has_slack}
    tables = [replace(table, has_slack=any(item.operand.name in slack for item in table.stores)) for table in tables]
    for output, source in (aliases or {}).items():
        tables = _in_place(tables, output, source)
    for group, whole in zip(groups, tables, strict=True):
        halos = analysis.halos(group.head, analysis.met_within(group.head, zeros_of(layouts)))
        padded = {read.tensor.name for read, halo in halos.items() if any(map(any, halo))}
        chosen = choose(whole)
        for table, schedule in scheduled(whole, chosen, own, most_threads):
            made = table.stores[0].operand.name
            entry = f"contraction_{made}_{len(steps)}"
            if made not in layouts and isinstance(table.expression, Load) and not table.reductions:
                types[made] = types.get(table.expression.operand.name, FLOAT32)  # A packed operand.
            kernel = generate(table, schedule, entry, units, types)
            steps.append(Step(table, schedule, kernel, whole, chosen, frozenset(table.buffers) - padded))
    by_sample = frozenset(name for name, axis in samples.items() if name in own.elements and axis == 0)
    return LoweredProgram(program, layouts, own.elements, tuple(steps), by_sample, types)


def _in_place(tables: Sequence[Table], output: str, source: str) -> list[Table]:
    """The tables with an output in the memory of what only they, or earlier ones, read, the same cells of it."""
    writers = [number for number, table in enumerate(tables) if output in {s.operand.name for s in table.stores}]
    readers = [number for number, table in enumerate(tables) if source in table.buffers]
    last = tables[writers[-1]]
    stored = next(store.operand for store in last.stores if store.operand.name == output)
    operands = [*last.loads, *(operand for store in last.stores for operand in loads_of(store.expression))]
    is_same = all(replace(operand, name=output) == stored for operand in operands if operand.name == source)
    if len(writers) > 1 or max(readers, default=0) > writers[-1] or not is_same:
        rule = f"it may lie over {source} only where that is read for the same cell alone, before it is written"
        raise ContractionError(f"contraction {output}", rule, hint="give it memory of its own.")

    changed = last.changed(operand=lambda old: replace(old, name=output) if old.name == source else old)
    return [changed if table is last else table for table in tables]


def _sample_index(group: Fused, axes: dict[str, int], places: Mapping[str, Place]) -> str:
    """The index of a statement that runs over the samples of a batch, "" if none does.

    Args:
        group: the statement.
        axes: for each tensor with samples the axis that they are; own ones that it writes join.
        places: where tensors lie that are not the program's own.
    """
    statement = group.head
    parts = [statement.expression, *(expression for _, expression in group.stores)]
    reads = [node for part in parts for node in part.walk() if isinstance(node, Read)]
    outputs = [output for output, _ in group.stores]
    forms = {
        read.map[axes[read.tensor.name]]: read.tensor.shape[axes[read.tensor.name]]
        for read in (*reads, *outputs)
        if read.tensor.name in axes
    }
    if not forms:
        return ""
    names = {name for form in forms for name in form.indexes}
    index = names.pop() if len(names) == 1 else ""
    count = max(forms.values())
    is_plain = list(forms) == [Affine.index(index)] and statement.box[index] == range(count)
    moved = [read for read in outputs if read.tensor.name not in axes and any(f.coefficient(index) for f in read.map)]
    if not index or not is_plain or any(output.tensor.name in places for output in moved):
        raise ContractionError(
            f"contraction {outputs[0].tensor.name}",
            "the samples of a batch must be one index, by itself, of all operands and results that have samples",
            statement=str(statement),
        )
    for output in moved:
        axis = output.map.index(Affine.index(index)) if Affine.index(index) in output.map else None
        if axis is not None:
            axes[output.tensor.name] = axis
    return index


# -- statements ------------------------------------------------------------------------------------------------------


def grouped(program: Program, is_zeroed: bool = True) -> list[Fused]:
    """The statements as kernels will make them: phases apart, element-wise expressions fused to what they follow.

    ``is_zeroed``: whether memory is 0 before the first launch.
    """
    statements: list[Statement] = []
    for number, statement in enumerate(program.statements):
        later = program.statements[number + 1 :]
        keeps_zeros = is_zeroed and not any(_adds_to(other, statement) for other in later)
        statements += _pieces(statement, keeps_zeros)
    groups = fuse(replace(program, statements=tuple(statements)))
    return [group for group in groups if group.stores]  # of others nobody reads anything


def _adds_to(later: Statement, statement: Statement) -> bool:
    return later.accumulates and later.output.tensor == statement.output.tensor


def _pieces(statement: Statement, keeps_zeros: bool) -> list[Statement]:
    """The phases of a statement, after one that fills the output if they leave cells out.

    ``keeps_zeros``: cells that no phase writes are 0, as they have been from the beginning.
    """
    pieces = list(gathered(statement))
    if statement.accumulates or (len(pieces) == 1 and covers(pieces[0])):
        return pieces
    neutral, tensor = NEUTRAL[statement.aggregation], statement.output.tensor
    apart = all(disjoint(a.output, b.output) for number, a in enumerate(pieces) for b in pieces[:number])
    if apart:
        pieces = [replace(piece, accumulates=False) for piece in pieces]
    else:
        pieces = [replace(piece, accumulates=True) for piece in pieces]
    if apart and ((keeps_zeros and neutral == 0) or sum(map(_cells, pieces)) == tensor.elements):
        return pieces
    return [filled(tensor, Number(neutral)), *pieces]


def _cells(statement: Statement) -> int:
    """The cells that a statement surely writes, whose output tells cells apart."""
    own = set(statement.output_indexes)
    if any(own >= set(bound.form.indexes) for bound in statement.constraints):
        return 0
    return math.prod(len(statement.box[name]) for name in own)


# -- layouts -----------------------------------------------------------------------------------------------------------


def needed_halos(
    program: Program, groups: Sequence[Fused], can_have: Callable[[str, int], bool] = lambda name, axis: True
) -> dict[str, tuple[Halo, ...]]:
    """The zeros that code without tests reads around every tensor, where they are not too many.

    ``can_have`` says whether a tensor can have zeros along an axis.
    """
    tensors = _tensors(program, groups)
    halos: dict[str, tuple[Halo, ...]] = {name: ((0, 0),) * len(tensor.shape) for name, tensor in tensors.items()}

    def has_zeros(read: Read, axis: int, _: Halo) -> bool:
        return can_have(read.tensor.name, axis)

    for group in groups:
        needed = analysis.halos(group.head, analysis.met_within(group.head, has_zeros))
        merged: dict[str, tuple[Halo, ...]] = {}
        for read, halo in needed.items():
            old = merged.get(read.tensor.name, halos[read.tensor.name])
            merged[read.tensor.name] = tuple((max(a, c), max(b, d)) for (a, b), (c, d) in zip(old, halo, strict=True))
        bearable = all(
            Layout.padded(tensors[name].shape, halo).elements <= MAX_ZEROS * tensors[name].elements + 4096
            for name, halo in merged.items()
        )
        if bearable:
            halos |= merged
    return halos


def _tensors(program: Program, groups: Sequence[Fused]) -> dict[str, Tensor]:
    """The tensors that are touched, those of fused expressions too."""
    tensors = {tensor.name: tensor for tensor in program.inputs}
    for group in groups:
        parts = [group.head.expression, *(expression for _, expression in group.stores)]
        tensors |= {read.tensor.name: read.tensor for read, _ in group.stores}
        tensors |= {node.tensor.name: node.tensor for part in parts for node in part.walk() if isinstance(node, Read)}
    return tensors


def laid_out(program: Program, groups: Sequence[Fused], places: Mapping[str, Place] | None = None) -> dict[str, Layout]:
    """Return the layout of every tensor: with the zeros that its readers need, and one pitch for rows that go together.

    Beside tensors with a place of their own the others lie densely, in memory that begins with anything.
    """
    tensors = _tensors(program, groups)
    if places is not None:
        return {
            name: places[name].layout if name in places else Layout.padded(tensor.shape)
            for name, tensor in tensors.items()
        }
    halos = needed_halos(program, groups)
    pitches = {name: tensor.shape[-1] + max(halos[name][-1]) if tensor.shape else 1 for name, tensor in tensors.items()}
    for _ in tensors:  # A pitch may travel through as many tensors as there are.
        before = dict(pitches)
        for group in groups:
            for name, other in _same_rows(group):
                pitch = max(pitches[name], pitches[other])
                if pitch <= MAX_PITCH * min(tensors[name].shape[-1], tensors[other].shape[-1]):
                    pitches[name] = pitches[other] = pitch
        if pitches == before:
            break
    return {name: Layout.padded(tensor.shape, halos[name], pitches[name]) for name, tensor in tensors.items()}


def _same_rows(group: Fused) -> list[tuple[str, str]]:
    """Pairs of tensors of which a statement goes through rows and columns together."""
    found = []
    for output, _ in group.stores:
        if len(output.map) < 2 or not all(len(form.terms) == 1 for form in output.map[-2:]):
            continue
        row, column = (form.indexes[0] for form in output.map[-2:])
        steps = output.map[-2].coefficient(row), output.map[-1].coefficient(column)
        for read in group.head.reads:
            if len(read.map) > 1 and (read.map[-2].coefficient(row), read.map[-1].coefficient(column)) == steps:
                found.append((output.tensor.name, read.tensor.name))
        found += [(output.tensor.name, other.tensor.name) for other, _ in group.stores]
    return found


# -- tables ------------------------------------------------------------------------------------------------------------


def scheduled(
    table: Table, schedule: Schedule, own: Buffers, most_threads: int = GROUP_SIZE
) -> list[tuple[Table, Schedule]]:
    """The tables of a table's launches under a schedule; buffers that these need join its ``own``.

    Launches that it takes besides have no more than ``most_threads`` work-items a group.

    Raises:
        OptionError: the schedule does not fit the table.
    """
    small = simple if schedule.threads == 1 else functools.partial(spread, most=most_threads)
    steps = [(border, small(border)) for border in borders(table, schedule)]
    table, schedule = prepared(table, schedule), replace(schedule, peel="")
    check(table, schedule)
    names = operand_names(table)
    wide, product = [names[key] for key in schedule.wide], schedule.product
    for operand in [names[key] for key in schedule.packed]:
        if product:
            table, packing = matrix_copy(table, operand, product, own)
            steps.append((packing, small(packing)))
        else:
            table, packings = packed(table, operand, schedule, own)
            steps += packings
    if wide:  # What is packed is loaded as the vector's lanes.
        left = operand_names(table)
        schedule = replace(schedule, wide=tuple(key for key, operand in left.items() if operand in wide))
    part, parts = schedule.split
    if parts == 1:
        return [*steps, (table, schedule)]
    if product:
        first, second = split_depth(table, product, parts, own)
    else:
        first, second = split(table, part, parts, own)
        schedule = replace(schedule, split=("", 1), order=(part_of(part, PIECE), *schedule.order))
    last = small(second)
    check(second, last)
    return [*steps, (first, schedule), (second, last)]


def matrix_copy(table: Table, operand: Operand, product: Product, own: Buffers) -> tuple[Table, Table]:
    """The table with a copy of an operand whose rows (or columns) lie side by side, whole tiles, and what makes it."""
    left, _ = sides(table, product)
    side = product.rows if operand == left else product.columns
    apart = [index for index in table.outputs if operand.stride(index.name) and index.name not in side.names]
    size, strides = 1, {}
    for index in reversed(side.names):
        strides[index] = size
        size *= table.extents[index]
    size = -(-size // side.size) * side.size
    for index in (*reversed(product.depth), *(index.name for index in reversed(apart))):
        if operand.stride(index):
            strides[index] = size
            size *= table.extents[index]
    axes = tuple((stride, Affine.index(index)) for index, stride in strides.items())
    copy = Operand(own.add("packed", size), axes, 0, side.size)
    indexes = tuple(replace(index, is_output=True) for index in table.indexes if index.name in strides)
    packing = Table(indexes, "=", Load(operand), (), (Store(replace(copy, block=0), Value()),))
    return _reading(table, operand, copy), packing


def _reading(table: Table, operand: Operand, copy: Operand) -> Table:
    """The table that reads a copy of an operand."""

    def replaced(node: Expression) -> Expression | None:
        return Load(copy) if node == Load(operand) else None

    return replace(table, expression=rewritten(table.expression, replaced))


def split_depth(table: Table, product: Product, parts: int, own: Buffers) -> tuple[Table, Table]:
    """Two tables for one: sums of parts of the depth, whole steps each, and the sums of these."""
    part = part_of("depth", PIECE)
    size, place = 1, Affine()
    for name in reversed(product.depth):
        place += Affine.index(name) * size
        size *= table.extents[name]
    length = part_steps(table, product, parts) * product.step
    bound = Constraint(place - Affine.index(part) * length, length)
    return _in_parts(table, replace(table, constraints=(bound,)), part, parts, own)


def _in_parts(table: Table, first: Table, part: str, parts: int, own: Buffers) -> tuple[Table, Table]:
    """Two tables for one: ``first``, as the output index ``part`` splits it, for partial results; and sums of these."""
    outputs = (Index(part, parts, True), *(replace(index, period=0, kept=0) for index in table.outputs))
    target = _dense(own, outputs, table)
    first = replace(
        first,
        indexes=(*outputs, *first.reductions),
        stores=(Store(target, Value()),),
        accumulates=False,
        covers=True,
        has_slack=False,
    )
    second = replace(
        table,
        indexes=(*table.outputs, Index(part, parts, False)),
        expression=Load(target),
        constraints=table.cell_constraints,
        sample=table.sample_cell,
    )
    return first, second


def _dense(own: Buffers, indexes: Sequence[Index], table: Table) -> Operand:
    """Partial results in memory of their own, for each value of the indexes, in the order of what a table stores."""
    store = table.stores[0].operand
    axes, size = [], 1
    for index in sorted(indexes[:0:-1], key=lambda index: abs(store.stride(index.name))):
        axes.append((size, Affine.index(index.name)))
        size *= index.extent
    name = own.add("partial", size * indexes[0].extent)
    return Operand(name, ((size, Affine.index(indexes[0].name)), *reversed(axes)), 0)


def simple(table: Table) -> Schedule:
    """A schedule for a kernel that moves more than it computes: lanes of what lies closest, rows after one another."""
    store = table.stores[0].operand
    tied = constrained(table)
    near = [index for index in table.outputs if store.stride(index.name) == 1 and not index.period]
    near = [index for index in near if index.name not in tied]
    index = near[0] if near else max(table.outputs, key=lambda index: index.extent, default=None)
    if index is None or index.extent == 1:
        return Schedule()
    lanes = next(lanes for lanes in (16, 8, 4, 2, 1) if lanes <= index.extent) if near else 1
    walk = max(1, min(index.extent // lanes, 64))
    return Schedule(tiles={index.name: Tile(1, walk, lanes)}, vector=index.name if lanes > 1 else "", lanes=lanes)


def spread(table: Table, most: int = GROUP_SIZE) -> Schedule:
    """The same for devices whose work-items are lanes: neighbours beside each other."""
    store, tiles = table.stores[0].operand, {}
    order = sorted((index.name for index in table.outputs), key=lambda name: abs(store.stride(name)))
    for name in order:
        threads = min(most, table.extents[name])
        tiles[name] = Tile(threads, 1, 1)
        most //= threads
    return Schedule(tiles=tiles, order=tuple(reversed(order)))


def split(table: Table, name: str, parts: int, own: Buffers) -> tuple[Table, Table]:
    """Two tables for one: sums of parts of a reduction index, of which the last may be shorter, and sums of these."""
    whole = table.extents[name]
    extent = -(-whole // parts)
    parts = -(-whole // extent)
    part = part_of(name, PIECE)
    forms = {name: Affine.index(name) + Affine.index(part) * extent}
    first = table.changed(lambda form: form.substitute(forms))
    indexes = tuple(replace(index, extent=extent) if index.name == name else index for index in table.indexes)
    constraints = first.constraints + ((Constraint(forms[name], whole),) if parts * extent > whole else ())
    return _in_parts(table, replace(first, indexes=indexes, constraints=constraints), part, parts, own)


@dataclass(frozen=True)
class _Axis:
    """An axis of a packed copy, beside that of the lanes.

    Args:
        index: of the values that are read of it, in steps of what all its indexes share: none that a stride leaves out.
        form: these, of the table's indexes.
        stride: in the copy.
        source: stride and form of ``index`` in the operand.
        has_samples: whether it goes over the samples that are there.
    """

    index: Index
    form: Affine
    stride: int
    source: tuple[int, Affine]
    has_samples: bool


def _packed_axes(table: Table, operand: Operand, vector: str, block: int) -> list[_Axis]:
    """The axes of a copy in blocks of lanes, the outermost first."""
    extents, found, size = table.extents, list[_Axis](), block
    spans = {index: range(extent) for index, extent in extents.items()}
    for stride, form in sorted(operand.axes, key=lambda axis: abs(axis[0])):
        if not form.coefficient(vector):
            reached, step = form.range(spans), math.gcd(*(factor for of, factor in form.terms if extents[of] > 1)) or 1
            index = Index(f"axis{len(found)}", len(range(reached.start, reached.stop, step)), True)
            steps = Affine.of({of: factor // step for of, factor in form.terms}, (form.offset - reached.start) // step)
            source = stride, Affine.index(index.name) * step + reached.start
            has_samples = table.sample is not None and form.indexes == table.sample.indexes
            found.insert(0, _Axis(index, steps, size, source, has_samples))
            size *= index.extent
    return found


def packed(
    table: Table, operand: Operand, schedule: Schedule, own: Buffers
) -> tuple[Table, list[tuple[Table, Schedule]]]:
    """The table with a copy of an operand in which the lanes of the vector lie side by side, and what makes it."""
    vector, block = schedule.vector, schedule.tile(schedule.vector).step
    axes, extent = _packed_axes(table, operand, vector, block), table.extents[vector]
    rows = math.prod(axis.index.extent for axis in axes)
    name = own.add("packed", -(-extent // block) * rows * block)
    lanes = tuple((axis.stride, axis.form) for axis in axes)
    copy = Operand(name, (*lanes, (1, Affine.index(vector))), 0, block, vector, rows)
    ((stride, shift),) = ((stride, form.offset) for stride, form in operand.axes if form.coefficient(vector))
    of_samples = next((axis.source[1] for axis in axes if axis.has_samples), None)
    steps = []
    for first, count, width in ((0, extent // block, block), (extent // block, 1, extent % block)):
        if not count or not width:
            continue
        indexes = Index("block", count, True), Index("lane", width, True), *(axis.index for axis in axes)
        number, lane = Affine.index("block") + first, Affine.index("lane")
        place = number * block + lane + shift
        source = Operand(operand.name, (*(axis.source for axis in axes), (stride, place)), operand.offset)
        inner = [(axis.stride, Affine.index(axis.index.name)) for axis in axes]
        target = Operand(name, ((rows * block, number), (1, lane), *inner), 0)
        sample = place if table.sample and (vector,) == table.sample.indexes else of_samples
        packing = Table(indexes, "=", Load(source), (), (Store(target, Value()),), sample=sample)
        steps.append((packing, transposing(packing)))
    return _reading(table, operand, copy), steps


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
