"""One layer alone in hostile memory: what ``blobnet doctor`` and the tests run it on.

A bench makes the blobs, the parameters and the LayerContext of a layer by hand, where a planner would never put them:
random halos, pitches, slack and unit offsets, NaN wherever the layer has no business, and canaries before and after
every buffer. After every phase it checks that only the cells which that phase may write have changed.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from blobnet.device.device import Device
from blobnet.device.memory import Guarded
from blobnet.errors import PromiseError
from blobnet.examination.reference.activation import named
from blobnet.execution.executor import Executor, cell
from blobnet.launch.elementwise import PER_CELL, PER_PLANE_CELL, PER_UNIT, SUM, EpilogueOp, c_text, norm
from blobnet.launch.kernel_call import Array, ArrayHandle, ArrayKind, Blob, KernelCall, Tuning, for_model
from blobnet.layers.activation import Activation
from blobnet.layers.base import Layer, LayerContext, ParameterSpec, Placement
from blobnet.memory.blob import FLOAT16, FLOAT32, BlobLayout, FloatArray, Halo, Padding, Shape, StorageType
from blobnet.network.graph import Graph
from blobnet.network.parameters import PARAMETER_ALIGNMENT, ParameterTable
from blobnet.planning import STEP_WORDS, Buffer, Plan
from blobnet.planning.request import Request

#: Quiet NaNs that no computation makes.
POISON = {FLOAT32: 0x7FC0DEAD, FLOAT16: 0x7E5D}
PHASES = ("forward", "backward parameters", "backward data")
Any4 = npt.NDArray[Any]
#: Links of an epilogue that read another blob: what they do with it, and what it has values for.
BLOB_LINKS = {
    "residual": (SUM, PER_CELL),
    "gate": ("x * r", PER_CELL),
    "shifts": (SUM, PER_UNIT),
    "gates": ("x * r", PER_UNIT),
    "mask": ("x * r", PER_PLANE_CELL),
}


@dataclass(frozen=True)
class Arrangement:
    """An arrangement of a layer's blobs in memory.

    Attributes:
        name: for messages.
        tight: exactly the halos that the layer asks for, no slack and no units of others, as in most plans.
        own_zeros: every row has zeros of its own on both sides, and a pitch of its own.
        same_pitch: one row pitch for all blobs, so that flat-plane kernels are chosen.
        beside: output and input 0 are units of one storage, and so are their deltas, where their planes match.
        in_place_of: the output is this input's blob.
        by_placement: output and input deltas lie where ``placement`` and ``delta_placement`` say they may.
        accumulate: input deltas are added to what is there.
        wanted: the inputs that need a delta; None: all.
        training: whether this is a training plan.
        norm, residual, activation: for the epilogue of a layer that fuses them.
        chain: another epilogue: ``norm``, ``prelu`` (a slope for each unit), one of BLOB_LINKS, and activations, in any
            order.
    """

    name: str
    tight: bool = False
    own_zeros: bool = False
    same_pitch: bool = False
    beside: bool = False
    in_place_of: int | None = None
    by_placement: bool = False
    accumulate: bool = False
    wanted: frozenset[int] | None = None
    training: bool = True
    norm: bool = False
    residual: bool = False
    activation: str | None = None
    chain: tuple[str, ...] = ()

    @property
    def links(self) -> tuple[str, ...]:
        """The epilogue, as a chain."""
        fixed = ("norm",) * self.norm + ("residual",) * self.residual
        return self.chain or (*fixed, *([self.activation] if self.activation else []))

    @property
    def reads_blob(self) -> bool:
        """True if the epilogue reads another blob."""
        return self.per is not None

    @property
    def per(self) -> int | None:
        """The kind of values of the other blob (PER_UNIT, say); None without one."""
        return next((BLOB_LINKS[link][1] for link in self.links if link in BLOB_LINKS), None)

    @property
    def reads_numbers(self) -> bool:
        """True if it reads numbers of units."""
        return bool({"norm", "prelu"} & set(self.links))


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


def make_problem(
    layer: Layer,
    shapes: Sequence[Shape],
    *,
    count: int = 3,
    seed: int = 0,
    inputs: Sequence[npt.ArrayLike] | None = None,
    parameters: Mapping[str, npt.ArrayLike] | None = None,
    delta: npt.ArrayLike | None = None,
    shared: Mapping[str, Any4] | None = None,
    ordinal: int = 0,
    storage: StorageType = FLOAT32,
    weights: StorageType = FLOAT32,
) -> Problem:
    """A problem with normally distributed data, but for the data given; every layer in a plan has a name.

    What lies in blobs is rounded to ``storage``, parameters to ``weights``.
    """
    generator = np.random.default_rng(seed)
    named = layer if layer.name else replace(layer, name="tested")

    def normal(shape: Shape) -> FloatArray:
        return generator.standard_normal((count, *in_memory(shape))).astype(np.float32)

    made = [normal(shape) for shape in shapes]
    made_delta = normal(named.output_shape(shapes))
    values = {spec.name: _random_parameter(spec, generator) for spec in named.parameters(shapes)}
    for name, value in (parameters or {}).items():
        values[name] = np.asarray(value, np.float32).reshape(values[name].shape)
    old = tuple(normal(shape) for shape in shapes)
    given = made if inputs is None else [np.asarray(value, np.float32) for value in inputs]
    made_delta = made_delta if delta is None else np.asarray(delta, np.float32).reshape(made_delta.shape)
    return Problem(
        layer=named,
        shapes=tuple(shapes),
        count=count,
        inputs=tuple(rounded(value, storage).reshape(like.shape) for value, like in zip(given, made, strict=True)),
        delta=rounded(made_delta, storage),
        old_deltas=tuple(rounded(values, storage) for values in old),
        parameters={name: rounded(value, weights) for name, value in values.items()},
        shared={"step": np.zeros(STEP_WORDS, np.uint32), "rows": np.arange(count, dtype=np.int32), **(shared or {})},
        seed=seed,
        ordinal=ordinal,
        storage=storage,
        weights=weights,
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


class EpilogueValues:
    """Random data for the epilogue of a problem's layer: a residual, and a norm with its ``statistics`` (4, units)."""

    EPSILON = 1e-3

    def __init__(self, problem: Problem) -> None:
        generator = np.random.default_rng([problem.seed, 3])
        shape, roles = problem.output_shape, ("RUNNING_MEAN", "RUNNING_VARIANCE", "SCALE", "SHIFT")
        residual = generator.standard_normal((problem.count, *in_memory(shape)), np.float32)
        self.residual = rounded(residual, problem.storage)
        self.statistics = generator.standard_normal((4, shape.units), np.float32)
        self.statistics[1] = generator.uniform(0.25, 2, shape.units)
        self.statistics = rounded(self.statistics, problem.weights)
        arrays = {
            role: Array("norm", shape.units, offset=place * shape.units, persistent=True, type=problem.weights)
            for place, role in enumerate(roles)
        }
        self.norm = norm(arrays, self.EPSILON)

    def repeated(self, per: int | None) -> FloatArray:
        """Repeat the values of a blob along the axes that it lacks."""
        units = self.residual[:, :1] if per == PER_PLANE_CELL else self.residual
        return units[..., :1, :1][:, :, :1] if per == PER_UNIT else units

    def steps(self, links: Sequence[str], blob: Blob | None) -> tuple[EpilogueOp, ...]:
        """The epilogue of a chain, whose other blob is this one."""
        known = {
            "norm": self.norm,
            "prelu": EpilogueOp("x > 0.0 ? x : SCALE * x", numbers=self.norm.numbers[2:3]),
            **{link: EpilogueOp(expression, blob, per=per) for link, (expression, per) in BLOB_LINKS.items()},
        }
        return tuple(known.get(link) or function_step(link) for link in links)

    def finished(self, values: npt.NDArray[np.float64], links: Sequence[str]) -> npt.NDArray[np.float64]:
        """Apply the chain to values (count, units[, depth], height, width), in float64."""
        for link in links:
            if link == "norm":
                values = self.normalized(values)
            elif link == "prelu":
                slopes = self.statistics[2].astype(np.float64).reshape(-1, *(1,) * (values.ndim - 2))
                values = np.where(values > 0, values, slopes * values)
            elif link in BLOB_LINKS:
                expression, per = BLOB_LINKS[link]
                others = self.repeated(per).astype(np.float64)
                values = values + others if expression == SUM else values * others
            else:
                values = named(link)[0](values)
        return values

    def normalized(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Values (count, units[, depth], height, width) after the norm."""
        mean, variance, scale, shift = self.statistics.astype(np.float64).reshape(4, -1, *(1,) * (values.ndim - 2))
        return np.asarray((values - mean) / np.sqrt(variance + self.EPSILON) * scale + shift)


class _Places:
    """Where the blobs of a problem lie in one arrangement.

    Args:
        problem: the layer and its data.
        arrangement: of its blobs.
        generator: of what is random: halos, pitches, slack, units around.
    """

    def __init__(self, problem: Problem, arrangement: Arrangement, generator: np.random.Generator) -> None:
        self._problem, self._arrangement, self._generator = problem, arrangement, generator

    @property
    def in_place_of(self) -> int | None:
        """The input whose memory is the output's too."""
        if self._arrangement.by_placement and placed(self._problem, self._arrangement.training) in (
            Placement.IN_PLACE,
            Placement.SHARED,
        ):
            return self._arrangement.in_place_of or 0
        return None

    def blobs(self) -> dict[tuple[str, int], Blob]:
        """A blob for every role, several of them in one storage where the arrangement says so."""
        layer, shapes, arrangement = self._problem.layer, self._problem.shapes, self._arrangement
        output = self._problem.output_shape
        planes: dict[tuple[str, int], Shape] = {("output", 0): output, ("output delta", 0): output}
        if arrangement.reads_blob:
            planes["residual", 0] = repeated_shape(output, arrangement.per)
        halos: dict[tuple[str, int], Halo] = {}
        for position, shape in enumerate(shapes):
            planes["input", position] = planes["input delta", position] = shape
            halos["input", position] = layer.input_halo(shapes)
        halos["output delta", 0] = layer.delta_halo(shapes) if shapes else Halo()
        places = {key: (key, 0) for key in planes} | self._joined_places()
        owners = sorted({owner for owner, _ in places.values()})
        wishes: dict[tuple[str, int], Halo] = {}
        for owner in owners:
            halo = Halo()
            for key, (home, _) in places.items():
                halo = halo.merged(halos.get(key, Halo())) if home == owner else halo
            wishes[owner] = halo.merged(self._widened(halo))
        pitch = max(planes[owner].width + max(halo.left, halo.right) for owner, halo in wishes.items())
        pitch += 0 if arrangement.tight else int(self._generator.integers(0, 3))
        layouts = {}
        for owner in owners:
            members = [(first, key) for key, (home, first) in places.items() if home == owner]
            units = max(first + planes[key].units for first, key in members)
            layouts[owner] = self._layout(planes[owner].with_units(units), wishes[owner], pitch)
        blobs = {}
        for key, (owner, first) in places.items():
            planes_in_memory = planes[owner] if self._is_shared(key) else planes[key]
            layout = layouts[owner].slice_units(first, planes_in_memory.units)
            blobs[key] = Blob(f"{owner[0]} {owner[1]}", layout, type=self._problem.storage)
        return blobs

    def _is_shared(self, key: tuple[str, int]) -> bool:
        """Return True if this blob takes over the planes of the blob that it is (Flatten)."""
        layer = self._problem.layer
        forward = placed(self._problem, self._arrangement.training) is Placement.SHARED
        backward = layer.delta_placement() is Placement.SHARED
        return self._arrangement.by_placement and ((key[0] == "output" and forward) or ("delta" in key[0] and backward))

    def _joined_places(self) -> dict[tuple[str, int], tuple[tuple[str, int], int]]:
        """Return for blobs that share a storage the blob that owns it, and the first unit there."""
        layer, shapes, arrangement = self._problem.layer, self._problem.shapes, self._arrangement
        output = self._problem.output_shape
        places: dict[tuple[str, int], tuple[tuple[str, int], int]] = {}
        if arrangement.beside and output.axes == shapes[0].axes:
            places["output", 0] = (("input", 0), shapes[0].units + 1)
            places["input delta", 0] = (("output delta", 0), output.units + 1)
        if not arrangement.by_placement:
            return places
        starts = [sum(shape.units for shape in shapes[:position]) for position in range(len(shapes))]
        placement = placed(self._problem, arrangement.training)
        if placement in (Placement.IN_PLACE, Placement.SHARED):
            places["output", 0] = (("input", arrangement.in_place_of or 0), 0)
        elif placement is Placement.CONCAT:
            places |= {("input", position): (("output", 0), start) for position, start in enumerate(starts)}
        placement = layer.delta_placement()
        if placement is Placement.IN_PLACE:
            places["input delta", 0] = (("output delta", 0), 0)
        elif placement is Placement.SHARED:
            # Flatten: the planes are those of the input's delta. What is repeated has a delta of its own.
            first, *others = (number for number, shape in enumerate(shapes) if shape.elements == output.elements)
            places["output delta", 0] = (("input delta", first), 0)
            places |= {("input delta", position): (("input delta", first), 0) for position in others}
        elif placement is Placement.CONCAT:
            places |= {("input delta", position): (("output delta", 0), start) for position, start in enumerate(starts)}
        return places

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
        return BlobLayout.padded(
            shape,
            halo,
            pitch=pitch if self._arrangement.same_pitch else own_pitch,
            slack=0 if self._arrangement.own_zeros else int(self._generator.choice([0, 1, 5, 16])),
            unit_offset=before,
            unit_memory_count=before + shape.units + after,
            padding=Padding(own_zeros=self._arrangement.own_zeros),
        )


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
        places = _Places(problem, arrangement, self._generator)
        blobs = places.blobs()
        inputs = range(len(problem.shapes))
        self.inputs = tuple(blobs["input", position] for position in inputs)
        self.output = blobs["output", 0]
        self.output_delta = blobs["output delta", 0]
        self.residual = blobs.get(("residual", 0))
        self.epilogue = EpilogueValues(problem)
        wanted = arrangement.wanted if arrangement.wanted is not None else frozenset(inputs)
        self.input_deltas = tuple(
            blobs["input delta", position] if position in wanted and arrangement.training else None
            for position in inputs
        )
        layer = problem.layer
        assert layer.name is not None
        steps = self.epilogue.steps(arrangement.links, self.residual)
        self.site = LayerContext(
            name=layer.name,
            inputs=self.inputs,
            output=self.output,
            array=self._array,
            input_deltas=self.input_deltas,
            output_delta=self.output_delta if arrangement.training else None,
            accumulate=tuple(arrangement.accumulate for _ in inputs),
            training=arrangement.training,
            epilogue=steps,
            fused_activations=steps if layer.recomputes_output and all(step.slope for step in steps) else (),
            in_place_of=places.in_place_of,
            batch_size=problem.count,
            tuning=tuning or device.tuning,
            ordinal=problem.ordinal,
            shapes=problem.shapes,
        )
        self._slices = self._parameter_slices()
        self.calls: dict[str, list[KernelCall]] = {"forward": layer.forward(self.site)}
        if arrangement.training:
            self.calls["backward parameters"] = layer.backward_parameters(self.site)
            self.calls["backward data"] = layer.backward_data(self.site)
        if as_planned:
            self.calls = {phase: for_model(calls, self.site.tuning.model) for phase, calls in self.calls.items()}
        self._buffers = self._make_buffers()
        #: The content of every buffer, as far as the host knows.
        self.mirror: dict[str, FloatArray] = {}

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

    @property
    def gradients(self) -> tuple[ParameterSpec, ...]:
        """The parameters that have a gradient."""
        return tuple(spec for spec in self.problem.specs if spec.trainable)

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
        if self.arrangement.reads_numbers:
            buffers["norm"] = Buffer("norm", self.epilogue.statistics.size, 0, type=self.problem.weights)
        return buffers

    @property
    def capacity(self) -> int:
        """Samples that there is memory for."""
        return max(self.problem.count, self.site.batch_size) + 1

    def _all_blobs(self) -> list[Blob]:
        deltas = [*(blob for blob in self.input_deltas if blob), self.output_delta]
        residual = [self.residual] if self.residual else []
        return [*self.inputs, *residual, self.output, *(deltas if self.arrangement.training else [])]

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
        return self._bytes(storage) // self._buffers[storage].type.itemsize

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
            self._data(blob)[...] = values.reshape(self._data(blob).shape)
        if self.residual:
            self._data(self.residual)[...] = self.epilogue.repeated(self.arrangement.per)
        if self.arrangement.reads_numbers:
            self.mirror["norm"][: self.epilogue.statistics.size] = self.epilogue.statistics.reshape(-1)
        for name, values in problem.parameters.items():
            offset, spec = self._slices[name]
            self.mirror["parameters"][offset : offset + spec.elements] = values.reshape(-1)
        for name, values in problem.shared.items():
            assert values.dtype.itemsize == 4, f"{name} must be of 4-byte numbers"
            self.mirror[name].view(values.dtype)[: values.size] = values.reshape(-1)
        self._upload(self.mirror)

    def load_deltas(self, delta: FloatArray | None = None) -> None:
        """Fills the output's delta, and what the input deltas are added to; poisons what a plan might have reused."""
        layer, changed = self.problem.layer, {self.output_delta.storage}
        kept = list(self.inputs) if layer.backward_reads_inputs else []
        kept += [self.output] if layer.backward_reads_output else []
        for blob in (*self.inputs, self.output):
            if blob not in kept:
                self._data(blob)[...] = poison(1, 0, blob.type)[0]
                changed.add(blob.storage)
        if self.arrangement.accumulate:
            for target, values in zip(self.input_deltas, self.problem.old_deltas, strict=True):
                if target:
                    self._data(target)[...] = values.reshape(self._data(target).shape)
                    changed.add(target.storage)
        values = self.problem.delta if delta is None else delta
        self._data(self.output_delta)[...] = values.reshape(self._data(self.output_delta).shape)
        self._upload(changed)

    def set_input(self, position: int, values: FloatArray) -> None:
        """Replaces the data of one input."""
        blob = self.inputs[position]
        self._data(blob)[...] = values.reshape(self._data(blob).shape)
        self._upload([blob.storage])

    def set_parameter(self, name: str, values: FloatArray) -> None:
        """Replaces a parameter."""
        offset, spec = self._slices[name]
        self.mirror["parameters"][offset : offset + spec.elements] = values.reshape(-1)
        self._upload(["parameters"])

    def _upload(self, names: Any) -> None:
        for name in names:
            self.device.memory.write(self.executor.buffers[name], self.mirror[name])

    def _data(self, blob: Blob) -> FloatArray:
        return blob.layout.data(self.mirror[blob.storage], self.problem.count)

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
                self.executor.buffers[name], self._elements(name), self._buffers[name].type.name
            )
            self._check(phase, name, after)
            self.mirror[name] = after
            require_untouched(self._guarded[name], f"{self.name}: {phase}: buffer '{name}'")

    def _check(self, phase: str, name: str, after: FloatArray) -> None:
        before = self.mirror[name]
        allowed, halo = np.zeros(after.size, dtype=bool), np.zeros(after.size, dtype=bool)
        blobs = (self.output,) if phase == "forward" else self.input_deltas
        # What makes gradients may make deltas in the same launch.
        said = {storage for call in self.calls[phase] for storage in call.storages("write", "update")}
        for blob in blobs:
            if blob and blob.storage == name and (phase != "backward parameters" or name in said):
                blob.layout.data(allowed, self.problem.count)[...] = True
                own = halo_cells(blob, self.problem.count)
                halo[: own.size] |= own
        used = [array for calls in self.calls.values() for call in calls for array in call.arrays.values()]
        is_side_by_side = any(array.side_by_side for array in used if array.storage == name)
        for array in self._arrays.values():
            if array.storage == name:
                samples = self.site.batch_size if is_side_by_side else self.problem.count
                allowed[: array.end(samples)] = True
        state = phase == "forward" and self.arrangement.training
        for offset, spec in self._slices.values():
            if (name == "parameters" and state and not spec.trainable) or (
                name == "gradients" and phase == "backward parameters" and spec.trainable
            ):
                allowed[offset : offset + spec.elements] = True
        where = f"{self.name}: {phase}: buffer '{name}'"
        changed = bits(before) != bits(after)
        rules = {
            "it must be 0 in every halo cell": halo & (after != 0),
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
        return np.array(self._data(blob))

    def finished(self, output: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Apply the arrangement's epilogue to a layer's own output, in float64."""
        return self.epilogue.finished(output, self.arrangement.links)

    def parameter(self, buffer: str, name: str) -> FloatArray:
        """A parameter (of ``parameters``), or its gradient (of ``gradients``), after the last phase."""
        offset, spec = self._slices[name]
        return np.array(self.mirror[buffer][offset : offset + spec.elements].reshape(spec.shape))


def function_step(function: str) -> EpilogueOp:
    """The step that an activation is."""
    step = Activation(function).step
    assert step is not None
    return step


def finishing(function: str) -> str:
    """The macro with which a kernel activates."""
    return "(value, unit) " + c_text(function_step(function).expression, {"x": "(value)"})


def repeated_shape(output: Shape, per: int | None) -> Shape:
    """The shape of a blob that has values for that, beside an output."""
    return (
        Shape.flat(output.units) if per == PER_UNIT else output.with_units(1 if per == PER_PLANE_CELL else output.units)
    )


def placed(problem: Problem, training: bool) -> Placement:
    """Return where the planner puts the output if no other layer interferes: not over what the backward pass reads."""
    layer = problem.layer
    placement = layer.placement(training)
    if placement is Placement.SEPARATE and problem.shapes and layer.in_place(problem.shapes):
        placement = Placement.IN_PLACE
    keeps = training and layer.backward_reads_inputs
    return Placement.SEPARATE if placement is Placement.IN_PLACE and keeps else placement


def require_untouched(guarded: Guarded, where: str) -> None:
    """Raises PromiseError if somebody wrote around a buffer."""
    if guarded.is_touched():
        raise PromiseError(where, "a launch must write nothing before or behind its buffers")


def halo_cells(blob: Blob, count: int) -> npt.NDArray[np.bool_]:
    """Return a mask of the memory of ``count`` samples: True where a cell is halo of one of the blob's own units."""
    layout = blob.layout
    mask = np.zeros((count, layout.unit_memory_count, layout.unit_memory_elements), dtype=bool)
    mask[:, layout.unit_offset : layout.unit_offset + layout.unit_count] = layout.halo_mask()
    return mask.reshape(-1)


def poison(elements: int, number: int = 0, kind: StorageType = FLOAT32) -> FloatArray:
    """``elements`` NaNs with bits of their own, others for each ``number``."""
    return np.full(elements, POISON[kind] + number, f"u{kind.itemsize}").view(kind.name)


def bits(values: npt.NDArray[Any]) -> npt.NDArray[np.unsignedinteger[Any]]:
    """Numbers as they lie in memory."""
    return values.view(f"u{values.itemsize}")


def rounded(values: FloatArray, kind: StorageType) -> FloatArray:
    """Round numbers as memory of a storage type does."""
    return values.astype(kind.name).astype(np.float32)
