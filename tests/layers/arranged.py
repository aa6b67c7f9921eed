"""A layer alone in hostile memory, arranged in more ways than ``blobnet doctor`` has.

To what blobnet.examination.measured does this adds layers in inference, outputs over their inputs, inputs that need no
delta, epilogues, memory of half precision, and data that a test gives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from blobnet.device.device import Device
from blobnet.examination import measured
from blobnet.examination.measured import Any4, Key, Problem, in_memory
from blobnet.examination.reference.activation import named
from blobnet.execution.executor import Executor, build_ahead, programs_of
from blobnet.launch.elementwise import PER_CELL, PER_PLANE_CELL, PER_UNIT, SUM, EpilogueOp, c_text, norm
from blobnet.launch.kernel_call import Array, Blob, Tuning
from blobnet.layers.activation import Activation
from blobnet.layers.base import Layer, LayerContext, ParameterSpec, Placement, Placements
from blobnet.memory.blob import FLOAT32, FloatArray, Shape, StorageType
from blobnet.planning import Buffer

#: Links of an epilogue that read another blob: what they do with it, and what it has values for.
BLOB_LINKS = {
    "residual": (SUM, PER_CELL),
    "gate": ("x * r", PER_CELL),
    "shifts": (SUM, PER_UNIT),
    "gates": ("x * r", PER_UNIT),
    "mask": ("x * r", PER_PLANE_CELL),
}


@dataclass(frozen=True)
class Arrangement(measured.Arrangement):
    """An arrangement of a layer's blobs in memory.

    Attributes:
        in_place_of: the output is this input's blob.
        by_placement: output and input deltas lie where ``placement`` says they may.
        wanted: the inputs that need a delta; None: all.
        training: whether this is a training plan.
        norm, residual, activation: for the epilogue of a layer that fuses them.
        chain: another epilogue: ``norm``, ``prelu`` (a slope for each unit), one of BLOB_LINKS, and activations, in any
            order.
    """

    in_place_of: int | None = None
    by_placement: bool = False
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
    def per(self) -> int | None:
        """The kind of values of the other blob that the epilogue reads (PER_UNIT, say); None without one."""
        return next((BLOB_LINKS[link][1] for link in self.links if link in BLOB_LINKS), None)

    @property
    def reads_numbers(self) -> bool:
        """True if it reads numbers of units."""
        return bool({"norm", "prelu"} & set(self.links))


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
    """A problem with random data, but for the data given.

    What lies in blobs is rounded to ``storage``, parameters to ``weights``.
    """
    problem = measured.make_problem(layer, shapes, count=count, seed=seed)

    def blob(value: npt.ArrayLike, like: FloatArray) -> FloatArray:
        return rounded(np.asarray(value, np.float32), storage).reshape(like.shape)

    given = problem.inputs if inputs is None else inputs
    values = {**problem.parameters, **(parameters or {})}
    return replace(
        problem,
        inputs=tuple(blob(value, like) for value, like in zip(given, problem.inputs, strict=True)),
        delta=blob(problem.delta if delta is None else delta, problem.delta),
        old_deltas=tuple(rounded(old, storage) for old in problem.old_deltas),
        parameters={
            name: rounded(np.asarray(values[name], np.float32).reshape(like.shape), weights)
            for name, like in problem.parameters.items()
        },
        shared={**problem.shared, **(shared or {})},
        ordinal=ordinal,
        storage=storage,
        weights=weights,
    )


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


class BlobPlaces(measured.BlobPlaces):
    """The same, over one another where the layer allows that."""

    def __init__(self, problem: Problem, arrangement: Arrangement, generator: np.random.Generator) -> None:
        super().__init__(problem, arrangement, generator)
        self.arrangement = arrangement

    @property
    def in_place_of(self) -> int | None:
        """The input whose memory is the output's too."""
        placement = placed(self._problem, self.arrangement.training).output
        if self.arrangement.by_placement and placement in (Placement.IN_PLACE, Placement.SHARED):
            return self.arrangement.in_place_of or 0
        return None

    def _planes(self) -> dict[Key, Shape]:
        planes, per = super()._planes(), self.arrangement.per
        return planes if per is None else {**planes, ("residual", 0): repeated_shape(planes["output", 0], per)}

    def _shape(self, key: Key) -> Shape:
        return self._problem.output_shape if key[0] == "residual" else super()._shape(key)

    def _is_shared(self, key: Key) -> bool:
        placements = placed(self._problem, self.arrangement.training)
        forward, backward = placements.output is Placement.SHARED, placements.delta is Placement.SHARED
        return self.arrangement.by_placement and ((key[0] == "output" and forward) or ("delta" in key[0] and backward))

    def _joined(self) -> dict[Key, tuple[Key, int]]:
        shapes, arrangement = self._problem.shapes, self.arrangement
        output, places = self._problem.output_shape, super()._joined()
        if not arrangement.by_placement:
            return places
        planes = self._planes()
        starts = [sum(planes["input", before].units for before in range(place)) for place in range(len(shapes))]
        placements = placed(self._problem, arrangement.training)
        if placements.output in (Placement.IN_PLACE, Placement.SHARED):
            places["output", 0] = (("input", arrangement.in_place_of or 0), 0)
        elif placements.output is Placement.CONCAT:
            places |= {("input", position): (("output", 0), start) for position, start in enumerate(starts)}
        if placements.delta is Placement.IN_PLACE:
            places["input delta", 0] = (("output delta", 0), 0)
        elif placements.delta is Placement.SHARED:
            # Flatten: the planes are those of the input's delta. What is repeated has a delta of its own.
            first, *others = (number for number, shape in enumerate(shapes) if shape.elements == output.elements)
            places["output delta", 0] = (("input delta", first), 0)
            places |= {("input delta", position): (("input delta", first), 0) for position in others}
        elif placements.delta is Placement.CONCAT:
            places |= {("input delta", position): (("output delta", 0), start) for position, start in enumerate(starts)}
        return places


