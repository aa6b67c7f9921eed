"""Keras's names for the weights of layers, and the order of its axes and layers.

Keras's arrays have the units after all other axes: filters are (height, width, units, filters), dense layers (inputs,
outputs), and a flattened plane comes position by position, not unit by unit. A model's layers are in the order of
its graph (:func:`operations`), and in files each is called by its class and its number among those of that class.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from blobnet.errors import OptionError
from blobnet.memory.blob import FloatArray, Shape
from blobnet.network.graph import Graph, Vertex

Order: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Variable:
    """A weight as Keras has it: our values as ``middle``, then with the axes in another ``order``, then as ``shape``.

    Attributes:
        path: of the groups between the layer's and the variable's; empty for most.
        parameters: our full name of it; several are rows of it.
        own: our shape.
        units: where our last axis has what stands at each place of Keras's; None: at the same one.
        outputs: the same of our first axis.
    """

    parameters: tuple[str, ...]
    own: tuple[int, ...]
    middle: tuple[int, ...]
    order: tuple[int, ...]
    shape: tuple[int, ...]
    units: Order | None = None
    path: str = ""
    outputs: Order | None = None

    def to_keras(self, weights: Mapping[str, FloatArray]) -> FloatArray:
        """The array that Keras has of our values."""
        values = np.stack([weights[name] for name in self.parameters]).reshape(self.own)
        if self.outputs is not None:
            values = values[self.outputs]
        if self.units is not None:
            values = values[..., self.units]
        found: FloatArray = values.reshape(self.middle).transpose(self.order).reshape(self.shape)
        return found

    def from_keras(self, array: FloatArray) -> dict[str, FloatArray]:
        """Our values of Keras's array, by our names."""
        sizes = [self.middle[axis] for axis in self.order]
        values: FloatArray = array.reshape(sizes).transpose(np.argsort(self.order)).reshape(self.own)
        if self.outputs is not None:
            values = values[np.argsort(self.outputs)]
        values = values if self.units is None else values[..., np.argsort(self.units)]
        return dict(zip(self.parameters, values if len(self.parameters) > 1 else [values], strict=True))


@dataclass(frozen=True, eq=False)
class KerasLayer:
    """A layer as Keras has it: what its class is called in files, and its variables, in their order."""

    name: str
    kind: str
    variables: tuple[Variable, ...] = ()


@dataclass
class _Place:
    """A layer's place, for the functions below."""

    layer: Any
    vertex: Vertex
    shape: Shape
    specs: Mapping[str, tuple[int, ...]]
    units: Order | None
    outputs: Order | None
    variables: list[Variable] = field(default_factory=list)

    def add(self, *names: str, **other: Any) -> None:
        """A variable, if the layer has the parameters, with ``other`` fields than a copy of ours has."""
        if names[0] in self.specs:
            own = (*[len(names)] * (len(names) > 1), *self.specs[names[0]])
            full = tuple(map(self.vertex.parameter, names))
            self.variables.append(replace(Variable(full, own, own, tuple(range(len(own))), own, self.units), **other))


def _convolution(place: _Place) -> str:
    layer, weight = place.layer, place.specs["weight"]
    filters, units, *taps = weight
    axes, given, rank = tuple(range(2, 2 + len(taps))), place.shape.units, len(taps)
    is_depthwise = layer.groups == given > 1 and rank < 3
    if is_depthwise:
        each = filters // given
        middle = (given, each, *taps)
        place.add("weight", middle=middle, order=(*axes, 0, 1), shape=(*taps, given, each))
    else:
        place.add("weight", order=(*axes, 1, 0), shape=(*taps, units, filters))
    if layer.bias == "position":
        raise OptionError(layer.subject, "a layer of Keras has one bias for a unit", bias=layer.bias)
    place.add("bias")
    return f"{'depthwise_' if is_depthwise else ''}conv{rank}d"


def _transposed(place: _Place) -> str:
    layer = place.layer
    units, filters, *taps = place.specs["weight"]
    if layer.groups > 1:
        raise OptionError(layer.subject, "transposed convolutions of Keras have no groups", groups=layer.groups)
    place.add("weight", order=(*range(2, 2 + len(taps)), 1, 0), shape=(*taps, filters, units))
    place.add("bias")
    return f"conv{len(taps)}d_transpose"


