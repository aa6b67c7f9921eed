"""One layer alone in hostile memory, as ``blobnet doctor`` runs it; the tests add to that (tests/layers/arranged.py).

A bench makes the blobs, the parameters and the LayerContext of a layer by hand, where a planner would never put them:
random halos, pitches, slack and unit offsets, NaN wherever the layer has no business, and canaries before and after
every buffer. After every phase it checks that only the cells which that phase may write have changed.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from blobnet.device.device import Device
from blobnet.device.memory import Guarded
from blobnet.errors import PromiseError
from blobnet.execution.executor import Executor, cell
from blobnet.launch.kernel_call import Array, ArrayHandle, ArrayKind, Blob, KernelCall, Tuning, for_model
from blobnet.layers.base import Layer, LayerContext, ParameterSpec
from blobnet.memory.blob import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    STORAGE_TYPES,
    BlobLayout,
    FloatArray,
    Halo,
    Padding,
    Shape,
    StorageType,
)
from blobnet.network.graph import Graph
from blobnet.network.parameters import PARAMETER_ALIGNMENT, ParameterTable
from blobnet.planning import STEP_WORDS, Buffer, Plan
from blobnet.planning.request import Request

#: Quiet NaNs that no computation makes.
POISON = {FLOAT32.dtype: 0x7FC0DEAD, FLOAT16.dtype: 0x7E5D, BFLOAT16.dtype: 0x7FD5}
PHASES = ("forward", "backward parameters", "backward data")
Any4 = npt.NDArray[Any]


@dataclass(frozen=True)
class Arrangement:
    """An arrangement of a layer's blobs in memory.

    Attributes:
        name: for messages.
        tight: exactly the halos that the layer asks for, no slack and no units of others, as in most plans.
        own_zeros: every row has zeros of its own on both sides, and a pitch of its own.
        same_pitch: one row pitch for all blobs, so that flat-plane kernels are chosen.
        beside: output and input 0 are units of one storage, and so are their deltas, where their planes match.
        accumulate: input deltas are added to what is there.
    """

    name: str
    tight: bool = False
    own_zeros: bool = False
    same_pitch: bool = False
    beside: bool = False
    accumulate: bool = False


@dataclass(frozen=True)
class Problem:
    """A layer with its data: all that does not depend on an arrangement.

    ``inputs`` are (count, units[, depth], height, width); ``shared`` fills arrays of the trainer's.
    """

    layer: Layer
    shapes: tuple[Shape, ...]
    count: int
    inputs: tuple[FloatArray, ...]
    delta: FloatArray
    old_deltas: tuple[FloatArray, ...]
    parameters: Mapping[str, FloatArray]
    shared: Mapping[str, Any4]
    seed: int = 0
    ordinal: int = 0
    storage: StorageType = FLOAT32
    weights: StorageType = FLOAT32

    @property
    def output_shape(self) -> Shape:
        return self.layer.output_shape(self.shapes)

    @property
    def specs(self) -> tuple[ParameterSpec, ...]:
        return self.layer.parameters(self.shapes)

    @property
    def name(self) -> str:
        """The name in messages: the layer, the shapes it got, and the seed."""
        return f"{self.layer} on {' '.join(str(shape) for shape in self.shapes)}, count {self.count}, seed {self.seed}"


def in_memory(shape: Shape) -> tuple[int, ...]:
    """The axes of data in memory: (units, height, width), or (units, depth, height, width)."""
    return BlobLayout.padded(shape).shape.dimensions


def make_problem(layer: Layer, shapes: Sequence[Shape], *, count: int = 3, seed: int = 0) -> Problem:
    """A problem with normally distributed data; every layer in a plan has a name."""
    generator = np.random.default_rng(seed)
    named = layer if layer.name else replace(layer, name="tested")

    def normal(shape: Shape) -> FloatArray:
        return generator.standard_normal((count, *in_memory(shape))).astype(np.float32)

    return Problem(
        layer=named,
        shapes=tuple(shapes),
        count=count,
        inputs=tuple(normal(shape) for shape in shapes),
        delta=normal(named.output_shape(shapes)),
        parameters={spec.name: _random_parameter(spec, generator) for spec in named.parameters(shapes)},
        old_deltas=tuple(normal(shape) for shape in shapes),
        shared={
            "step": np.zeros(STEP_WORDS, np.uint32),
            "rows": np.arange(count, dtype=np.int32),
            "not_finite": np.zeros(1, np.int32),
        },
        seed=seed,
    )


def _random_parameter(spec: ParameterSpec, generator: np.random.Generator) -> FloatArray:
    if spec.initializer == "ones":  # Scales and variances: positive.
        values = generator.uniform(0.5, 1.5, spec.shape)
    elif spec.initializer == "zeros":
        values = 0.5 * generator.standard_normal(spec.shape)
    else:
        fan_in = max(1, spec.elements // spec.shape[0])
        values = generator.standard_normal(spec.shape) / np.sqrt(fan_in)
    return values.astype(np.float32)


#: A blob of a problem: ``input``, ``output`` or the delta of one, and its position.
Key: TypeAlias = tuple[str, int]


def _type_of(shape: Shape, storage: StorageType) -> StorageType:
    """Return the type of a blob in memory: planes of whole cells have cells, if the problem's storage has."""
    fits = storage.cell == 1 or (shape.rank and shape.units % storage.cell == 0)
    return storage if fits else STORAGE_TYPES[storage.name]


