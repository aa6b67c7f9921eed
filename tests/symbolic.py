"""Runs the calls of a plan on symbols: every cell of memory holds a hash of how its value came about.

A kernel's result is a hash of what it read, so that a read of a cell that holds another value than it should, once in a
whole training step, changes what comes out in the end. ``+=`` is a hash too, of both sides: x + y is y + x, and x + 0
is x, but (x + y) + z is not x + (y + z), as in floating point. :func:`expected` gives what must come out, layer by
layer, in memory that nobody shares, without the planner.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from blobnet.launch.elementwise import SUM, EpilogueOp, with_epilogue
from blobnet.launch.kernel_call import CONSTANT, Array, ArrayHandle, ArrayKind, Blob, KernelCall, Tuning
from blobnet.launch.task import TunedChoices
from blobnet.layers.activation import Activation
from blobnet.layers.base import LayerContext
from blobnet.layers.views import Slice
from blobnet.losses import Loss
from blobnet.memory.blob import BlobLayout, Shape
from blobnet.network.graph import Graph, Vertex
from blobnet.network.parameters import ParameterTable
from blobnet.planning import Plan

Symbols = npt.NDArray[np.uint64]

#: Kernels that read no cell but that of the same number as the one they write.
_CELL_BY_CELL = (
    "activation/forward",
    "activation/backward",
    "dropout/forward",
    "dropout/backward",
    "normalization/forward_inference",
    "normalization/backward_inference",
    "blob/copy",
    "join/add",
)
#: The kernel that folds norms into weights, and what they normalize with.
_FOLD, _NORM = "normalization/fold", ("RUNNING_MEAN", "RUNNING_VARIANCE", "SCALE", "SHIFT")
#: Others that may write where they read.
_IN_PLACE = ("activation/softmax_forward", "activation/softmax_backward", "normalization/backward_data")
#: Those whose SLOPE is of what they make again, not of a value that they read.
_THROUGH_SLOPE = ("normalization/backward_plane_sums", "normalization/backward_data")

#: Every layer alone must launch what it launches in a plan: no variant is chosen by the batch or the halos, and the
#: contents of no array depend on them.
TUNING = Tuning(choices=TunedChoices(only=frozenset({"direct"})))


#: The roles of numbers that an epilogue reads of a unit.
_OF_UNITS = re.compile(r"_\d+$")


class PlanBrokenError(AssertionError):
    """A call found something else in memory than what must be there."""


_WORD = (1 << 64) - 1


def _mix(values: Symbols) -> Symbols:
    """splitmix64: a permutation of 64-bit words that leaves no pattern."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values ^= values >> np.uint64(30)
    values *= np.uint64(0xBF58476D1CE4E5B9)
    values ^= values >> np.uint64(27)
    values *= np.uint64(0x94D049BB133111EB)
    values ^= values >> np.uint64(31)
    return values


@cache
def _word(*names: object) -> int:
    """A hash of names."""
    return int.from_bytes(hashlib.blake2b(repr(names).encode(), digest_size=8).digest(), "little")


@cache
def _numbers(size: int) -> Symbols:
    return np.arange(size, dtype=np.uint64) * np.uint64(0xD6E8FEB86659FD93)


def _digest(values: Symbols) -> int:
    """One hash of a whole array."""
    return _word(int(_mix(values.reshape(-1) ^ _numbers(values.size)).sum()))


def _spread(word: int, size: int) -> Symbols:
    """A word for each of ``size`` cells."""
    return _mix(_numbers(size) ^ np.uint64(word))


def _combined(word: int, *values: Symbols) -> Symbols:
    """One hash of several arrays, cell by cell; the order matters."""
    result = np.full(values[0].shape, word, np.uint64)
    for value in values:
        result = _mix(result ^ value)
    return result


def _sum(left: Symbols, right: Symbols) -> Symbols:
    return np.where(left == 0, right, np.where(right == 0, left, _mix(left + right)))


def _done(step: EpilogueOp, values: Symbols) -> Symbols:
    return values if step.expression == "x" else _combined(_word(step.expression), values)


def _through(step: EpilogueOp | None, values: Symbols, delta: Symbols) -> Symbols:
    """A delta on its way back through a function, whose slope follows from these values."""
    assert step is not None
    # A batch norm that takes on nothing does nothing for it either.
    return delta if step.expression == "x" else _combined(_word("activation/backward", step.expression), values, delta)


def _from_output(step: EpilogueOp) -> bool:
    return not re.search(r"\bx\b", step.slope)