def _dense(place: _Place) -> str:
    outputs, inputs = place.specs["weight"]
    place.add("weight", order=(1, 0), shape=(inputs, outputs), outputs=place.outputs)
    place.add("bias", units=None, outputs=place.outputs)
    return "dense"


def _batch_norm(place: _Place) -> str:
    for name in ("scale", "shift", "running_mean", "running_variance"):
        place.add(name)
    return "batch_normalization"


def _scale_and_shift(kind: str) -> Callable[[_Place], str]:
    def form(place: _Place) -> str:
        place.add("scale")
        place.add("shift")
        return kind

    return form


def _prelu(place: _Place) -> str:
    (units,) = place.specs["slope"]
    place.add("slope", shape=(*(1,) * place.shape.rank, units))
    return "p_re_lu"


def _attention(place: _Place) -> str:
    heads = place.layer.heads
    for name in ("query", "key", "value"):
        units, inputs = place.specs[name]
        each, path = units // heads, f"{name}_dense"
        place.add(name, order=(1, 0), shape=(inputs, heads, each), path=path)
        place.add(f"{name}_bias", shape=(heads, each), path=path)
    units, _ = place.specs["output"]
    place.add("output", order=(1, 0), shape=(heads, units // heads, units), path="output_dense")
    place.add("output_bias", path="output_dense")
    return "multi_head_attention"


def _embedding(place: _Place) -> str:
    place.add("weight", units=None)
    return "embedding"


def _recurrent(kind: str, gates: Sequence[int]) -> Callable[[_Place], str]:
    """The form of a layer whose gates are ours of these numbers, in Keras's order."""

    def form(place: _Place) -> str:
        layer = place.layer
        if layer.reverse and layer.return_sequences:
            rule = "layers of Keras that go backwards give their positions in that order"
            raise OptionError(layer.subject, rule, reverse=True, return_sequences=True)
        rows = np.concatenate([np.arange(gate * layer.units, (gate + 1) * layer.units) for gate in gates])
        for prefix in layer.prefixes:
            side = "backward_layer/" if prefix else "forward_layer/" * layer.bidirectional
            for name in ("weight", "recurrent"):
                height, width = place.specs[prefix + name]
                turned = {"order": (1, 0), "shape": (width, height), "outputs": rows}
                place.add(prefix + name, units=None, path=f"{side}cell", **turned)
            biases = [f"{prefix}{name}" for name in ("bias", "recurrent_bias") if f"{prefix}{name}" in place.specs]
            if biases:
                place.add(*biases, units=rows, path=f"{side}cell")
        return "bidirectional" if layer.bidirectional else kind

    return form


#: Kinds of layers with weights: functions that add their variables, and say what the class is called.
_FORMS: dict[str, Callable[[_Place], str]] = {
    **dict.fromkeys(("Conv1D", "Conv2D", "Conv3D"), _convolution),
    **dict.fromkeys(("ConvTranspose1D", "ConvTranspose2D", "ConvTranspose3D"), _transposed),
    "Dense": _dense,
    "BatchNorm": _batch_norm,
    "LayerNorm": _scale_and_shift("layer_normalization"),
    "GroupNorm": _scale_and_shift("group_normalization"),
    "InstanceNorm": _scale_and_shift("group_normalization"),
    "PReLU": _prelu,
    "MultiHeadAttention": _attention,
    "Embedding": _embedding,
    "LSTM": _recurrent("lstm", (0, 1, 2, 3)),
    "GRU": _recurrent("gru", (1, 0, 2)),
}
#: Kinds without weights that do the same whichever axis the units are.
_PLAIN = {
    *("Activation", "Add", "Concat", "Dropout", "Flatten", "GlobalAveragePool", "GlobalMaxPool", "Input", "Multiply"),
    *("MaxPool1D", "MaxPool2D", "MaxPool3D", "AveragePool1D", "AveragePool2D", "AveragePool3D", "Pad", "Upsample"),
    *("AdaptiveAveragePool", "AdaptiveMaxPool", "LocalResponseNorm", "Slice", "Standardize", "StochasticDepth"),
}
#: Of these, and of layers with weights, those that leave flat values where they are.
_KEEPING = {"Activation", "Add", "BatchNorm", "Dropout", "Flatten", "LayerNorm", "Multiply", "PReLU"}


def keras_layers(graph: Graph, *, separable: bool = False) -> list[KerasLayer]:
    """The layers with weights, in the order of Keras's model.

    Args:
        graph: the network.
        separable: whether a depthwise convolution without a bias and the one of 1x1 after it are one layer of Keras.

    Raises:
        OptionError: a layer has no such form.
    """
    orders = _flat_orders(graph)
    pointwise = _separable(graph) if separable else {}
    seconds = {first: graph.vertices[second] for second, first in pointwise.items()}
    found: dict[str, KerasLayer] = {}
    for vertex in operations(graph, pointwise):
        layer = vertex.layer
        if layer.kind not in _FORMS or str(layer.name) in found:
            continue
        kind, variables = _form(graph, vertex, orders)
        if second := seconds.get(vertex.index):
            kind, more = _form(graph, second, orders)
            kind, variables = f"separable_{kind}", (*variables, *more)
        found[str(layer.name)] = KerasLayer(str(layer.name), kind, variables)
    return list(found.values())


def _form(graph: Graph, vertex: Vertex, orders: Sequence[Order | None]) -> tuple[str, tuple[Variable, ...]]:
    """Return the name of the Keras class of a layer with weights, and its variables."""
    layer, shape = vertex.layer, graph.input_shapes(vertex)[0]
    specs = {spec.name: spec.shape for spec in graph.parameters(vertex)}
    place = _Place(layer, vertex, shape, specs, orders[vertex.inputs[0]], orders[vertex.index])
    if layer.kind == "Dense" and shape.rank:
        place.units = _flattened(shape)
    return _FORMS[layer.kind](place), tuple(place.variables)


def _separable(graph: Graph) -> dict[int, int]:
    """The depthwise convolution before each convolution of 1x1 that is the only one to take what it gives."""
    uses = Counter(source for vertex in graph.vertices for source in vertex.inputs)
    uses.update(vertex.index for vertex in graph.outputs.values())
    found = {}
    for vertex in graph.vertices:
        layer: Any = vertex.layer
        before: Any = graph.vertices[vertex.inputs[0]].layer if vertex.inputs else None
        if layer.kind not in ("Conv1D", "Conv2D") or before is None or before.kind != layer.kind:
            continue
        source = graph.vertices[vertex.inputs[0]]
        parameters = {spec.name for spec in graph.parameters(source)}
        is_depthwise = before.groups == graph.input_shapes(source)[0].units and "bias" not in parameters
        weight = next(spec.shape for spec in graph.parameters(vertex) if spec.name == "weight")
        is_pointwise = layer.groups == 1 and math.prod(weight[2:]) == 1
        if is_depthwise and is_pointwise and uses[source.index] == 1:
            found[vertex.index] = source.index
    return found


def operations(graph: Graph, together: Mapping[int, int] = MappingProxyType({})) -> list[Vertex]:
    """The vertices in the order of a functional model of Keras, an activation that a layer has with that layer.

    The farther from the outputs the earlier; what is equally far in the order in which a walk from the outputs to
    the inputs meets it. Of a layer in several places the first one stands for all.

    Args:
        graph: the network.
        together: vertices that are one layer with another, by theirs its index.
    """
    owner = {vertex.index: _owner(graph, vertex, together) for vertex in graph.vertices}
    distance = dict.fromkeys(owner.values(), 0)
    for vertex in reversed(graph.vertices):
        for source in vertex.inputs:
            if owner[source] != owner[vertex.index]:
                distance[owner[source]] = max(distance[owner[source]], distance[owner[vertex.index]] + 1)
    met: dict[int, int] = {}
    for output in graph.outputs.values():
        stack = [output.index]
        while stack:
            index = stack.pop()
            if index not in met:
                met[index] = len(met)
                stack.extend(reversed(graph.vertices[index].inputs))
    first = {number: min(met[index] for index in owner if owner[index] == number) for number in distance}
    ordered = sorted(distance, key=lambda number: (-distance[number], first[number]))
    return [graph.vertices[number] for number in ordered]


def _owner(graph: Graph, vertex: Vertex, together: Mapping[int, int]) -> int:
    """The vertex of the layer that has an activation; of other vertices the first place of their layer."""
    if vertex.index in together:
        return together[vertex.index]
    if len(vertex.inputs) == 1:
        before = graph.vertices[vertex.inputs[0]]
        function = str(vertex.layer.config().get("function"))
        if vertex.layer.kind == "Activation" and vertex.layer.name == f"{before.layer.name}_{function}":
            return _owner(graph, before, together)
    return next(item.index for item in graph.vertices if item.layer.name == vertex.layer.name)


def _flattened(shape: Shape) -> Order:
    """Return the place here of each value of a sample in Keras's order."""
    return np.moveaxis(np.arange(shape.elements).reshape(shape.dimensions), 0, -1).reshape(-1)


def _wanted_orders(graph: Graph) -> dict[int, Order]:
    """Keras's order of what dense layers give that becomes planes, as in a generator, by the layers' vertices.

    None of what the network's outputs read: users get those as they are.
    """
    found: dict[int, Order] = {}
    for vertex in graph.vertices:
        if vertex.layer.kind != "Reshape":
            continue
        before = vertex
        while len(before.inputs) == 1 and (before is vertex or before.layer.kind in _KEEPING - {"Flatten"}):
            before = graph.vertices[before.inputs[0]]
        if before.layer.kind == "Dense" and graph.places(before) == 1:
            found[before.index] = _flattened(vertex.shape)
    given = {output.index for output in graph.outputs.values()}
    for vertex in reversed(graph.vertices):  # From the outputs back to what gives values their order.
        if vertex.index in given:
            found.pop(vertex.index, None)
            given.update(vertex.inputs if vertex.layer.kind in {*_KEEPING, "Concat"} else ())
    return found


def _flat_orders(graph: Graph) -> list[Order | None]:
    """Return the order of Keras for each vertex whose values are flat; None if it is the order here.

    Raises:
        OptionError: a layer does something else in Keras, or what it does depends on the order.
    """
    wanted = _wanted_orders(graph)
    orders: list[Order | None] = []
    moved_by: dict[int, str] = {}  # Vertices whose values Keras may have at other places, and the layer that did that.
    for vertex in graph.vertices:
        layer, shapes = vertex.layer, graph.input_shapes(vertex)
        given = [orders[source] for source in vertex.inputs]
        has_weights = bool(graph.parameters(vertex)) and not layer.takes_samples
        hint = "an ONNX file has a form for it: bn.onnx.save."
        if has_weights and layer.kind not in _FORMS:
            raise OptionError(layer.subject, "the layer must have a form in Keras", kind=layer.kind, hint=hint)
        movers = [moved_by[source] for source in vertex.inputs if source in moved_by]
        if layer.kind == "Reshape" and not movers and not shapes[0].rank and vertex.shape.rank:
            before = np.arange(shapes[0].units) if given[0] is None else given[0]
            if np.array_equal(before, _flattened(vertex.shape)):  # Planes, as Keras has them.
                orders.append(None)
                continue
        if has_weights and movers:
            rule = "a layer with weights must not read values that Keras may have in another order"
            raise OptionError(layer.subject, rule, moved_by=movers[0], hint=hint)
        if movers or not (layer.kind in _FORMS or layer.kind in _PLAIN):
            moved_by[vertex.index] = movers[0] if movers else vertex.name
            orders.append(None)
        elif layer.kind == "Flatten" and shapes[0].rank:
            orders.append(_flattened(shapes[0]))
        elif layer.kind == "Dense":
            orders.append(wanted.get(vertex.index))
        elif all(order is None for order in given):
            orders.append(None)
        elif layer.kind == "Concat":
            own = [
                np.arange(shape.units) if order is None else order for order, shape in zip(given, shapes, strict=True)
            ]
            starts = np.cumsum([0, *(shape.units for shape in shapes[:-1])])
            orders.append(np.concatenate([order + start for order, start in zip(own, starts, strict=True)]))
        else:
            listed = [None if order is None else order.tolist() for order in given]
            same = all(order == listed[0] for order in listed)
            if layer.kind not in _KEEPING or not same:
                rule = "flattened values must go to layers that treat them alike, or to dense ones"
                raise OptionError(layer.subject, rule, hint="Keras flattens position by position.")
            orders.append(given[0])
    return orders
