"""Statistics of a model, layer by layer: of its weights, and for a batch of values and gradients too."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from blobnet.device.device import Device
from blobnet.errors import OptionError, PlanError, first_few
from blobnet.execution.executor import Executor, plan_for
from blobnet.execution.inference import LabelledData
from blobnet.execution.loader import Loader
from blobnet.inspection.network_inputs import first_numbers
from blobnet.launch.kernel_call import Batch
from blobnet.memory.blob import FloatArray, Shape
from blobnet.model import AnyLoss, Model, check_model
from blobnet.network.graph import Graph, Vertex
from blobnet.network.parameters import DeviceParameters
from blobnet.support.checks import check_count
from blobnet.support.tables import Table
from blobnet.training.arguments import losses_for

#: The percentages of the values that a spread's quantiles are above.
QUANTILES = (5, 25, 50, 75, 95)
#: Samples of the batch, where nobody says; fewer where there is no room.
DEFAULT_COUNT = 64
#: Values that quantiles are taken of, evenly out of all.
_MAX_VALUES = 1 << 20
#: Units that are named.
_MAX_NAMED = 20


@dataclass(frozen=True)
class Spread:
    """Statistics of those values that are finite.

    Attributes:
        least: the smallest.
        most: the largest.
        mean: their mean.
        deviation: their standard deviation.
        quantiles: at QUANTILES, of a million of them if there are more.
        magnitudes: the same of the absolute values of those that are not 0; empty if there are none.
        zeros: the part that is exactly 0.
        broken: how many are NaN or infinite.
    """

    least: float
    most: float
    mean: float
    deviation: float
    quantiles: tuple[float, ...]
    magnitudes: tuple[float, ...]
    zeros: float
    broken: int

    @classmethod
    def of(cls, values: npt.NDArray[Any]) -> Spread:
        """The spread of an array."""
        flat = values.reshape(-1)
        finite = flat[np.isfinite(flat)]
        broken = flat.size - finite.size
        if not finite.size:
            return cls(*(math.nan,) * 4, (), (), 0.0, broken)
        some = finite[:: -(-finite.size // _MAX_VALUES)].astype(np.float64)
        sizes = np.abs(some[some != 0])
        return cls(
            float(finite.min()),
            float(finite.max()),
            float(finite.mean(dtype=np.float64)),
            float(finite.std(dtype=np.float64)),
            tuple(float(value) for value in np.percentile(some, QUANTILES)),
            tuple(float(value) for value in np.percentile(sizes, QUANTILES)) if sizes.size else (),
            float((finite == 0).mean()),
            broken,
        )


@dataclass(frozen=True)
class LayerSpread:
    """A layer with those after it that only change its values one by one (norms, activations, dropout, Flatten).

    Attributes:
        name: of the layer.
        last: the name of the last one of them.
        kinds: what they are, the layer first.
        inputs: which of the model's LayerSpreads it reads.
        shape: of a sample of the output of the last one.
        parameters: how many values the parameters of all have.
        parameter: the largest parameter that can be trained; empty if there is none.
        weights: its spread.
        gradients: that of its gradient; None without data.
        values: that of the output of the last one; None without data.
        dead: units that have one value for all samples and positions, after the last one of them with parameters or an
            activation (dropout comes later).
        judged: the name of that one; empty if there is none.
        units: how many it has.
        unconnected: units of the parameter whose weights are all 0.
    """

    name: str
    last: str
    kinds: tuple[str, ...]
    inputs: tuple[int, ...]
    shape: Shape
    parameters: int
    parameter: str = ""
    weights: Spread | None = None
    gradients: Spread | None = None
    values: Spread | None = None
    dead: tuple[int, ...] = ()
    judged: str = ""
    units: int = 0
    unconnected: tuple[int, ...] = ()

    @property
    def title(self) -> str:
        """Its name, and the remarks after it."""
        return " + ".join([self.name, *self.kinds[1:]])


@dataclass(frozen=True, eq=False)
class ModelSpreads:
    """All layers of a model; as text a table, and what is wrong.

    Attributes:
        layers: in the order of the graph.
        samples: how many were run; 0 without data.
        filters: (filters, units, height, width), the weights of the first layer that has some, as they lie on its
            input; None where they do not lie on pictures.
        filters_of: the name of that layer.
    """

    layers: tuple[LayerSpread, ...]
    samples: int
    filters: FloatArray | None
    filters_of: str

    @property
    def table(self) -> Table:
        """A row a layer: what deviates how far, how much is 0, and how many units are dead."""
        header, sides = ["layer", "output shape", "parameters", "weights"], "<<>>"
        rows = [
            [
                layer.title,
                str(layer.shape),
                f"{layer.parameters:,}" if layer.parameters else "-",
                _deviation(layer.weights),
                _deviation(layer.gradients),
                _deviation(layer.values),
                f"{layer.values.zeros:.0%}" if layer.values else "",
                str(len(layer.dead)) if layer.dead else "",
            ]
            for layer in self.layers
        ]
        if self.samples:
            return Table([*header, "gradients", "values", "zero", "dead"], rows, f"{sides}>>>>")
        return Table(header, [row[:4] for row in rows], sides)

    @property
    def faults(self) -> list[str]:
        """A line for each layer with dead units, units without weights, or values that are not finite."""
        lines = []
        for layer in self.layers:
            if layer.dead:
                what = f"{len(layer.dead)} of {layer.units} units are dead, the same for all {self.samples} samples"
                lines.append(f"{layer.judged}: {what}: {first_few(layer.dead, _MAX_NAMED)}")
            if layer.unconnected:
                what = f"all weights of {len(layer.unconnected)} units are 0"
                lines.append(f"{layer.parameter}: {what}: {first_few(layer.unconnected, _MAX_NAMED)}")
            spreads = {
                layer.parameter: layer.weights,
                f"{layer.last}, values": layer.values,
                f"{layer.parameter}, gradient": layer.gradients,
            }
            for name, spread in spreads.items():
                if spread is not None and spread.broken:
                    lines.append(f"{name}: {spread.broken:,} numbers are NaN or infinite")
        return lines

    def __str__(self) -> str:
        notes = "deviations of weights" + (", gradients and values" if self.samples else "")
        return "\n".join([str(self.table), notes, *self.faults])

    def _repr_html_(self) -> str:
        return self.table._repr_html_()


def layer_spreads(  # noqa: PLR0913
    model: Model,
    x: Any = None,
    y: Any = None,
    *,
    loss: AnyLoss = None,
    count: int | None = None,
    seed: int = 0,
    device: Device | str | None = None,
) -> ModelSpreads:
    """Return the statistics of a model's weights; with samples, also of values and gradients of a step on them.

    The batch is the first one of a training: the layers run as in training, with its statistics and with dropout.

    Args:
        model: what to look into.
        x: samples, as for Model.fit; no iterable.
        y: their labels.
        loss: whose gradients; that of the training if None.
        count: samples of the batch; DEFAULT_COUNT, or as many of these as there is room for, if None.
        seed: of the samples' order and of dropout.
        device: a device or its name; the one used last if None.

    Raises:
        OptionError: it is no Model.
        DataError, OptionError, ShapeError: samples or labels that cannot be used.
        PlanError: the batch does not fit the device.
    """
    check_model(model, "layer_spreads")
    graph, weights = model.graph, model.weights
    members = _members(graph)
    layers = [_layer(graph, vertices, members, weights) for vertices in members]
    filters_of, filters = _filters(graph, weights)
    if x is None:
        return ModelSpreads(tuple(layers), 0, filters, filters_of)
    if count is not None:
        count = check_count("layer_spreads", "count", count)
    data = LabelledData(graph, losses_for(graph, loss, model.loss), x, y)
    if data.labels is None:
        raise OptionError("layer_spreads", "samples must have numbers, which those of a stream have not", y=None)
    opened = model.device_for(device)
    size = min(count or DEFAULT_COUNT, data.count or 1)
    while True:
        try:
            batch = _Batch(opened, graph, weights, data, size, seed)
            return ModelSpreads(tuple(_measured(layers, batch)), size, filters, filters_of)
        except PlanError:
            if count is not None or size == 1:
                raise
            size //= 2


# -- without data ------------------------------------------------------------------------------------------------------


def _members(graph: Graph) -> list[list[Vertex]]:
    """The vertices of each LayerSpread."""
    members: list[list[Vertex]] = []
    home: dict[int, list[Vertex]] = {}
    for vertex in graph.vertices:
        follows = len(vertex.inputs) == 1 and not graph.vertices[vertex.inputs[0]].layer.takes_samples
        if follows and len(graph.readers[vertex.inputs[0]]) == 1 and _changes_single_values(graph, vertex):
            home[vertex.index] = home[vertex.inputs[0]]
            home[vertex.index].append(vertex)
        else:
            members.append([vertex])
            home[vertex.index] = members[-1]
    return members


def _changes_single_values(graph: Graph, vertex: Vertex) -> bool:
    """Return True if a vertex is a norm or the like: as many values as before, and few numbers for each unit."""
    (before,) = graph.input_shapes(vertex)
    is_slight = all(len(spec.shape) <= 1 for spec in graph.parameters(vertex))
    return vertex.layer.elementwise or (is_slight and bool(graph.parameters(vertex)) and vertex.shape == before)


def _layer(
    graph: Graph, vertices: list[Vertex], members: list[list[Vertex]], weights: Mapping[str, FloatArray]
) -> LayerSpread:
    place = {vertex.index: number for number, some in enumerate(members) for vertex in some}
    specs = {vertex.parameter(spec.name): spec for vertex in vertices for spec in graph.parameters(vertex)}
    trainable = [name for name, spec in specs.items() if spec.trainable]
    parameter = max(trainable, key=lambda name: specs[name].elements, default="")
    functions = [vertex.layer.nonlinearity for vertex in vertices]
    kinds = tuple(item.text if item else vertex.layer.kind for item, vertex in zip(functions, vertices, strict=True))
    own = weights[parameter] if parameter else None
    telling = [
        vertex
        for function, vertex in zip(functions, vertices, strict=True)
        if (function and function.step) or graph.parameters(vertex)
    ]
    rows: Iterable[FloatArray] = () if own is None or own.ndim < 2 else own
    unconnected = tuple(unit for unit, row in enumerate(rows) if not row.any())
    return LayerSpread(
        vertices[0].name,
        vertices[-1].name,
        kinds,
        tuple(place[source] for source in vertices[0].inputs),
        vertices[-1].shape,
        sum(spec.elements for spec in specs.values()),
        parameter,
        None if own is None else Spread.of(own),
        judged=telling[-1].name if telling and vertices[0].inputs else "",
        units=telling[-1].shape.units if telling else 0,
        unconnected=unconnected,
    )


def _filters(graph: Graph, weights: Mapping[str, FloatArray]) -> tuple[str, FloatArray | None]:
    """The first layer with weights, and these as pictures."""
    for vertex in graph.vertices:
        for spec in graph.parameters(vertex):
            if len(spec.shape) < 2:
                continue
            values = weights[vertex.parameter(spec.name)]
            if values.ndim == 4:
                return vertex.name, values
            if values.ndim == 3:  # Filters of 1-D data: units below each other.
                return vertex.name, values[:, None]
            whole = [item.shape for item in graph.inputs.values() if item.shape.rank == 2]
            shape = next((item for item in whole if values.shape[1] == item.elements), None)
            return vertex.name, values.reshape(-1, *shape.dimensions) if shape else None
    return "", None


# -- with data ---------------------------------------------------------------------------------------------------------


def _measured(layers: Sequence[LayerSpread], batch: _Batch) -> Iterator[LayerSpread]:
    """Layers with what is to be seen of their values and gradients."""
    spreads: dict[str, Spread] = {}
    dead: dict[str, tuple[int, ...]] = {}
    ends, judged = ({getattr(layer, name) for layer in layers} for name in ("last", "judged"))
    for name, values in batch.values(ends | judged):
        if name in ends:
            spreads[name] = Spread.of(values)
        if name in judged:
            dead[name] = _constant_units(values)
    gradients = {name: Spread.of(values) for name, values in batch.gradients().items()}
    for layer in layers:
        own = dead.get(layer.judged, ())
        yield replace(layer, values=spreads[layer.last], dead=own, gradients=gradients.get(layer.parameter))


class _Batch:
    """One batch on its way through a training plan in which every layer keeps its values."""

    def __init__(
        self,
        device: Device,
        graph: Graph,
        weights: Mapping[str, FloatArray],
        data: LabelledData,
        size: int,
        seed: int,
    ) -> None:
        # NOTE: where blobs do not share memory, no launch does another layer's work on the way.
        losses, types = tuple(head.loss for head in data.heads), data.reader.sample_types
        settings: dict[str, Any] = {"loss": losses, "training": True, "share": False, "sample_type": types}
        self._plan = plan_for(device, graph, size, **settings)
        self._parameters = DeviceParameters(device, graph, self._plan.request.parameters)
        self._parameters.write(weights)
        self._executor = Executor(device, self._plan, {"parameters": self._parameters.buffer})
        numbers = first_numbers(data.count or 0, seed)[:size]
        Loader(self._executor).load(data.reader, numbers)
        words = np.array([seed & 0xFFFFFFFF, seed >> 32, 0, 0], np.uint32)
        self._executor.feed("step", words)
        assert data.labels is not None
        own = zip(losses, data.labels, strict=True)
        self._batch = Batch(size, divisor=tuple(loss.weight(np.asarray(labels[numbers])) for loss, labels in own))

    def values(self, names: Container[str]) -> Iterator[tuple[str, FloatArray]]:
        """Runs forward; yields the outputs (samples, units, height, width) of these layers, while they are there."""
        executor, count = self._executor, self._batch.count
        executor.prepare(self._parameters.version)
        last = {call.vertex: number for number, call in enumerate(self._plan.phase("forward"))}
        launches = executor.bind(self._plan.phase("forward"), count)
        done = 0
        for vertex in self._plan.request.graph.vertices:  # Calls are in their order.
            end = last.get(vertex.index, -1) + 1
            executor.launch(launches[done:end], count)
            done = max(done, end)
            if vertex.name in names:
                yield vertex.name, executor.read_blob(self._plan.outputs[vertex.name], count)

    def gradients(self) -> dict[str, FloatArray]:
        """Runs loss and backward."""
        for head in self._plan.request.heads:
            self._executor.run(head.phase, self._batch.of_output(head.number))
        self._executor.run("backward", self._batch)
        table = self._plan.request.parameters
        device = self._executor.device
        flat = device.memory.read(self._executor.buffers["gradients"], max(1, table.trainable_elements))
        return table.unpack_gradients(flat)


def _constant_units(values: FloatArray) -> tuple[int, ...]:
    """The units of (N, units, height, width) that have one value."""
    if values.size == values.shape[1]:
        return ()
    units = np.moveaxis(values, 1, 0).reshape(values.shape[1], -1)
    return tuple(unit for unit, own in enumerate(units) if (own == own[0]).all())


def _deviation(spread: Spread | None) -> str:
    return f"{spread.deviation:.2g}" if spread else ""