class Bench(measured.Bench):
    """A layer on a device, its blobs arranged in one way."""

    def __init__(
        self,
        device: Device,
        problem: Problem,
        arrangement: Arrangement,
        tuning: Tuning | None = None,
        *,
        as_planned: bool = False,
    ) -> None:
        self.full = arrangement
        self.epilogue = EpilogueValues(problem)
        self.residual: Blob | None = None
        super().__init__(device, problem, arrangement, tuning, as_planned=as_planned)

    def _places(self) -> BlobPlaces:
        return BlobPlaces(self.problem, self.full, self._generator)

    def _site(self, blobs: Mapping[Key, Blob], tuning: Tuning) -> LayerContext:
        arrangement, layer = self.full, self.problem.layer
        self.residual = blobs.get(("residual", 0))
        site = super()._site(blobs, tuning)
        steps = self.epilogue.steps(arrangement.links, self.residual)
        return replace(
            site,
            input_deltas=tuple(
                blob
                if arrangement.training and (arrangement.wanted is None or position in arrangement.wanted)
                else None
                for position, blob in enumerate(site.input_deltas)
            ),
            output_delta=site.output_delta if arrangement.training else None,
            training=arrangement.training,
            epilogue=steps,
            fused_activations=steps if layer.recomputes_output and all(step.slope for step in steps) else (),
            in_place_of=self._places().in_place_of,
        )

    @cached_property
    def executor(self) -> Executor:
        build_together([self])
        return super().executor

    @property
    def gradients(self) -> tuple[ParameterSpec, ...]:
        """The parameters that have a gradient."""
        return tuple(spec for spec in self.problem.specs if spec.trainable)

    def _make_buffers(self) -> dict[str, Buffer]:
        buffers = super()._make_buffers()
        if self.full.reads_numbers:
            buffers["norm"] = Buffer("norm", self.epilogue.statistics.size, 0, type=self.problem.weights)
        return buffers

    def _all_blobs(self) -> list[Blob]:
        return [*super()._all_blobs(), *([self.residual] if self.residual else [])]

    def load(self) -> None:
        super().load()
        if self.residual:
            self.residual.write(self.mirror[self.residual.storage], self.epilogue.repeated(self.full.per))
            self._upload([self.residual.storage])
        if self.full.reads_numbers:
            self.mirror["norm"][: self.epilogue.statistics.size] = self.epilogue.statistics.reshape(-1)
            self._upload(["norm"])

    def set_input(self, position: int, values: FloatArray) -> None:
        """Replaces the data of one input."""
        blob = self.inputs[position]
        blob.write(self.mirror[blob.storage], values)
        self._upload([blob.storage])

    def set_parameter(self, name: str, values: FloatArray) -> None:
        """Replaces a parameter."""
        offset, spec = self._slices[name]
        self.mirror["parameters"][offset : offset + spec.elements] = values.reshape(-1)
        self._upload(["parameters"])

    def finished(self, output: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Apply the arrangement's epilogue to a layer's own output, in float64."""
        return self.epilogue.finished(output, self.full.links)


def build_together(benches: Sequence[Bench]) -> None:
    """Build what all phases of some benches of one device launch: a driver builds eight sources in the time of five."""
    calls = (call for bench in benches for phase in bench.calls.values() for call in phase)
    for bench in benches[:1]:
        build_ahead(bench.device, programs_of(calls))


def function_step(function: str) -> EpilogueOp:
    """The step that an activation is."""
    step = Activation(function).nonlinearity.step
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


def placed(problem: Problem, training: bool) -> Placements:
    """Return where the planner puts blobs if no other layer interferes: not over what the backward pass reads."""
    placements = problem.layer.placement(problem.shapes, training)
    overwrites = placements.output is Placement.IN_PLACE and training and problem.layer.kept.inputs
    return replace(placements, output=Placement.SEPARATE) if overwrites else placements


def rounded(values: FloatArray, kind: StorageType) -> FloatArray:
    """Round numbers as memory of a storage type does."""
    return kind.decode(kind.encode(values))
