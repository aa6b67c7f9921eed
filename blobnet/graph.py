"""Graphs of layers: an ordered list of named vertices, made from nodes, a list of layers, or a file's description."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from blobnet.blob import FloatArray, Shape
from blobnet.errors import FileError, OptionError, ShapeError, near_matches
from blobnet.geometry import plain
from blobnet.layers.base import Layer, Node, ParameterSpec


@dataclass(frozen=True)
class Vertex:
    """One layer in a graph; ``inputs`` are indices of earlier vertices. A layer in a graph always has a name."""

    index: int
    layer: Layer
    inputs: tuple[int, ...]
    shape: Shape

    @property
    def name(self) -> str:
        """The layer's name in the model."""
        assert self.layer.name is not None
        return self.layer.name


@dataclass(frozen=True)
class Graph:
    """Vertices in an order in which each comes after its inputs: the first is the input, the last the output."""

    vertices: tuple[Vertex, ...]

    @property
    def input(self) -> Vertex:
        """The vertex that data enters by."""
        return self.vertices[0]

    @property
    def output(self) -> Vertex:
        """The vertex whose blob is the model's result."""
        return self.vertices[-1]

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """For each vertex, the indices of those that read it (twice, if it is read twice)."""
        readers: list[list[int]] = [[] for _ in self.vertices]
        for vertex in self.vertices:
            for source in vertex.inputs:
                readers[source].append(vertex.index)
        return tuple(tuple(items) for items in readers)

    def input_shapes(self, vertex: Vertex) -> list[Shape]:
        """The shapes that ``vertex`` reads."""
        return [self.vertices[source].shape for source in vertex.inputs]

    def parameters(self, vertex: Vertex) -> tuple[ParameterSpec, ...]:
        """The parameters of ``vertex``."""
        return vertex.layer.parameters(self.input_shapes(vertex))

    @cached_property
    def named_parameters(self) -> dict[str, ParameterSpec]:
        """All parameters as ``<layer>/<parameter>``, in the order of the vertices."""
        return {f"{vertex.name}/{spec.name}": spec for vertex in self.vertices for spec in self.parameters(vertex)}

    @cached_property
    def trainable(self) -> tuple[str, ...]:
        """The names of the parameters that can be trained."""
        return tuple(name for name, spec in self.named_parameters.items() if spec.trainable)

    def vertex(self, name: str, subject: str) -> Vertex:
        """The vertex of a layer; OptionError, which begins with ``subject``, if there is no such layer."""
        found = [vertex for vertex in self.vertices if vertex.name == name]
        if not found:
            hint = near_matches(str(name), [vertex.name for vertex in self.vertices])
            raise OptionError(subject, "it must name a layer of the model", layer=name, hint=hint)
        return found[0]

    def up_to(self, name: str, subject: str) -> tuple[Vertex, ...]:
        """The vertices that a layer's values depend on, itself included, in order; errors as for :meth:`vertex`."""
        wanted = {self.vertex(name, subject).index}
        for vertex in reversed(self.vertices):
            wanted |= set(vertex.inputs) if vertex.index in wanted else set()
        return tuple(vertex for vertex in self.vertices if vertex.index in wanted)

    def nodes(self, weights: Mapping[str, FloatArray], replaced: Mapping[str, Layer] | None = None) -> dict[str, Node]:
        """Nodes for a new graph, by layer name, that carry the weights of their layers.

        Args:
            weights: all parameters by name.
            replaced: layers to put in the place of others, by name; these carry no weights.

        Raises:
            ShapeError: behind a layer that was replaced, one needs weights of other shapes than its own.
        """
        nodes: list[Node] = []
        for vertex in self.vertices:
            layer = (replaced or {}).get(vertex.name, vertex.layer)
            node = layer(*(nodes[source] for source in vertex.inputs))
            if layer is vertex.layer:
                shapes = {spec.name: spec.shape for spec in self.parameters(vertex)}
                wanted = {spec.name: spec.shape for spec in layer.parameters([item.shape for item in node.inputs])}
                if shapes != wanted:
                    rule = "its weights must fit what the layers before it give now"
                    hint = "a GlobalAveragePool in front of dense layers makes weights that fit any size."
                    raise ShapeError(vertex.name, rule, weights=shapes, wanted=wanted, hint=hint)
                node = replace(node, weights={name: weights[f"{vertex.name}/{name}"] for name in shapes})
            nodes.append(node)
        return {vertex.name: node for vertex, node in zip(self.vertices, nodes, strict=True)}

    def description(self) -> list[dict[str, Any]]:
        """The graph as plain data that :func:`from_description` takes (JSON)."""
        return [
            {
                "kind": vertex.layer.kind,
                "config": vertex.layer.config(),
                "inputs": [self.vertices[source].name for source in vertex.inputs],
            }
            for vertex in self.vertices
        ]


