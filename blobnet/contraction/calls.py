"""Programs of contractions as kernel calls on a plan's blobs and arrays.

A tensor in a blob has the axes [n, unit, y, x], or fewer spatial ones; a tensor in an array lies there in C order.
``n`` is the sample of a batch. Kernels are generated for the plan's largest batch, and each launch gets the number of
samples (COUNT). No result of other samples is written, and no sum over samples has their values.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from blobnet.contraction import costs
from blobnet.contraction.cells import InCells, in_cells
from blobnet.contraction.derivatives import filled
from blobnet.contraction.form import Apply, Expression, Number, Program, Read, Tensor, rewritten, unused
from blobnet.contraction.layout import Layout
from blobnet.contraction.lowering import LoweredProgram, Place, Step, grouped, lower, needed_halos
from blobnet.contraction.schedule import Schedule, prepared
from blobnet.contraction.search import best_schedule
from blobnet.contraction.source import program_text
from blobnet.contraction.table import Load, Table, Value, loads_of
from blobnet.errors import KernelError, ShapeError
from blobnet.hardware.device_model import DeviceModel
from blobnet.launch.kernel_call import Array, Blob, GlobalSize, KernelCall, Tuning
from blobnet.launch.kernel_source import KernelSource
from blobnet.launch.task import Variant
from blobnet.launch.work_sizes import group_size
from blobnet.memory.blob import FLOAT32, NUMBERS_OF, BlobLayout, Halo

Operand = Blob | Array
#: Axes of a tensor in a blob before the spatial ones: the sample and the unit.
_LEADING = 2
#: The variant of generated kernels, among ways.
_VARIANT = "compiled"


@dataclass(frozen=True)
class Context:
    """What the launches of a layer's programs have in common.

    Attributes:
        label: for people, ``conv1 forward``; also the name under which memory is asked for.
        batch: the plan's samples; a batch may have fewer.
        memory: gives (name, elements, per_sample) room, as :meth:`blobnet.layers.base.LayerContext.memory` does.
        tuning: its model is that of the device. A kernel that the driver does not build is among what is ``broken`` for
            its choices, and made anew without vectors and local memory.
        name: the layer's.
        in_cells: the tensors in arrays that lie in cells, as those in blobs of cells do, and units of a cell.
    """

    label: str
    batch: int
    memory: Callable[[str, int, int], Array]
    tuning: Tuning
    name: str = ""
    in_cells: Mapping[str, int] = field(default_factory=dict)


def calls(
    program: Program, operands: Mapping[str, Operand], context: Context, accumulate: Collection[str] = ()
) -> list[KernelCall]:
    """The launches of a program.

    Args:
        program: bound for shapes whose samples are ``context.batch``; derivatives are programs, too.
        operands: where every input and output lies. An output may have the memory of an input that is read for the
            same cells alone.
        context: of the layer.
        accumulate: outputs that are added to what is there.

    Raises:
        ContractionError: a statement mixes samples, or reads at other cells what an output lies over.
        ShapeError: a tensor does not have its operand's shape.
        KernelError: an operand is missing, or an output lies over a part of another operand.
    """
    lowered, _ = _lowered_for(program, operands, context, accumulate)
    known = dict(operands)
    for name, elements in lowered.elements.items():
        if any(name in step.kernel.buffers for step in lowered.steps):
            sizes = (0, elements // context.batch) if name in lowered.by_sample else (elements, 0)
            own = context.memory(f"{context.label}: {name}", *sizes)
            known[name] = replace(own, type=lowered.types.get(name, FLOAT32))
    return launches(lowered, known, context.label)


def cost(
    program: Program, operands: Mapping[str, Operand], context: Context, accumulate: Collection[str] = ()
) -> float:
    """Return what the launches of :func:`calls` should take: costs.cost."""
    return _lowered_for(program, operands, context, accumulate)[1]


def launches(lowered: LoweredProgram, operands: Mapping[str, Operand], label: str) -> list[KernelCall]:
    """The calls of a program that is lowered; ``operands`` has its own buffers, too."""
    text = program_text(step.kernel for step in lowered.steps)
    return [_call(step, text, operands, label) for step in lowered.steps]


def halos(program: Program, blobs: Collection[str]) -> dict[str, Halo]:
    """The zeros around the units of tensors in ``blobs`` that kernels without tests read.

    Where a blob has fewer, or no zeros can stand for what is left out (maxima), loops are clamped: slower, as exact.
    """
    needed = needed_halos(program, grouped(program), lambda name, axis: name in blobs and axis >= _LEADING)
    return {name: Halo(*needed[name][_LEADING:]) for name in blobs if name in needed}


def accumulating(program: Program, names: Collection[str]) -> Program:
    """The program that adds some of its outputs to what is there."""
    for tensor in program.outputs:
        if tensor.name in names:
            program = _added(program, tensor)
    return program


def _added(program: Program, tensor: Tensor) -> Program:
    writers = [one for one in program.statements if one.output.tensor == tensor]
    is_read = any(read.tensor == tensor for one in program.statements for read in one.reads)
    if not is_read and all(one.aggregation in "+=" for one in writers):
        first, changed = writers[0], [replace(writers[0], aggregation="+", accumulates=True)]
        if first.expression == Number(0.0):
            changed = []  # It only cleared what the others add to.
        place = program.statements.index(first)
        return replace(program, statements=(*program.statements[:place], *changed, *program.statements[place + 1 :]))
    # What others read, or no sum gives, is made by itself first.
    taken = {tensor.name for tensor in program.inputs} | {one.output.tensor.name for one in program.statements}
    own = Tensor(unused(f"{tensor.name}_alone", taken), tensor.shape)

    def change(node: Expression) -> Expression | None:
        return Read(own, node.map) if isinstance(node, Read) and node.tensor == tensor else None

    statements = [
        replace(
            one,
            output=Read(own, one.output.map) if one.output.tensor == tensor else one.output,
            expression=rewritten(one.expression, change),
        )
        for one in program.statements
    ]
    statements.append(replace(filled(tensor, own), aggregation="+", accumulates=True))
    return replace(program, statements=tuple(statements))


# -- operands ----------------------------------------------------------------------------------------------------------


def _aliases(program: Program, operands: Mapping[str, Operand], label: str) -> tuple[tuple[str, str], ...]:
    """Outputs that lie where an input does, each with that input."""
    inputs = {tensor.name: tensor for tensor in program.inputs}
    aliases: list[tuple[str, str]] = []
    names = dict.fromkeys(tensor.name for tensor in (*program.inputs, *program.outputs))
    missing = [name for name in names if name not in operands]
    if missing:
        raise KernelError(label, "every input and output of a program needs its operand", missing=", ".join(missing))
    for tensor in program.outputs:
        for name in names:
            if name == tensor.name or not _overlap(operands[tensor.name], operands[name]):
                continue
            same = operands[tensor.name] == operands[name] and name in inputs and inputs[name].shape == tensor.shape
            if not same:
                rule = "an output must not lie over a part of another operand"
                raise KernelError(label, rule, output=tensor.name, operand=name)
            aliases.append((tensor.name, name))
    return tuple(aliases)


def _overlap(one: Operand, other: Operand) -> bool:
    if one.storage != other.storage:
        return False
    spans = []
    for operand in (one, other):
        if isinstance(operand, Blob):
            first = operand.layout.unit_offset * operand.layout.unit_memory_elements
            spans.append((first, first + operand.layout.unit_count * operand.layout.unit_memory_elements))
        else:
            spans.append((operand.offset, operand.end(1)))
    (start, end), (other_start, other_end) = spans
    return start < other_end and other_start < end


def takes_cells(program: Program, operands: Mapping[str, Operand], in_cells: Mapping[str, int]) -> bool:
    """Return True if statements walk whole cells of what lies in cells: blobs, and arrays of these names."""
    return _in_cells(program, operands, in_cells) is not None


def _in_cells(
    program: Program, operands: Mapping[str, Operand], arrays: Mapping[str, int]
) -> tuple[Program, InCells] | None:
    """A program with tensors in cells where their operands are, and the axes in two; None if it cannot be."""
    tensors = {tensor.name: tensor for tensor in (*program.inputs, *program.outputs)}
    blobs = {name: blob for name in tensors if isinstance(blob := operands.get(name), Blob)}
    lie = {name: blob.type.cell for name, blob in blobs.items() if blob.type.cell > 1}
    if any(tensors[name].shape[1] != blobs[name].shape.units for name in lie):
        return None
    names = lie | {name: cell for name, cell in arrays.items() if name in tensors}
    if not names:
        return program, InCells(1)
    return in_cells(program, max(names.values()), frozenset(names), frozenset(blobs.keys() - lie.keys()))


def _place(operand: Operand, tensor: Tensor, batch: int, cells: InCells) -> Place:
    """Where a tensor lies."""
    if isinstance(operand, Blob):
        blob, kind = operand.layout, operand.type
        if kind.cell > 1:
            samples, units, *others = tensor.shape
            lie = _layout(blob, replace(tensor, shape=(samples, units // kind.cell, *others)), batch)
            found = Layout(
                (*lie.shape, kind.cell),
                (*(kind.cell * stride for stride in lie.strides), 1),
                kind.cell * lie.offset,
                kind.cell * lie.elements,
                (*lie.halo, (0, 0)),
            )
        else:
            found = cells.layout(tensor.name, _layout(blob, tensor, batch))
        slack, unit = blob.plane_memory_elements > blob.plane_extent, kind.cell * blob.unit_memory_elements
        return Place(found, unit, has_samples=True, type=NUMBERS_OF.get(kind, kind), has_slack=slack)
    dense = Layout.padded(cells.tensor(tensor).shape)
    if not operand.per_sample:
        _require(tensor, operand.elements >= tensor.elements, array=operand.elements)
        return Place(dense, type=operand.type)
    _require(tensor, tensor.shape[0] == batch, batch=batch)
    _require(tensor, operand.per_sample * batch >= tensor.elements, per_sample=operand.per_sample)
    return Place(replace(dense, strides=(operand.per_sample, *dense.strides[1:])), has_samples=True, type=operand.type)


def _layout(blob: BlobLayout, tensor: Tensor, batch: int) -> Layout:
    """The layout of a tensor in a blob, from its first unit on; all of a sample may be one axis where it is one run."""
    spatial, units = _axes(blob), blob.unit_count
    sizes, shape = [size for size, _, _ in spatial], tensor.shape
    _require(tensor, len(shape) >= _LEADING and shape[0] == batch, batch=batch)
    offset = sum(step * before for _, step, (before, _) in spatial)
    last = batch * blob.memory_elements
    if shape[1:] == (units * blob.unit_elements,) and (blob.is_contiguous or blob.unit_elements == 1):
        step = 1 if blob.is_contiguous else blob.unit_memory_elements
        return Layout(shape, (blob.memory_elements, step), offset, last, ((0, 0),) * _LEADING)
    hidden = len(sizes) - (len(shape) - _LEADING)  # Outer axes of one value that the tensor does not have.
    fits = shape[1] == units and hidden >= 0 and tuple(sizes) == (1,) * hidden + shape[_LEADING:]
    _require(tensor, fits, blob=(units, *sizes))
    strides = (blob.memory_elements, blob.unit_memory_elements, *(step for _, step, _ in spatial[hidden:]))
    return Layout(shape, strides, offset, last, ((0, 0), (0, 0), *(sides for _, _, sides in spatial[hidden:])))


def _axes(blob: BlobLayout) -> list[tuple[int, int, tuple[int, int]]]:
    """The spatial axes of a blob, outermost first: size, elements of a step, and zeros before and after the data."""
    sizes = blob.depth.size, blob.height.size, blob.width.size
    return list(zip(sizes, blob.strides[_LEADING:], blob.zeros.axes, strict=True))


def _require(tensor: Tensor, holds: bool, **received: int | tuple[int, ...]) -> None:
    if not holds:
        rule = "must have the shape of its operand, samples first"
        raise ShapeError(f"tensor {tensor.name}", rule, hint=None, shape=tensor.shape, **received)


# -- launches ----------------------------------------------------------------------------------------------------------


def _lowered_for(
    program: Program, operands: Mapping[str, Operand], context: Context, accumulate: Collection[str]
) -> tuple[LoweredProgram, float]:
    """Lower a program for the places of its operands; return it and its cost."""
    aliases = _aliases(program, operands, context.label)
    tensors = {tensor.name: tensor for tensor in (*program.inputs, *program.outputs)}
    found = _in_cells(accumulating(program, accumulate), operands, context.in_cells)
    if found is None:
        raise KernelError(context.label, "statements must walk the units of whole cells, where blobs have them")
    program, cells = found
    places = tuple((name, _place(operands[name], tensor, context.batch, cells)) for name, tensor in tensors.items())
    tuning = context.tuning
    broken = frozenset(fault.way for fault in tuning.choices.broken if fault.way.variant == _VARIANT)
    return _lowered(program, places, aliases, tuning.model, broken)


@lru_cache(maxsize=4096)
def _lowered(
    program: Program,
    places: tuple[tuple[str, Place], ...],
    aliases: tuple[tuple[str, str], ...],
    model: DeviceModel,
    broken: frozenset[Variant],
) -> tuple[LoweredProgram, float]:
    predicted: list[float] = []

    def choose(table: Table) -> Schedule:
        schedule = Schedule() if _way(table) in broken else best_schedule(table, model)
        predicted.append(costs.cost(costs.predict(prepared(table, schedule), schedule, model).cycles, model))
        return schedule

    return lower(program, choose, dict(places), dict(aliases), group_size(model)), sum(predicted)


def _way(table: Table) -> Variant:
    """A schedule for a table, among the ways to compute that a driver may not build."""
    return Variant(_VARIANT, f"{table.stores[0].operand.name}:{zlib.crc32(repr(table).encode()):08x}")


def _call(step: Step, text: str, operands: Mapping[str, Operand], label: str) -> KernelCall:
    kernel, table = step.kernel, step.table
    blobs, arrays = {}, {}
    for name in kernel.buffers:
        operand = operands[name]
        if isinstance(operand, Blob):
            blobs[name] = operand
        else:
            arrays[name] = operand
    moves = _moves(table)
    is_packing = moves is not None and table.stores[0].operand.name != step.whole.stores[0].operand.name
    moves = f"packing {moves}" if is_packing else moves and f"copying {moves}"
    accesses = {name: _access(table, name) for name in kernel.buffers}
    source = KernelSource(
        name=kernel.entry.replace("_", "/", 1),
        text=text,
        purpose=f"{step.whole.stores[0].operand.name} of {label}",
        blobs={name: accesses[name] for name in blobs},
        arrays={name: accesses[name] for name in arrays},
        scalars=("COUNT",) if kernel.takes_count else (),
        macros=(),
        tunables={},
        dimensions={"width": "tiles of the result"},
        data_alone=frozenset(name for name in blobs if accesses[name] == "read" and name in step.data_alone),
        moves=moves,
        is_generated=True,
    )
    return KernelCall(
        source.name,
        f"{label}: {moves}" if moves else label,
        GlobalSize(kernel.groups * kernel.threads, per_sample=False),
        blobs,
        arrays,
        local_size=(kernel.threads, 1, 1),
        way=_way(step.whole),
        generated=source,
        reason="in the order of reading" if is_packing else "",
    )


def _access(table: Table, name: str) -> str:
    written = {store.operand.name for store in table.stores}
    if name not in written:
        return "read"
    loads = [*table.loads, *(operand for store in table.stores for operand in loads_of(store.expression))]
    loaded = {operand.name for operand in loads}
    is_updated = name in loaded or (table.accumulates and name == table.stores[0].operand.name)
    return "update" if is_updated else "write"


def _moves(table: Table) -> str | None:
    """Return the names of the tensors whose values a table moves, if it does nothing else."""
    copies = _is_load(table.expression) and not table.accumulates
    if (
        not copies
        or any(index.extent > 1 for index in table.reductions)
        or any(store.expression != Value() for store in table.stores)
    ):
        return None
    return ", ".join(dict.fromkeys(load.name for load in table.loads))


def _is_load(expression: Expression) -> bool:
    """Return True if a term is one value, or one of several that the indexes alone choose."""
    if isinstance(expression, Apply) and expression.function == "select":
        condition, *chosen = expression.arguments
        return not any(isinstance(node, Load) for node in condition.walk()) and all(map(_is_load, chosen))
    return isinstance(expression, Load)