def _cut(call: KernelCall, values: Symbols, shape: tuple[int, ...]) -> Symbols:
    """What a slice of units makes of its input, or of its delta, which is 0 in the other units."""
    assert isinstance(call.owner, Slice), f"{call.label}: symbols know no other generated kernel"
    count, whole = len(values), np.zeros(shape, np.uint64)
    first, last = call.owner.ranges[0][:2]  # type: ignore[index]
    if values.size > whole.size:
        return values.reshape(count, -1, *shape[2:])[:, first:last]
    part = whole[:, first:last]
    part[...] = values.reshape(part.shape)
    return whole


@cache
def _halo(layout: BlobLayout) -> npt.NDArray[np.bool_] | None:
    """The halo cells of a plane; None if it has none."""
    mask = layout.halo_mask()
    return mask if mask.any() else None


class SymbolicMemory:
    """Buffers of symbols; 0 is the number 0.

    Args:
        sizes: elements of each buffer.
        placed: the buffer of each storage.
        batch: anything: what stands in ``samples`` and ``labels`` follows from it.
    """

    def __init__(self, sizes: Mapping[str, int], placed: Mapping[str, str], batch: int = 0) -> None:
        self.buffers = {name: np.zeros(size, np.uint64) for name, size in sizes.items()}
        self.placed = placed
        self.batch = batch
        #: The places of vertices, by the numbers that their calls have.
        self.sites: dict[int | None, LayerContext] = {}
        #: What calls left in the persistent arrays, by storage and offset: gradients, running statistics.
        self.persistent: dict[tuple[str, int], int] = {}
        #: What was read for folded weights, and the bias that was made with them, by the hash of these weights.
        self.folded: dict[int, dict[str, int]] = {}
        #: What was split into phases, by the hash of these.
        self.split: dict[int, Symbols] = {}

    def data(self, blob: Blob, count: int) -> Symbols:
        """The cells of a blob, as a view."""
        view: Symbols = blob.layout.data(self.buffers[self.placed[blob.storage]], count)
        return view

    def run(self, call: KernelCall, count: int) -> None:
        """One launch.

        Raises:
            PlanBrokenError: a halo that is not 0, or a call that writes over what it reads.
        """
        if call.kernel == "blob/zero_halo":
            for blob in call.blobs.values():
                self._planes(blob, count)[..., _halo(blob.layout)] = 0
            return
        if call.kernel == "convolution/split_phases":
            phases = call.blobs["PHASES"]
            if (between := _halo(phases.layout)) is not None:
                self._planes(phases, count)[..., between] = 0
        source = call.source
        accumulates = bool(call.macros.get("ACCUMULATE", 0)) or (
            source.is_generated and "update" in source.blobs.values()
        )
        written = [role for role, access in source.blobs.items() if access != "read"]
        if call.macros.get("HAS_DELTA") == 0:
            written.remove("OUTPUT_DELTA")
        read = [role for role, access in source.blobs.items() if access == "read"]
        if call.macros.get("HAS_RESIDUAL") == 0:
            read.remove("RESIDUAL")
        for blob in call.blobs.values():
            mask = _halo(blob.layout)
            if mask is not None and self._planes(blob, count)[..., mask].any():
                raise PlanBrokenError(f"{call.label} ({call.kernel}): a halo cell of {blob.storage} is not 0")
        self._check_overlap(call, read, written, count)
        inputs = [self.data(call.blobs[role], count).reshape(count, -1).copy() for role in read]
        # A copy in another order is worth what was copied: whether there is one depends on how blobs lie.
        inputs = [self.split.get(_digest(values), values) for values in inputs]
        words = {
            role: self._array_word(call.arrays[role], count)
            for role, access in source.arrays.items()
            if access == "read"
        }
        norm: list[int] = []
        if words.get("WEIGHT") in self.folded:
            # As the layer and the norm behind it by calls of their own: a fold is worth that, and nothing else.
            parts = self.folded[words["WEIGHT"]]
            if words["BIAS"] != parts["FOLDED_BIAS"]:
                raise PlanBrokenError(f"{call.label} ({call.kernel}): folded weights with the bias of others")
            words |= {role: parts[role] for role in ("WEIGHT", "BIAS")}
            norm = [parts[role] for role in _NORM]
        arrays = list(words.values())
        if call.kernel in _THROUGH_SLOPE:
            inputs = self._through_slope(call, inputs, words)
        for role in written:
            target = self.data(call.blobs[role], count)
            result = self._result(call, role, inputs, words, norm, target.shape).reshape(target.shape)
            phase = (slice(None), slice(None), *self._phase(call))
            target[phase] = (_sum(target, result) if accumulates else result)[phase]
        for role, access in source.arrays.items():
            if access != "read" and role != "TOTALS":
                self._write_array(call, role, _word(role, *map(_digest, inputs), *arrays), count)
        if call.kernel == "convolution/split_phases":
            copied = self.data(call.blobs["PHASES"], count).reshape(count, -1)
            self.split[_digest(copied)] = inputs[0]
        if call.kernel == _FOLD:
            made = {role: self._array_word(call.arrays[role], count) for role in ("FOLDED_WEIGHT", "FOLDED_BIAS")}
            self.folded[made["FOLDED_WEIGHT"]] = words | made

    def _planes(self, blob: Blob, count: int) -> Symbols:
        """(count, units, elements of a plane) of a blob, as a view."""
        layout = blob.layout
        buffer = self.buffers[self.placed[blob.storage]]
        return np.lib.stride_tricks.as_strided(
            buffer[layout.unit_offset * layout.unit_memory_elements :],
            (count, layout.unit_count, layout.unit_memory_elements),
            (8 * layout.memory_elements, 8 * layout.unit_memory_elements, 8),
        )

    def _result(
        self,
        call: KernelCall,
        role: str,
        inputs: list[Symbols],
        words: Mapping[str, int],
        norm: list[int],
        shape: tuple[int, ...],
    ) -> Symbols:
        if 0 in (call.macros.get("TAPS_Y"), call.macros.get("TAPS_X")):
            return np.zeros(shape, np.uint64)
        if call.kernel == "blob/copy":
            return inputs[0]
        if call.source.is_generated:
            return _cut(call, inputs[0], shape) if inputs else np.zeros(shape, np.uint64)
        if call.kernel == "activation/backward":
            assert isinstance(call.owner, Activation)
            return _through(call.owner.nonlinearity.step, *inputs)
        residual = inputs.pop() if call.macros.get("HAS_RESIDUAL") else None
        numbers = {role: words[role] for role in words if _OF_UNITS.search(role)}
        own = [words[role] for role in words if role not in numbers]
        if call.kernel == "join/add":
            result = _sum(*inputs)
        elif call.kernel == "activation/forward":
            result = inputs[0]
        elif call.kernel in _CELL_BY_CELL:
            result = _combined(_word(call.kernel, call.macros.get("ORDINAL"), *own), *inputs)
        else:
            result = _spread(_word(role, *map(_digest, inputs), *own), int(np.prod(shape)))
            if norm:
                result = _combined(_word("normalization/forward_inference", None, *norm), result)
        for place, step in enumerate(self._steps(call, is_folded=bool(norm))):
            if step.blob is not None:
                assert step.expression == SUM
                assert residual is not None
                result = _sum(result, residual.reshape(result.shape))
            elif step.numbers:
                found = [numbers[role] for role in step.named(place)]
                result = _combined(_word("normalization/forward_inference", None, *found), result)
            else:
                result = _done(step, result)
        return result

    def _steps(self, call: KernelCall, *, is_folded: bool) -> Sequence[EpilogueOp]:
        """What the kernel does to its results for the layers behind its own, and an activation for itself."""
        finishes = "FINISHED" in call.macros
        if call.kernel == "join/add" and call.macros["FINISHED"] == with_epilogue(call, ()).macros["FINISHED"]:
            return ()
        function = call.owner.nonlinearity if isinstance(call.owner, Activation) else None
        own = [function.step] if function and function.step else []
        return [*own, *self.sites[call.vertex].epilogue[int(is_folded) :]] if finishes else ()

    def _through_slope(self, call: KernelCall, inputs: list[Symbols], words: Mapping[str, int]) -> list[Symbols]:
        """Input and delta of a batch norm, the delta as what is behind it gives it back by calls of its own."""
        source, delta = inputs
        forward = _word("OUTPUT", _digest(source), *(words[role] for role in ("STATISTICS", "SCALE", "SHIFT")))
        values = [_spread(forward, source.size).reshape(source.shape)]
        steps = self.sites[call.vertex].fused_activations
        for step in steps:
            values.append(_done(step, values[-1]))
        for step, given, made in reversed(list(zip(steps, values[:-1], values[1:], strict=True))):
            delta = _through(step, made if _from_output(step) else given, delta)
        return [source, delta]

    @staticmethod
    def _phase(call: KernelCall) -> tuple[slice, slice]:
        """The rows and columns that a call writes: all, but for one phase of a convolution with a stride."""
        if "PHASE_Y" not in call.macros:
            return slice(None), slice(None)
        first_y, first_x, step_y, step_x = (
            int(call.macros[name]) for name in ("PHASE_Y", "PHASE_X", "STRIDE_Y", "STRIDE_X")
        )
        return slice(first_y, None, step_y), slice(first_x, None, step_x)

    def _array(self, array: Array, count: int) -> Symbols:
        size = array.elements + count * array.per_sample
        return self.buffers[self.placed[array.storage]][array.offset : array.offset + size]

    def _array_word(self, array: Array, count: int) -> int:
        if not array.persistent:
            return _digest(self._array(array, count))
        key = array.storage, array.offset
        given = _word(*key, self.batch if array.storage in ("samples", "labels") else 0)
        return self.persistent.get(key, given) if array.storage == "gradients" else given

    def _write_array(self, call: KernelCall, role: str, word: int, count: int) -> None:
        array = call.arrays[role]
        if not array.persistent:
            target = self._array(array, count)
            target[:] = _spread(word, target.size)
        # NOTE: a layer without a bias binds that role to its weights, and leaves them alone.
        elif "BIAS" not in role or call.macros.get("HAS_BIAS", 1):
            self.persistent[array.storage, array.offset] = word

    def _check_overlap(self, call: KernelCall, read: list[str], written: list[str], count: int) -> None:
        may_equal = call.kernel in (*_CELL_BY_CELL, *_IN_PLACE)
        for target in (call.blobs[role] for role in written):
            for source in (call.blobs[role] for role in read):
                same_buffer = self.placed[target.storage] == self.placed[source.storage]
                if not same_buffer or (may_equal and target == source):
                    continue
                touched = np.zeros(self.buffers[self.placed[target.storage]].size, bool)
                target.layout.data(touched, count)[...] = True
                if source.layout.data(touched, count).any():
                    raise PlanBrokenError(f"{call.label} ({call.kernel}) writes {target.storage} over {source.storage}")