class BlobPlaces:
    """Where the blobs of a problem lie in one arrangement.

    Args:
        problem: the layer and its data.
        arrangement: of its blobs.
        generator: of what is random: halos, pitches, slack, units around.
    """

    def __init__(self, problem: Problem, arrangement: Arrangement, generator: np.random.Generator) -> None:
        self._problem, self._arrangement, self._generator = problem, arrangement, generator

    def blobs(self) -> dict[Key, Blob]:
        """A blob for every role, several of them in one storage where the arrangement says so."""
        layer, shapes, planes = self._problem.layer, self._problem.shapes, self._planes()
        halos: dict[Key, Halo] = {("input", position): layer.input_halo(shapes) for position in range(len(shapes))}
        halos["output delta", 0] = layer.delta_halo(shapes) if shapes else Halo()
        places = {key: (key, 0) for key in planes} | self._joined()
        owners = sorted({owner for owner, _ in places.values()})
        wishes: dict[Key, Halo] = {}
        for owner in owners:
            halo = Halo()
            for key, (home, _) in places.items():
                halo = halo.merged(halos.get(key, Halo())) if home == owner else halo
            wishes[owner] = halo.merged(self._widened(halo))
        pitch = max(planes[owner].width + max(halo.left, halo.right) for owner, halo in wishes.items())
        pitch += 0 if self._arrangement.tight else int(self._generator.integers(0, 3))
        layouts = {}
        for owner in owners:
            members = [(first, key) for key, (home, first) in places.items() if home == owner]
            units = max(first + planes[key].units for first, key in members)
            layouts[owner] = self._layout(planes[owner].with_units(units), wishes[owner], pitch)
        blobs = {}
        for key, (owner, first) in places.items():
            units = planes[owner if self._is_shared(key) else key].units
            layout = layouts[owner].slice_units(first, units)
            kind = _type_of(self._shape(owner), self._problem.storage)
            blobs[key] = Blob(f"{owner[0]} {owner[1]}", layout, type=kind)
        return blobs

    def _shape(self, key: Key) -> Shape:
        return self._problem.output_shape if key[0].startswith("output") else self._problem.shapes[key[1]]

    def _planes(self) -> dict[Key, Shape]:
        """The planes of each blob in memory, of cells if it has cells."""
        inputs = [(name, place) for place in range(len(self._problem.shapes)) for name in ("input", "input delta")]
        planes = {}
        for key in [("output", 0), ("output delta", 0), *inputs]:
            shape = self._shape(key)
            planes[key] = shape.with_units(shape.units // _type_of(shape, self._problem.storage).cell)
        return planes

    def _is_shared(self, key: Key) -> bool:
        """Return True if a blob has the planes of the one whose memory it is."""
        return False

    def _joined(self) -> dict[Key, tuple[Key, int]]:
        """Return for blobs that share a storage the blob that owns it, and the first unit there."""
        shapes, output, planes = self._problem.shapes, self._problem.output_shape, self._planes()
        kinds = {_type_of(shape, self._problem.storage) for shape in (*shapes[:1], output)}
        if not self._arrangement.beside or output.axes != shapes[0].axes or len(kinds) > 1:
            return {}
        return {
            ("output", 0): (("input", 0), planes["input", 0].units + 1),
            ("input delta", 0): (("output delta", 0), planes["output", 0].units + 1),
        }

    def _widened(self, halo: Halo) -> Halo:
        """A halo at least as wide: other readers may ask for more."""
        if self._arrangement.tight:
            return halo
        more = self._generator.choice([0, 0, 1, 2], 4).reshape(2, 2)
        has_depth = any(shape.rank == 3 for shape in (*self._problem.shapes, self._problem.output_shape))
        depth = self._generator.choice([0, 0, 1, 2], 2) if has_depth else (0, 0)
        return Halo(*np.add(halo.axes, [depth, *more]))

    def _layout(self, shape: Shape, halo: Halo, pitch: int) -> BlobLayout:
        if self._arrangement.tight:
            return BlobLayout.padded(shape, halo, pitch=pitch)
        own_pitch: int | None = shape.width + max(halo.left, halo.right) + int(self._generator.integers(0, 4))
        if self._arrangement.own_zeros:
            own_pitch = None
        before, after = (int(units) for units in self._generator.integers(0, 3, 2))
        layout = BlobLayout.padded(
            shape.with_units(before + shape.units + after),
            halo,
            pitch=pitch if self._arrangement.same_pitch else own_pitch,
            slack=0 if self._arrangement.own_zeros else int(self._generator.choice([0, 1, 5, 16])),
            padding=Padding(own_zeros=self._arrangement.own_zeros),
        )
        return layout.slice_units(before, shape.units)


class Bench:
    """A layer on a device, its blobs arranged in one way.

    ``calls`` gives the kernel calls of each of PHASES; with ``as_planned`` their programs are those of plans, which
    know on a CPU what else are arguments.
    """

    def __init__(
        self,
        device: Device,
        problem: Problem,
        arrangement: Arrangement,
        tuning: Tuning | None = None,
        *,
        as_planned: bool = False,
    ) -> None:
        self.device = device
        self.problem = problem
        self.arrangement = arrangement
        salt = zlib.crc32(arrangement.name.encode())
        self._generator = np.random.default_rng([problem.seed, salt])
        self._arrays: dict[str, Array] = {}
        blobs = self._places().blobs()
        inputs = range(len(problem.shapes))
        self.inputs = tuple(blobs["input", position] for position in inputs)
        self.output = blobs["output", 0]
        self.output_delta = blobs["output delta", 0]
        self.site = self._site(blobs, tuning or device.tuning)
        self.input_deltas = self.site.input_deltas
        self._slices = self._parameter_slices()
        layer = problem.layer
        self.calls: dict[str, list[KernelCall]] = {"forward": layer.forward(self.site)}
        if self.site.training:
            self.calls["backward parameters"] = layer.backward_parameters(self.site)
            self.calls["backward data"] = layer.backward_data(self.site)
        if as_planned:
            self.calls = {phase: for_model(calls, self.site.tuning.model) for phase, calls in self.calls.items()}
        self._buffers = self._make_buffers()
        #: The content of every buffer, as far as the host knows.
        self.mirror: dict[str, FloatArray] = {}

    def _places(self) -> BlobPlaces:
        return BlobPlaces(self.problem, self.arrangement, self._generator)

    def _site(self, blobs: Mapping[Key, Blob], tuning: Tuning) -> LayerContext:
        """The layer's context: that of a training which needs all deltas."""
        problem = self.problem
        inputs = range(len(problem.shapes))
        assert problem.layer.name is not None
        return LayerContext(
            name=problem.layer.name,
            inputs=self.inputs,
            output=self.output,
            array=self._array,
            input_deltas=tuple(blobs["input delta", position] for position in inputs),
            output_delta=self.output_delta,
            accumulate=tuple(self.arrangement.accumulate for _ in inputs),
            training=True,
            batch_size=problem.count,
            tuning=tuning,
            ordinal=problem.ordinal,
            shapes=problem.shapes,
        )

    @cached_property
    def _guarded(self) -> dict[str, Guarded]:
        return {name: self.device.memory.allocate_guarded(self._bytes(name)) for name in self._buffers}

    @cached_property
    def executor(self) -> Executor:
        """The executor of the calls; it is made, with its memory, on first use."""
        memory = {name: guarded.buffer for name, guarded in self._guarded.items()}
        return Executor(self.device, self._plan(self.site.tuning), memory, debug=False)

    @property
    def name(self) -> str:
        """The name in messages."""
        return f"{self.problem.name}, {self.arrangement.name}"

    # -- arrays and buffers ------------------------------------------------------------------------------------------

    def _array(self, handle: ArrayHandle) -> Array:
        """Return parameters, gradients and memory as LayerContext asks for them."""
        kind, name, elements, per_sample = handle
        if kind in (ArrayKind.PARAMETER, ArrayKind.GRADIENT):
            offset, spec = self._slices[name]
            is_parameter = kind is ArrayKind.PARAMETER
            assert is_parameter or spec.trainable, f"{name} has no gradient"
            of = self.problem.weights if is_parameter else FLOAT32
            return Array(kind.value, spec.elements, offset=offset, persistent=True, type=of)
        if kind is ArrayKind.SHARED:
            return Array(name, 0, persistent=True)
        return self._arrays.setdefault(name, Array(f"memory {name}", elements, per_sample))

    def _parameter_slices(self) -> dict[str, tuple[int, ParameterSpec]]:
        """Parameters with gaps between them, at the alignment that a plan gives them."""
        slices = {}
        offset = 0
        for spec in self.problem.specs:
            offset += PARAMETER_ALIGNMENT * int(self._generator.integers(0, 3))
            slices[spec.name] = (offset, spec)
            offset += -(-spec.elements // PARAMETER_ALIGNMENT) * PARAMETER_ALIGNMENT
        return slices

    def _make_buffers(self) -> dict[str, Buffer]:
        buffers = {}
        for blob in self._all_blobs():
            buffers[blob.storage] = Buffer(blob.storage, 0, blob.layout.memory_elements, type=blob.type)
        used = [array for calls in self.calls.values() for call in calls for array in call.arrays.values()]
        types = {array.storage: FLOAT32 for array in self._arrays.values()}
        types |= {array.storage: array.type for array in used}
        for array in self._arrays.values():
            buffers[array.storage] = Buffer(array.storage, array.elements, array.per_sample, type=types[array.storage])
        for name, values in self.problem.shared.items():
            buffers[name] = Buffer(name, values.size, 0)
        size = max((offset + spec.elements for offset, spec in self._slices.values()), default=1)
        for name in ("parameters", "gradients"):
            buffers[name] = Buffer(name, size, 0, type=self.problem.weights if name == "parameters" else FLOAT32)
        return buffers

    @property
    def capacity(self) -> int:
        """Samples that there is memory for."""
        return max(self.problem.count, self.site.batch_size) + 1

    def _all_blobs(self) -> list[Blob]:
        deltas = [*(blob for blob in self.input_deltas if blob), self.output_delta]
        return [*self.inputs, self.output, *(deltas if self.site.training else [])]

    def _plan(self, tuning: Tuning) -> Plan:
        return Plan(
            Request(Graph(()), self.capacity, tuning=tuning, parameters=ParameterTable({}, (), 1)),
            calls=tuple((phase, call) for phase, calls in self.calls.items() for call in calls),
            buffers=self._buffers,
            placed={name: name for name in self._buffers},
            outputs={},
            deltas={},
        )

    def _bytes(self, storage: str) -> int:
        """Bytes of a buffer, those included that only vector loads may touch."""
        return self._buffers[storage].bytes(self.capacity)

    def _elements(self, storage: str) -> int:
        return self._bytes(storage) // self._buffers[storage].type.number_size

    # -- contents ----------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Fills all buffers: data and parameters where they belong, zeros in halos, poison everywhere else."""
        # NOTE: each buffer has a NaN of its own: a sum over one buffer's, written to another, is seen there.
        self.mirror = {
            name: poison(self._elements(name), number, buffer.type)
            for number, (name, buffer) in enumerate(self._buffers.items())
        }
        problem = self.problem
        for blob in self._all_blobs():
            halo = halo_cells(blob, problem.count)
            self.mirror[blob.storage][: halo.size][halo] = 0
        for blob, values in zip(self.inputs, problem.inputs, strict=True):
            self._put(blob, values)
        for name, values in problem.parameters.items():
            offset, spec = self._slices[name]
            self.mirror["parameters"][offset : offset + spec.elements] = self.problem.weights.encode(values.reshape(-1))
        for name, values in problem.shared.items():
            assert values.dtype.itemsize == 4, f"{name} must be of 4-byte numbers"
            self.mirror[name].view(values.dtype)[: values.size] = values.reshape(-1)
        self._upload(self.mirror)

    def load_deltas(self) -> None:
        """Fills the output's delta, and what the input deltas are added to; poisons what a plan might have reused."""
        layer, changed = self.problem.layer, {self.output_delta.storage}
        kept = list(self.inputs) * layer.kept.inputs + [self.output] * layer.kept.output
        for blob in (*self.inputs, self.output):
            if blob not in kept:
                self._data(blob)[...] = poison(1, 0, blob.type)[0]
                changed.add(blob.storage)
        if self.arrangement.accumulate:
            for target, values in zip(self.input_deltas, self.problem.old_deltas, strict=True):
                if target:
                    self._put(target, values)
                    changed.add(target.storage)
        self._put(self.output_delta, self.problem.delta)
        self._upload(changed)

    def _upload(self, names: Any) -> None:
        for name in names:
            self.device.memory.write(self.executor.buffers[name], self.mirror[name])

    def _put(self, blob: Blob, values: FloatArray) -> None:
        blob.write(self.mirror[blob.storage], values)

    def _data(self, blob: Blob) -> npt.NDArray[Any]:
        return blob.numbers.data(self.mirror[blob.storage], self.problem.count)

    # -- runs --------------------------------------------------------------------------------------------------------

    def run(self, phase: str, *, debug: bool = True) -> None:
        """Runs a phase, and checks every cell of every buffer that it must not change.

        Raises:
            PromiseError: a cell that the phase must not change was changed, or a halo is not 0; with ``debug`` it names
                the launch.
        """
        self.executor.debug = debug
        self.executor.run(phase, self.problem.count)
        self.device.queue.finish()
        for name in self._buffers:
            after = self.device.memory.read(
                self.executor.buffers[name], self._elements(name), self._buffers[name].type.dtype
            )
            self._check(phase, name, after)
            self.mirror[name] = after
            require_untouched(self._guarded[name], f"{self.name}: {phase}: buffer '{name}'")

    def _check(self, phase: str, name: str, after: FloatArray) -> None:
        before, kind = self.mirror[name], self._buffers[name].type
        allowed, halo = np.zeros(after.size, dtype=bool), np.zeros(after.size, dtype=bool)
        blobs = (self.output,) if phase == "forward" else self.input_deltas
        # What makes gradients may make deltas in the same launch.
        said = {storage for call in self.calls[phase] for storage in call.storages("write", "update")}
        for blob in blobs:
            if blob and blob.storage == name and (phase != "backward parameters" or name in said):
                blob.numbers.data(allowed, self.problem.count)[...] = True
                own = halo_cells(blob, self.problem.count)
                halo[: own.size] |= own
        used = [array for calls in self.calls.values() for call in calls for array in call.arrays.values()]
        is_side_by_side = any(array.side_by_side for array in used if array.storage == name)
        for array in self._arrays.values():
            if array.storage == name:
                samples = self.site.batch_size if is_side_by_side else self.problem.count
                allowed[: array.end(samples)] = True
        state = phase == "forward" and self.site.training
        for offset, spec in self._slices.values():
            if (name == "parameters" and state and not spec.trainable) or (
                name == "gradients" and phase == "backward parameters" and spec.trainable
            ):
                allowed[offset : offset + spec.elements] = True
        where = f"{self.name}: {phase}: buffer '{name}'"
        changed = bits(before) != bits(after)
        rules = {
            "it must be 0 in every halo cell": halo & (kind.decode(after) != 0),
            "it must keep what is not the phase's to write": changed & ~allowed & ~halo,
        }
        for rule, bad in rules.items():
            if bad.any():
                first = int(np.flatnonzero(bad)[0])
                values = f"{before[first]} became {after[first]}"
                blob = next((own for own in self._all_blobs() if own.storage == name), None)
                place = f"{cell(blob, first)} of {blob.layout}" if blob else f"element {first}"
                raise PromiseError(where, rule, cells=int(bad.sum()), first=place, values=values)

    # -- results -----------------------------------------------------------------------------------------------------

    def values(self, blob: Blob) -> FloatArray:
        """The data of a blob as it was after the last phase: (count, units[, depth], height, width)."""
        return np.array(blob.type.decode(blob.read(self.mirror[blob.storage], self.problem.count)))

    def parameter(self, buffer: str, name: str) -> FloatArray:
        """A parameter (of ``parameters``), or its gradient (of ``gradients``), after the last phase."""
        offset, spec = self._slices[name]
        values = self.mirror[buffer][offset : offset + spec.elements]
        return np.array(self._buffers[buffer].type.decode(values).reshape(spec.shape))


def require_untouched(guarded: Guarded, where: str) -> None:
    """Raises PromiseError if somebody wrote around a buffer."""
    if guarded.is_touched():
        raise PromiseError(where, "a launch must write nothing before or behind its buffers")


def halo_cells(blob: Blob, count: int) -> npt.NDArray[np.bool_]:
    """Return a mask of the memory of ``count`` samples: True where a cell is halo of one of the blob's own units."""
    layout = blob.numbers
    mask = np.zeros((count, layout.unit_memory_count, layout.unit_memory_elements), dtype=bool)
    mask[:, layout.unit_offset : layout.unit_offset + layout.unit_count] = layout.halo_mask()
    return mask.reshape(-1)


def poison(elements: int, number: int = 0, kind: StorageType = FLOAT32) -> FloatArray:
    """``elements`` NaNs with bits of their own, others for each ``number``."""
    return np.full(elements, POISON[kind.dtype] + number, f"u{kind.number_size}").view(kind.dtype)


def bits(values: npt.NDArray[Any]) -> npt.NDArray[np.unsignedinteger[Any]]:
    """Numbers as they lie in memory."""
    return values.view(f"u{values.itemsize}")
