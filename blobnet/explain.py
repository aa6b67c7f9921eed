"""The parts of a picture that a model's answer comes from: Grad-CAM and saliency, and pictures of them.

>>> import blobnet as bn
>>> maps = bn.explain.grad_cam(model, pictures)
>>> drawn = bn.explain.overlay(pictures, maps)

Both are gradients of the score of a class, of the network as it predicts: batch norms use their running statistics, and
nothing is dropped. The score is the output of the class (a logit where the loss takes logits). Where the network gives
one for each position, it is the sum over the positions that get this class (over all of them, if none does), and for
boxes the highest cell of the class's heat map. Of numbers (regression) it is one of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from blobnet.data.samples import sources_for
from blobnet.datasets.source import Rows, Source, runs
from blobnet.device.device import Device
from blobnet.errors import OptionError, PlanError, ShapeError, near_matches
from blobnet.execution.executor import Executor, plan_for
from blobnet.execution.loader import IndexedReader, Loader
from blobnet.losses import Loss, MeanSquaredError
from blobnet.losses.center_net import BOX_UNITS
from blobnet.memory.blob import FloatArray, Shape
from blobnet.model import Model, check_model
from blobnet.network.ends import to_dict
from blobnet.network.graph import Vertex
from blobnet.network.parameters import DeviceParameters, parameter_table
from blobnet.support.checks import check_count

__all__ = ["grad_cam", "overlay", "saliency"]

#: A class for all samples or one for each, by numbers or names; None: the one that the model says.
Classes = int | str | Sequence[int | str] | npt.NDArray[np.integer[Any]] | None
#: Samples at once, where nobody says; fewer where there is no room.
BATCH_SIZE = 16
#: How much of a picture shows no more below the largest value of a map.
_OPACITY = 0.75


def grad_cam(  # noqa: PLR0913
    model: Model,
    x: Any,
    classes: Classes = None,
    layer: str | None = None,
    *,
    output: str | None = None,
    batch_size: int = BATCH_SIZE,
    device: Device | str | None = None,
) -> FloatArray:
    """Return where the model finds a class: the values of a layer, summed by how much the score depends on each unit.

    The weight of a unit is the mean of dscore/dvalue over its positions, and what is negative in the sum becomes 0
    (Selvaraju et al., *Grad-CAM*, 2017).

    Args:
        model: whose answers.
        x: samples, as for Model.predict; no iterable.
        classes: a class, or one for each sample, by number or by name; None: the class that the model says.
        layer: whose values; ``print(model)`` lists the names. None: of the layers with more than one position the last
            of those with the fewest, in most networks the last one before the positions are averaged.
        output: the name of the output, where there are several.
        batch_size: samples at once; fewer are taken where they do not fit the device.
        device: a device or its name; the one used last if None.

    Returns:
        (N, [[depth,] height,] width) of the layer, at least 0; in the scale of the score.

    Raises:
        OptionError: there is no such class, output or layer, or the layer has no positions.
        DataError, ShapeError: samples that cannot be used.
        PlanError: not even one sample fits the device.
    """
    wanted = _Wanted.of(model, "grad_cam", classes, output)
    vertex = _layer(wanted, layer)
    found = wanted.explained(x, [vertex], batch_size, device)
    return np.concatenate([_weighted(values, delta) for _, _, ((values, delta),) in found])


def saliency(
    model: Model,
    x: Any,
    classes: Classes = None,
    *,
    output: str | None = None,
    batch_size: int = BATCH_SIZE,
    device: Device | str | None = None,
) -> Any:
    """Return the gradient of the score of a class by the samples: what a small change of each value would do.

    ``abs(gradient).max(axis=1)`` is the map of Simonyan et al., *Deep Inside Convolutional Networks*, 2014; it is what
    :func:`overlay` takes.

    Args:
        model: whose answers.
        x: samples, as for Model.predict; no iterable.
        classes: a class, or one for each sample, by number or by name; None: the class that the model says.
        output: the name of the output, where there are several.
        batch_size: samples at once; fewer are taken where they do not fit the device.
        device: a device or its name; the one used last if None.

    Returns:
        dscore/dx, of the shape of ``x``; of several inputs by their names.

    Raises:
        OptionError: there is no such class or output.
        DataError, ShapeError: samples that cannot be used.
        PlanError: not even one sample fits the device.
    """
    wanted = _Wanted.of(model, "saliency", classes, output)
    inputs = list(model.graph.inputs.values())
    parts = [
        [wanted.by_sample(vertex, delta) for vertex, (_, delta) in zip(inputs, found, strict=True)]
        for _, _, found in wanted.explained(x, inputs, batch_size, device)
    ]
    return to_dict(model.graph.inputs, [np.concatenate(own) for own in zip(*parts, strict=True)])


@dataclass(frozen=True)
class Explanation:
    """What :func:`explain_pictures` finds of pictures.

    Attributes:
        maps: (N, height, width), of :func:`grad_cam`.
        saliency: (N, height, width), the largest size over the units of :func:`saliency`.
    """

    maps: FloatArray
    saliency: FloatArray


def check_explains(model: Model, subject: str, classes: Classes = None, output: str | None = None) -> None:
    """Raises OptionError, which begins with ``subject``, unless :func:`explain_pictures` takes these."""
    entries = model.graph.inputs
    if len(entries) > 1 or model.graph.input.shape.rank != 2:
        shapes = ", ".join(f"{name} {vertex.shape}" for name, vertex in entries.items())
        raise OptionError(subject, "the model must take pictures, and nothing else", inputs=shapes)
    _layer(_Wanted.of(model, subject, classes, output), None)


def explain_pictures(
    model: Model, x: Any, classes: Classes = None, *, output: str | None = None, device: Device | str | None = None
) -> Explanation:
    """Return both kinds of maps for pictures, which are computed together; arguments are as for :func:`grad_cam`.

    Raises:
        OptionError: see :func:`check_explains`.
    """
    check_explains(model, "explain", classes, output)
    wanted = _Wanted.of(model, "explain", classes, output)
    vertex, layer = model.graph.input, _layer(wanted, None)
    maps, gradients = [], []
    for _, _, (own, (_, delta)) in wanted.explained(x, [layer, vertex], BATCH_SIZE, device):
        maps.append(_weighted(*own))
        gradients.append(np.abs(wanted.by_sample(vertex, delta)).max(axis=1))
    return Explanation(np.concatenate(maps), np.concatenate(gradients))


def overlay(pictures: npt.ArrayLike, maps: npt.ArrayLike) -> npt.NDArray[np.uint8]:
    """Return pictures with maps over them: red where a map has half of its largest value, yellow where it has all.

    Args:
        pictures: (N, units, height, width), whose least value of all is drawn black and whose largest white. Three
            units are red, green and blue; of others the mean is gray.
        maps: (N, height, width) of any size, which is scaled to that of the pictures, bilinearly, and each to its own
            largest value; of (N, units, height, width), as of :func:`saliency`, the largest size over the units.

    Returns:
        (N, height, width, 3).

    Raises:
        ShapeError: the shapes are not such.
    """
    values, heat = np.asarray(pictures), np.asarray(maps, np.float32)
    heat = np.abs(heat).max(axis=1) if heat.ndim == 4 else heat
    if values.ndim != 4 or heat.ndim != 3 or len(values) != len(heat):
        rule = "it takes pictures (N, units, height, width), and a map (height, width) for each"
        raise ShapeError("overlay", rule, pictures=values.shape, maps=np.shape(maps))
    planes = values.astype(np.float32)
    low, high = float(planes.min()), float(planes.max())
    planes = (planes - low) / ((high - low) or 1.0)
    planes = planes if planes.shape[1] == 3 else planes.mean(axis=1, keepdims=True)
    return blended(np.moveaxis(np.broadcast_to(planes, (len(planes), 3, *planes.shape[2:])), 1, -1), heat)


def blended(pictures: FloatArray, maps: FloatArray) -> npt.NDArray[np.uint8]:
    """Return pictures (N, height, width, 3), from 0 to 1, with maps over them, as :func:`overlay` does."""
    heat = resized(maps, pictures.shape[1:3])
    heat = heat / np.maximum(heat.max(axis=(1, 2), keepdims=True), np.finfo(np.float32).tiny)
    colours = np.stack([np.ones_like(heat), heat, np.zeros_like(heat)], axis=-1)
    covered = _OPACITY * heat[..., None]
    drawn: npt.NDArray[np.uint8] = np.rint(255 * ((1 - covered) * pictures + covered * colours)).astype(np.uint8)
    return drawn


def resized(maps: FloatArray, size: tuple[int, int]) -> FloatArray:
    """Return maps (N, height, width) in another size, bilinearly, each value in the middle of its cell."""
    down, across = (_interpolation(*sizes) for sizes in zip(maps.shape[1:], size, strict=True))
    found: FloatArray = (down @ maps @ across.T).astype(np.float32)
    return found


def _interpolation(own: int, wanted: int) -> npt.NDArray[np.float64]:
    """(wanted, own): by how much each of ``own`` cells is part of each of ``wanted``."""
    places = np.clip((np.arange(wanted) + 0.5) * own / wanted - 0.5, 0, own - 1)
    parts: npt.NDArray[np.float64] = np.maximum(0, 1 - np.abs(places[:, None] - np.arange(own)))
    return parts


# -- inside ------------------------------------------------------------------------------------------------------------


#: The values of a layer, and dscore/dvalue: (N, units[[[, depth], height], width]).
_Pair = tuple[FloatArray, FloatArray]


@dataclass(frozen=True, eq=False)
class _Wanted:
    """The score of which gradients are wanted.

    Attributes:
        model: of whose output.
        subject: what errors begin with.
        head: the output.
        units: how many of its units are classes.
        takes_boxes: whether it is made for boxes.
        classes: for each sample, or one for all; None: what the model says.
    """

    model: Model
    subject: str
    head: Vertex
    units: int
    takes_boxes: bool
    classes: npt.NDArray[np.int64] | None

    @classmethod
    def of(cls, model: Model, subject: str, classes: Classes, output: str | None) -> _Wanted:
        """Check what was asked for."""
        check_model(model, subject)
        outputs = model.graph.outputs
        if (output is None and len(outputs) > 1) or (output is not None and output not in outputs):
            rule = "output must name one of the model's outputs"
            raise OptionError(subject, rule, output=output, outputs=", ".join(outputs))
        name = output if output is not None else next(iter(outputs))
        loss = model.loss.get(name) if isinstance(model.loss, dict) else model.loss
        takes_boxes = loss is not None and loss.takes_boxes
        units = outputs[name].shape.units - (BOX_UNITS if takes_boxes else 0)
        if classes is None and units > 1 and gives_numbers(loss, outputs[name].shape):
            rule = "of several numbers the model says none: classes must be the number of a unit"
            raise OptionError(subject, rule, output=outputs[name].shape, loss=loss)
        numbers = None if classes is None else _numbers(classes, model.class_names, units, subject)
        return cls(model, subject, outputs[name], units, takes_boxes, numbers)

    def explained(
        self, x: Any, vertices: Sequence[Vertex], batch_size: int, device: Device | str | None
    ) -> Iterator[tuple[Rows, FloatArray, list[_Pair]]]:
        """Yield the numbers of some samples, the outputs for them, and for each vertex its values with their deltas."""
        batch_size = check_count(self.subject, "batch_size", batch_size)
        sources = sources_for(self.model.graph, x, "x")
        count = len(sources[0])
        if self.classes is not None and self.classes.ndim and len(self.classes) != count:
            rule = "there must be one class for all samples, or one for each"
            raise OptionError(self.subject, rule, classes=len(self.classes), samples=count)
        opened, size = self.model.device_for(device), min(batch_size, count)
        while True:
            try:
                passes = _Passes(self.model, opened, size, sources)
                break
            except PlanError:
                if size == 1:
                    raise
                size //= 2
        for rows in runs(count, size):
            outputs = passes.forward(rows, self.head)
            values = [passes.values(vertex, len(rows)) for vertex in vertices]
            passes.backward(self.head, self._delta(outputs, rows))
            deltas = [passes.deltas(vertex, len(rows)) for vertex in vertices]
            yield rows, outputs, list(zip(values, deltas, strict=True))

    def by_sample(self, vertex: Vertex, delta: FloatArray) -> FloatArray:
        """Return dscore/dx from the delta of an input's normalised samples."""
        deviation = self.model._weights[vertex.parameter("deviation")]
        found: FloatArray = delta / deviation.reshape(-1, *(1,) * vertex.shape.rank)
        return found

    def _delta(self, outputs: FloatArray, rows: Rows) -> FloatArray:
        """Return dscore/doutput: 1 where the score is a sum over."""
        count, delta = len(outputs), np.zeros_like(outputs)
        flat, marks = (own.reshape(count, outputs.shape[1], -1)[:, : self.units] for own in (outputs, delta))
        said = flat.max(axis=2).argmax(axis=1) if self.takes_boxes else _most_frequent(flat.argmax(axis=1))
        if self.classes is not None:
            said = np.broadcast_to(self.classes if not self.classes.ndim else self.classes[rows], count)
        each = np.arange(count)
        if self.takes_boxes:
            marks[each, said, flat[each, said].argmax(axis=1)] = 1
        else:
            own = flat.argmax(axis=1) == said[:, None]
            marks[each, said] = np.where(own.any(axis=1, keepdims=True), own, True)
        return delta