def from_nodes(inputs: Node | Sequence[Node], outputs: Node | Sequence[Node]) -> Graph:
    """The graph between one input node and one output node.

    Raises:
        OptionError: there is not exactly one input and one output, or they are not connected.
    """
    ends = []
    for side, nodes in (("inputs", inputs), ("outputs", outputs)):
        items = [nodes] if isinstance(nodes, Node) else list(nodes)
        if len(items) != 1 or not isinstance(items[0], Node):
            raise OptionError("Model", f"{side} must be one node", received=[type(item).__name__ for item in items])
        ends.append(items[0])
    source, target = ends
    order: list[Node] = []
    found: set[Node] = set()
    stack: list[tuple[Node, bool]] = [(target, False)]
    while stack:
        node, expanded = stack.pop()
        if expanded:
            order.append(node)
        elif node not in found:
            found.add(node)
            stack.append((node, True))
            stack.extend((item, False) for item in reversed(node.inputs))
    entries = [node for node in order if not node.inputs]
    if entries != [source]:
        names = [node.layer.subject for node in entries]
        raise OptionError("Model", "the outputs must depend on exactly the input that is given", inputs=names)
    order.remove(source)
    _check_layers_differ(order)
    return _build([source, *order], {node: node.inputs for node in order})


def carried_weights(outputs: Node | Sequence[Node]) -> dict[str, FloatArray]:
    """The weights that nodes and those before them carry, as ``<layer>/<parameter>``."""
    stack = [outputs] if isinstance(outputs, Node) else list(outputs)
    found: dict[str, FloatArray] = {}
    seen: set[Node] = set()
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            found |= {f"{node.layer.name}/{name}": values for name, values in node.weights.items()}
            stack += node.inputs
    return found


def _check_layers_differ(nodes: Sequence[Node]) -> None:
    """Raises OptionError where one layer with parameters stands in two places: people would expect shared weights."""
    seen: set[int] = set()
    for node in nodes:
        if id(node.layer) in seen and node.layer.parameters([item.shape for item in node.inputs]):
            rule = "a layer with parameters can stand in one place only"
            raise OptionError(node.layer.subject, rule, hint="weights are not shared: make a layer for each place.")
        seen.add(id(node.layer))


def sequential(layers: Iterable[Layer]) -> Graph:
    """A chain of layers, the first an Input.

    Raises:
        OptionError: the list does not begin with its one Input, or holds something that is no layer.
    """
    items = list(layers)
    entries = [index for index, layer in enumerate(items) if not isinstance(layer, Layer) or layer.arity == (0, 0)]
    if entries != [0] or not isinstance(items[0], Layer) or len(items) < 2:
        kinds = [getattr(layer, "kind", type(layer).__name__) for layer in items]
        raise OptionError("Sequential", "the layers must be one Input and then at least one other layer", layers=kinds)
    nodes: list[Node] = []
    for layer in _named(items):
        nodes.append(layer(*nodes[-1:]))
    return from_nodes(nodes[0], nodes[-1])


def from_description(description: Sequence[dict[str, Any]], subject: str) -> Graph:
    """Rebuilds what :meth:`Graph.description` gave; ``subject`` is the file, for errors."""
    nodes: dict[str, Node] = {}
    try:
        for entry in description:
            kind = entry["kind"]
            if kind not in Layer.kinds:
                near = near_matches(kind, list(Layer.kinds))
                hint = f"for a layer of your own, import the module that defines it first; of blobnet's, {near}"
                raise FileError(subject, "every layer kind must be a known one", kind=kind, hint=hint)
            config = {key: plain(value) for key, value in entry["config"].items()}
            layer = Layer.kinds[kind](**config)
            nodes[config["name"]] = layer([nodes[name] for name in entry["inputs"]])
        values = list(nodes.values())
        return from_nodes(values[0], values[-1])
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise FileError(subject, "the architecture must be a list of layers with kind, config and inputs") from error


def _named(layers: Sequence[Layer]) -> list[Layer]:
    """The layers, those without a name numbered by kind: conv2d_1, conv2d_2, dense_1."""
    for layer in layers:
        _check_name(layer.name)
    taken = [layer.name for layer in layers if layer.name]
    _check_unique(taken)
    numbers: dict[str, int] = {}
    named = []
    for layer in layers:
        name = layer.name
        while name is None or (layer.name is None and name in taken):
            numbers[layer.kind] = numbers.get(layer.kind, 0) + 1
            name = f"{layer.kind.lower()}_{numbers[layer.kind]}"
        named.append(replace(layer, name=name))
    return named


def _check_unique(names: Sequence[str]) -> None:
    doubled = sorted(name for name, times in Counter(names).items() if times > 1)
    if doubled:
        raise OptionError("Model", "layer names must be unique", doubled=doubled)


def _check_name(name: str | None) -> None:
    """Names become groups of a file, and parts of parameters' names."""
    plain = name is None or (
        isinstance(name, str) and name.isprintable() and "/" not in name and name not in ("", ".", "..")
    )
    if not plain:
        raise OptionError(
            "Model", "a layer's name must be printable, without '/', and not '.' or '..'", name=repr(name)
        )


def _build(order: Sequence[Node], inputs: dict[Node, tuple[Node, ...]]) -> Graph:
    vertices: list[Vertex] = []
    index: dict[Node, int] = {}
    for node, layer in zip(order, _named([node.layer for node in order]), strict=True):
        sources = tuple(index[item] for item in inputs.get(node, ()))
        for part in layer.expanded():
            vertices.append(Vertex(len(vertices), part, sources, node.shape))
            sources = (len(vertices) - 1,)
        index[node] = len(vertices) - 1
    _check_unique([vertex.name for vertex in vertices])  # An activation that was split off has a name too.
    return Graph(tuple(vertices))