@dataclass(frozen=True)
class Outcome:
    """What a batch leaves: the output, dL/d input (None without), and gradients and running statistics by name."""

    output: Symbols
    input_delta: Symbols | None
    persistent: Mapping[str, int]

    def differences(self, other: Outcome) -> list[str]:
        """The names of what differs."""
        found = [] if np.array_equal(self.output, other.output) else ["output"]
        left, right = self.input_delta, other.input_delta
        if left is not None and (right is None or not np.array_equal(left, right)):
            found.append("input delta")
        if set(self.persistent) != set(other.persistent):
            found.append(f"names {sorted(set(self.persistent) ^ set(other.persistent))}")
        return found + [name for name, value in self.persistent.items() if value != other.persistent.get(name)]


class SymbolicExecutor:
    """A plan with symbolic memory, which keeps what a batch left in it for the next one."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        sizes = {name: buffer.size(plan.batch_size) for name, buffer in plan.buffers.items()}
        self.memory = SymbolicMemory(sizes, plan.placed)
        self.memory.sites = dict(enumerate(plan.sites[vertex.name] for vertex in plan.request.graph.vertices))
        #: Whether what depends on parameters alone is still to be made.
        self.is_new = True

    def run(self, count: int, batch: int) -> Outcome:
        """All phases on a batch of ``count`` samples."""
        plan, memory = self.plan, self.memory
        memory.batch = batch
        memory.persistent.clear()
        output = None
        for position, (phase, call) in enumerate(plan.calls):
            if phase != CONSTANT or self.is_new:
                memory.run(call, count)
            following = plan.calls[position + 1 :]
            if phase == "forward" and (not following or following[0][0] != "forward"):
                output = memory.data(plan.outputs[plan.request.graph.output.name], count).reshape(count, -1).copy()
        assert output is not None
        self.is_new = False
        delta = plan.deltas.get(plan.request.graph.input.name)
        kept = {key: value for key, value in memory.persistent.items() if key[0] in ("gradients", "parameters")}
        return Outcome(
            output,
            None if delta is None else memory.data(delta, count).reshape(count, -1).copy(),
            {_name(plan, *key): value for key, value in kept.items()},
        )


def _name(plan: Plan, storage: str, offset: int) -> str:
    names = {piece.offset: name for name, piece in plan.request.parameters.slices.items()}
    return f"{storage} {names[offset]}"


class _OwnMemory(SymbolicMemory):
    """Memory of one layer, in which nothing is shared."""

    def __init__(self, vertex: Vertex, table: ParameterTable, batch: int) -> None:
        self.names: dict[str, str] = {}
        super().__init__({}, self.names, batch)
        self.vertex = vertex
        self.table = table

    def blob(self, name: str, shape: Shape, count: int) -> Blob:
        layout = BlobLayout.padded(shape)
        self.buffers[name] = np.zeros(count * layout.memory_elements, np.uint64)
        self.names[name] = name
        return Blob(name, layout)

    def array(self, handle: ArrayHandle, count: int) -> Array:
        kind, name, elements, per_sample = handle
        if kind in (ArrayKind.PARAMETER, ArrayKind.GRADIENT):
            parameter = f"{self.vertex.name}/{name}"
            piece = self.table.slices[parameter]
            if kind is ArrayKind.PARAMETER or self.table.trains(parameter):
                return Array(kind.value, piece.elements, offset=piece.offset, persistent=True)
            name, elements = f"{name} gradient", piece.elements
        if kind is ArrayKind.SHARED:
            return Array(name, 0, persistent=True)
        key = f"{self.vertex.name} {name}"
        self.names[key] = key
        self.buffers.setdefault(key, np.zeros(elements + count * per_sample, np.uint64))
        return Array(key, elements, per_sample)


def expected(
    graph: Graph, table: ParameterTable, count: int, batch: int, *, training: bool, loss: Loss | None
) -> Outcome:
    """What a batch must leave: every layer on its own, joined here in the plainest way.

    The delta of a blob with several readers is added up from the last reader to the first.

    Args:
        graph: the model.
        table: where the parameters lie in their buffer, and which of them are trained.
        count: samples.
        batch: see SymbolicMemory.
        training: whether there is a backward pass.
        loss: what training minimises.
    """
    values: list[Symbols] = []
    sites: list[tuple[_OwnMemory, LayerContext]] = []
    persistent: dict[str, int] = {}
    names = {piece.offset: name for name, piece in table.slices.items()}

    def run(memory: _OwnMemory, calls: list[KernelCall]) -> None:
        for call in calls:
            memory.run(replace(call, owner=memory.vertex.layer), count)
        for (storage, offset), value in memory.persistent.items():
            if storage in ("gradients", "parameters"):
                persistent[f"{storage} {names[offset]}"] = value

    # Of a network that could learn, and of which nothing is trained, all runs as it predicts.
    learns = training and (not graph.trainable or any(map(table.trains, graph.trainable)))
    for vertex in graph.vertices:
        memory = _OwnMemory(vertex, table, batch)

        def array(handle: ArrayHandle, memory: Any = memory) -> Array:
            found: Array = memory.array(handle, count)
            return found

        shapes = graph.input_shapes(vertex)
        trainable = {spec.name for spec in graph.parameters(vertex) if spec.trainable}
        frozen = frozenset(name for name in trainable if not table.trains(f"{vertex.name}/{name}"))
        site = LayerContext(
            name=vertex.name,
            inputs=tuple(memory.blob(f"input {place}", shape, count) for place, shape in enumerate(shapes)),
            output=memory.blob("output", vertex.shape, count),
            array=array,
            input_deltas=tuple(memory.blob(f"input delta {place}", shape, count) for place, shape in enumerate(shapes)),
            output_delta=memory.blob("delta", vertex.shape, count),
            accumulate=(False,) * len(shapes),
            training=learns and (not trainable or frozen != trainable),
            frozen=frozen,
            tuning=TUNING,
            batch_size=count,
            ordinal=vertex.index,
            shapes=tuple(shapes),
        )
        memory.sites = {None: site}
        for blob, source in zip(site.inputs, vertex.inputs, strict=True):
            memory.data(blob, count)[...] = values[source].reshape(memory.data(blob, count).shape)
        run(memory, vertex.layer.forward(site))
        values.append(memory.data(site.output, count).reshape(count, -1).copy())
        sites.append((memory, site))
    if not training:
        return Outcome(values[-1], None, persistent)
    assert loss is not None
    memory, site = sites[-1]
    run(memory, loss.calls(site.output, site.delta, TUNING, count))
    deltas: dict[int, Symbols] = {len(sites) - 1: memory.data(site.delta, count).reshape(count, -1).copy()}
    for vertex in reversed(graph.vertices):
        memory, site = sites[vertex.index]
        target = memory.data(site.delta, count)
        target[...] = deltas[vertex.index].reshape(target.shape)
        if site.training:
            run(memory, vertex.layer.backward_parameters(site))
        run(memory, vertex.layer.backward_data(site))
        for delta, source in zip(site.input_deltas, vertex.inputs, strict=True):
            assert delta is not None
            part = memory.data(delta, count).reshape(count, -1).copy()
            deltas[source] = _sum(deltas[source], part) if source in deltas else part
    return Outcome(values[-1], deltas[0], persistent)