def gives_numbers(loss: Loss | None, output: Shape) -> bool:
    """Return True if an output is made for numbers, and not for classes, labels or boxes."""
    if loss is None or loss.takes_boxes:
        return False
    return loss.scores(np.zeros((1, *output.dimensions), np.float32)) is None


def _most_frequent(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """(N,), the number that each row of (N, positions) has most often."""
    return np.array([np.bincount(row).argmax() for row in numbers])


def _numbers(classes: Any, names: Sequence[str], units: int, subject: str) -> npt.NDArray[np.int64]:
    """The numbers of classes that are given by numbers or names."""
    is_one = isinstance(classes, str) or not np.ndim(classes)
    found = []
    for item in [classes] if is_one else classes:
        if isinstance(item, str):
            if item not in names:
                rule, hint = "every name must be that of a class of the model", near_matches(item, list(names))
                raise OptionError(subject, rule, name=item, hint=hint)
            found.append(names.index(item))
        elif not isinstance(item, int | np.integer) or isinstance(item, bool) or not 0 <= item < units:
            rule = f"a class must be the number of a unit, from 0 to {units - 1}, or a name"
            raise OptionError(subject, rule, received=item)
        else:
            found.append(int(item))
    return np.array(found[0] if is_one else found, np.int64)


def _layer(wanted: _Wanted, name: str | None) -> Vertex:
    """The layer whose values are summed."""
    graph = wanted.model.graph
    before = graph.up_to(wanted.head.name, wanted.subject)
    if name is not None:
        vertex = graph.vertex(name, wanted.subject)
        if vertex not in before or not vertex.shape.rank:
            rule = "the layer must have positions, and the output must depend on it"
            raise OptionError(wanted.subject, rule, layer=name, shape=vertex.shape, output=wanted.head.name)
        return vertex
    rank = max(vertex.shape.rank for vertex in graph.inputs.values())
    found = [
        vertex
        for vertex in before
        if not vertex.layer.takes_samples and vertex.shape.rank == rank and vertex.shape.positions > 1
    ]
    if not rank or not found:
        rule = "a layer of the model must have positions, as its samples have"
        raise OptionError(wanted.subject, rule, hint="bn.explain.saliency needs none.")
    return min(reversed(found), key=lambda vertex: vertex.shape.positions)


def _weighted(values: FloatArray, delta: FloatArray) -> FloatArray:
    """Return the sum of a layer's units, each times the mean of its deltas, where it is positive."""
    weights = delta.mean(axis=tuple(range(2, delta.ndim)), keepdims=True, dtype=np.float64)
    found: FloatArray = np.maximum((weights * values).sum(axis=1), 0).astype(np.float32)
    return found


class _Passes:
    """A plan that trains nothing and keeps every value and delta; it runs batch by batch.

    Args:
        model: the network and its weights.
        device: where it runs.
        size: the most samples of a batch.
        sources: the samples of each input.
    """

    def __init__(self, model: Model, device: Device, size: int, sources: Sequence[Source]) -> None:
        graph = model.graph
        self._reader = IndexedReader(sources)
        # NOTE: where blobs share no memory, each layer's values stay as it left them.
        kept: dict[str, Any] = {"training": True, "input_delta": True, "share": False, "reuse": False}
        # The delta of the output comes from outside; any loss makes room for it.
        losses = tuple(MeanSquaredError() for _ in graph.exits)
        table = parameter_table(graph, frozen=graph.trainable)
        kept |= {"loss": losses, "parameters": table, "sample_type": self._reader.sample_types}
        self._plan = plan_for(device, graph, size, **kept)
        self._parameters = DeviceParameters(device, graph, table)
        self._parameters.write(model._weights)
        self._executor = Executor(device, self._plan, {"parameters": self._parameters.buffer})
        self._loader = Loader(self._executor)

    def forward(self, rows: Rows, head: Vertex) -> FloatArray:
        """Run forward on some samples; return the values of an output."""
        self._loader.load(self._reader, rows)
        self._executor.prepare(self._parameters.version)
        self._executor.run("forward", len(rows))
        return self.values(head, len(rows))

    def backward(self, head: Vertex, delta: FloatArray) -> None:
        """Run backward from the delta of an output; those of others are 0."""
        for vertex in self._plan.request.graph.outputs.values():
            values = delta if vertex is head else np.zeros((len(delta), *vertex.shape.dimensions), np.float32)
            self._executor.write_blob(self._plan.deltas[vertex.name], values)
        self._executor.run("backward", len(delta))

    def values(self, vertex: Vertex, count: int) -> FloatArray:
        """Return the values of a layer."""
        return self._executor.read_blob(self._plan.outputs[vertex.name], count).reshape(count, *vertex.shape.dimensions)

    def deltas(self, vertex: Vertex, count: int) -> FloatArray:
        """Return their deltas."""
        return self._executor.read_blob(self._plan.deltas[vertex.name], count).reshape(count, *vertex.shape.dimensions)
