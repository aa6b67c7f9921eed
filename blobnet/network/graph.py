"""Graphs of layers: an ordered list of named vertices, made from nodes, a list of layers, or a file's description."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from blobnet.errors import FileError, OptionError, ShapeError, near_matches
from blobnet.layers.base import Layer, Node, ParameterSpec
from blobnet.memory.blob import FloatArray, Shape
from blobnet.support.checks import plain


@dataclass(frozen=True)
class Vertex:
    """One place of a layer in a graph. A layer in a graph always has a name.

    Attributes:
        index: the vertex's number.
        layer: what stands there; it may stand in other places too, and its parameters are the same in all of them.
        inputs: the numbers of the earlier vertices that it reads.
        shape: of a sample of its output.
        place: which of the layer's places this is, from 1 on.
    """

    index: int
    layer: Layer
    inputs: tuple[int, ...]
    shape: Shape
    place: int = 1

    @property
    def name(self) -> str:
        """The place's name: that of its layer, after its first place with a number, ``encoder`` and ``encoder@2``."""
        assert self.layer.name is not None
        return _place_name(self.layer.name, self.place)

    def parameter(self, name: str) -> str:
        """The full name of a parameter, ``<layer>/<parameter>``: the same one in all places of the layer."""
        return f"{self.layer.name}/{name}"


@dataclass(frozen=True)
class Graph:
    """Vertices in an order in which each comes after its inputs.

    Attributes:
        vertices: the inputs of the network first.
        entries: the name of each input, and its vertex's number.
        exits: the name of each output, and its vertex's number.
        origin: plain data of the ONNX file that the graph was read from, by which it is written again
            (blobnet/onnx/conventions.py); empty for others.
    """

    vertices: tuple[Vertex, ...]
    entries: tuple[tuple[str, int], ...] = ()
    exits: tuple[tuple[str, int], ...] = ()
    origin: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def inputs(self) -> dict[str, Vertex]:
        """The vertices that data enter by, by the names of the inputs."""
        return {name: self.vertices[index] for name, index in self.entries}

    @cached_property
    def outputs(self) -> dict[str, Vertex]:
        """The vertices whose blobs are the results, by the names of the outputs."""
        return {name: self.vertices[index] for name, index in self.exits}

    @property
    def input(self) -> Vertex:
        """The only input.

        Raises:
            OptionError: there are several.
        """
        return _only("input", self.inputs)

    @property
    def output(self) -> Vertex:
        """The only output.

        Raises:
            OptionError: there are several.
        """
        return _only("output", self.outputs)

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """The indices of the readers of each vertex (twice, if it is read twice)."""
        readers: list[list[int]] = [[] for _ in self.vertices]
        for vertex in self.vertices:
            for source in vertex.inputs:
                readers[source].append(vertex.index)
        return tuple(tuple(items) for items in readers)

    def is_output(self, index: int) -> bool:
        """Return True if a vertex, by its number, is an output of the network."""
        return any(index == output for _, output in self.exits)

    def holds_numbers(self, vertex: Vertex) -> bool:
        """Return True if a layer behind ``vertex`` takes its values, at most moved, as numbers of things."""
        readers = (self.vertices[index] for index in self.readers[vertex.index])
        return any(
            any(reader.inputs[place : place + 1] == (vertex.index,) for place in reader.layer.takes_numbers)
            or (reader.layer.moves_values and self.holds_numbers(reader))
            for reader in readers
        )

    def places(self, vertex: Vertex) -> int:
        """Return the number of places of the layer of ``vertex``."""
        return self._places[str(vertex.layer.name)]

    @cached_property
    def _places(self) -> Counter[str]:
        return Counter(str(vertex.layer.name) for vertex in self.vertices)

    def input_shapes(self, vertex: Vertex) -> list[Shape]:
        """The shapes that ``vertex`` reads."""
        return [self.vertices[source].shape for source in vertex.inputs]

    def parameters(self, vertex: Vertex) -> tuple[ParameterSpec, ...]:
        """The parameters of ``vertex``."""
        return vertex.layer.parameters(self.input_shapes(vertex))

    @cached_property
    def named_parameters(self) -> dict[str, ParameterSpec]:
        """All parameters as ``<layer>/<parameter>``, in the order of the vertices; those of shared layers once."""
        return {vertex.parameter(spec.name): spec for vertex in self.vertices for spec in self.parameters(vertex)}

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

    def nodes(
        self,
        weights: Mapping[str, FloatArray],
        replaced: Mapping[str, Layer] | None = None,
        fed: Mapping[str, Node] | None = None,
        prefix: str = "",
    ) -> dict[str, Node]:
        """Nodes for a new graph, by vertex name, that carry the weights of their layers.

        Args:
            weights: all parameters by name.
            replaced: layers to put in the place of others, by name; these carry no weights.
            fed: nodes to put in the place of vertices, by name.
            prefix: of the new layers' names; without one they are the same layers, which share their parameters.

        Raises:
            ShapeError: after a layer that was replaced, one needs weights of other shapes than its own.
        """
        nodes: dict[str, Node] = {}
        replaced, layers = replaced or {}, {}
        for vertex in self.vertices:
            if fed and vertex.name in fed:
                nodes[vertex.name] = fed[vertex.name]
                continue
            name = str(vertex.layer.name)
            if name not in layers:
                layer = replaced.get(name, vertex.layer)
                layers[name] = replace(layer, name=prefix + name) if prefix else layer
            node = layers[name](*(nodes[self.vertices[source].name] for source in vertex.inputs))
            if name not in replaced:
                shapes = {spec.name: spec.shape for spec in self.parameters(vertex)}
                wanted = {
                    spec.name: spec.shape for spec in vertex.layer.parameters([item.shape for item in node.inputs])
                }
                _check_weights(vertex, shapes, wanted)
                node = replace(node, weights={own: weights[vertex.parameter(own)] for own in shapes})
            nodes[vertex.name] = node
        return nodes

    def of_size(self, height: int, width: int) -> Graph:
        """Return the network for pictures of another size, with the same parameters and outputs of the same shapes.

        Raises:
            OptionError: it has several inputs.
            ShapeError: the input takes no pictures, or weights or an output depend on their size.
        """
        entry, vertices = self.input, list[Vertex]()
        if entry.shape.rank != 2:
            raise ShapeError(entry.name, "an input of another size must take pictures", shape=entry.shape)
        if entry.shape.sizes == (height, width):
            return self
        for vertex in self.vertices:
            layer: Any = vertex.layer
            if vertex.index == entry.index:
                layer = replace(layer, height=height, width=width)
            shapes = [vertices[source].shape for source in vertex.inputs]
            specs = {spec.name: spec.shape for spec in layer.parameters(shapes)}
            _check_weights(vertex, {spec.name: spec.shape for spec in self.parameters(vertex)}, specs)
            vertices.append(replace(vertex, layer=layer, shape=layer.output_shape(shapes)))
            if self.is_output(vertex.index) and vertices[-1].shape != vertex.shape:
                rule = "an output must have the same shape for pictures of any size"
                received = {"size": f"{height}x{width}", "output": vertices[-1].shape, "wanted": vertex.shape}
                raise ShapeError(vertex.name, rule, hint="a GlobalAveragePool makes it so.", **received)
        return replace(self, vertices=tuple(vertices))

    def description(self) -> Any:
        """The graph as plain data that :func:`from_description` takes (JSON).

        A list of layers for a network whose first layer is its only input and whose last one is its only output; for
        others, with layers in several places or an origin among them, the list, and the inputs and outputs by name.
        """
        layers = [
            {
                "kind": vertex.layer.kind,
                "config": vertex.layer.config(),
                "inputs": [self.vertices[source].name for source in vertex.inputs],
                **({"place": vertex.place} if vertex.place > 1 else {}),
            }
            for vertex in self.vertices
        ]
        first, last = self.vertices[0], self.vertices[-1]
        is_plain = self.entries == ((first.name, first.index),) and self.exits == ((last.name, last.index),)
        if is_plain and not self.origin and all(vertex.place == 1 for vertex in self.vertices):
            return layers
        ends = {
            side: {name: vertex.name for name, vertex in vertices.items()}
            for side, vertices in (("inputs", self.inputs), ("outputs", self.outputs))
        }
        return {"layers": layers, **ends, **({"origin": self.origin} if self.origin else {})}


def _check_weights(vertex: Vertex, shapes: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Raises ShapeError unless weights of these shapes are those that a layer wants now, by name."""
    if shapes != wanted:
        rule = "its weights must fit what the layers before it give now"
        hint = "a GlobalAveragePool in front of dense layers makes weights that fit any size."
        raise ShapeError(vertex.name, rule, weights=shapes, wanted=wanted, hint=hint)


def _only(side: str, vertices: Mapping[str, Vertex]) -> Vertex:
    if len(vertices) != 1:
        rule = f"what was asked for works with models of one {side}"
        hint = "Model.fit, evaluate, predict, gradients and plan take them by name, and so do the commands train, "
        hint += "evaluate and predict (docs/graphs.md)."
        raise OptionError("Model", rule, hint=hint, **{f"{side}s": ", ".join(vertices)})
    return next(iter(vertices.values()))


#: The inputs or outputs of a model: a node, several nodes, or several nodes by name.
Ends: TypeAlias = "Node | Sequence[Node] | Mapping[str, Node]"


def from_nodes(inputs: Ends, outputs: Ends) -> Graph:
    """The graph between input nodes and output nodes; see :func:`with_weights`."""
    return with_weights(inputs, outputs)[0]


def with_weights(inputs: Ends, outputs: Ends) -> tuple[Graph, dict[str, FloatArray]]:
    """The graph between input nodes and output nodes, and the weights that these and those between them carry.

    Raises:
        OptionError: the outputs do not depend on exactly these inputs, a node is given twice, or names are not unique.
        ShapeError: a layer stands in several places whose inputs do not fit the same parameters.
    """
    sources, targets = (_ends(side, nodes) for side, nodes in (("inputs", inputs), ("outputs", outputs)))
    order: list[Node] = []
    found: set[Node] = set()
    stack: list[tuple[Node, bool]] = [(target, False) for _, target in reversed(targets)]
    while stack:
        node, expanded = stack.pop()
        if expanded:
            order.append(node)
        elif node not in found:
            found.add(node)
            stack.append((node, True))
            stack.extend((item, False) for item in reversed(node.inputs))
    given = [node for _, node in sources]
    entries = [node for node in order if node.layer.takes_samples]
    if set(entries) != set(given):
        names = [node.layer.subject for node in entries]
        rule = "the outputs must depend on exactly the input that is given"
        if len(given) > 1:
            rule = "the outputs must depend on exactly the inputs that are given"
        raise OptionError("Model", rule, inputs=names)
    return _build([*given, *(node for node in order if node not in given)], sources, targets)


#: A node, and the name that an input or output gets if it has one.
_End: TypeAlias = tuple[str | None, Node]


def _ends(side: str, nodes: Ends) -> list[_End]:
    """The inputs or outputs of a model."""
    items: list[tuple[Any, Any]]
    if isinstance(nodes, Mapping):
        items = list(nodes.items())
        for name, _ in items:
            _check_name(name, f"the name of one of the {side}")
    else:
        items = [(None, item) for item in (nodes if isinstance(nodes, list | tuple) else [nodes])]
    if not items or not all(isinstance(item, Node) for _, item in items):
        received = [type(item).__name__ for _, item in items]
        hint = "a layer gives a node when it is called: layers.Input(3)(), layers.Dense(2)(node)."
        rule = f"{side} must be one node, or several ones in a list or by name"
        raise OptionError("Model", rule, received=received, hint=hint)
    if len({item for _, item in items}) < len(items):
        received = [item.layer.subject for _, item in items]
        hint = 'Activation("linear")(node) is another node of the same values.'
        raise OptionError("Model", f"each of the {side} must be another node", received=received, hint=hint)
    return items


def sequential(layers: Iterable[Layer]) -> Graph:
    """A chain of layers, the first an Input.

    Raises:
        OptionError: the list does not begin with its one Input, or holds something that is no layer.
    """
    items = list(layers)
    entries = [index for index, layer in enumerate(items) if not isinstance(layer, Layer) or layer.arity == (0, 0)]
    if entries != [0] or not isinstance(items[0], Layer) or not items[0].takes_samples or len(items) < 2:
        kinds = [layer.kind if isinstance(layer, Layer) else type(layer).__name__ for layer in items]
        bare = next((item.__name__ for item in items if isinstance(item, type)), None)
        hint = f"{bare} is a class: write {bare}(), with the arguments that it takes." if bare else None
        rule = "the layers must be one Input and then at least one other layer"
        raise OptionError("Sequential", rule, layers=kinds, hint=hint)
    nodes: list[Node] = []
    for layer in _named(items):
        nodes.append(layer(*nodes[-1:]))
    return from_nodes(nodes[0], nodes[-1])


def from_description(description: Any, subject: str) -> Graph:
    """Rebuilds what :meth:`Graph.description` gave; ``subject`` is the file, for errors."""
    nodes: dict[str, Node] = {}
    layers: dict[str, Layer] = {}
    try:
        has_ends = isinstance(description, dict)
        for entry in description["layers"] if has_ends else description:
            kind = entry["kind"]
            if kind not in Layer.kinds:
                near = near_matches(kind, list(Layer.kinds))
                hint = f"for a layer of your own, import the module that defines it first; of blobnet's, {near}"
                raise FileError(subject, "every layer kind must be a known one", kind=kind, hint=hint)
            config = {key: plain(value) for key, value in entry["config"].items()}
            layer, place = Layer.kinds[kind](**config), entry.get("place", 1)
            if place > 1 and layers[config["name"]] != layer:
                rule = "a layer must be the same in all of its places"
                raise FileError(subject, rule, layer=config["name"], place=place)
            layer = layers.setdefault(config["name"], layer) if place > 1 else layer
            layers[config["name"]] = layer
            nodes[_place_name(config["name"], place)] = layer([nodes[name] for name in entry["inputs"]])
        if has_ends:
            sources, targets = (
                {public: nodes[name] for public, name in description[side].items()} for side in ("inputs", "outputs")
            )
            return replace(from_nodes(sources, targets), origin=dict(description.get("origin", {})))
        values = list(nodes.values())
        return from_nodes(values[0], values[-1])
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise FileError(subject, "the architecture must be a list of layers with kind, config and inputs") from error


def described_names(description: Any) -> list[str]:
    """The names of the vertices that a description speaks of."""
    entries = description["layers"] if isinstance(description, dict) else description
    return [_place_name(entry["config"]["name"], entry.get("place", 1)) for entry in entries]


def _place_name(layer: str, place: int) -> str:
    return layer if place == 1 else f"{layer}@{place}"


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
        named.append(layer if name == layer.name else replace(layer, name=name))
    return named


def _check_unique(names: Sequence[str]) -> None:
    doubled = sorted(name for name, times in Counter(names).items() if times > 1)
    if doubled:
        raise OptionError("Model", "layer names must be unique", doubled=doubled)


def _check_name(name: str | None, what: str = "a layer's name") -> None:
    """Names become groups of a file, and parts of parameters' names."""
    plain = name is None or (
        isinstance(name, str) and name.isprintable() and "/" not in name and name not in ("", ".", "..")
    )
    if not plain:
        raise OptionError("Model", f"{what} must be printable, without '/', and not '.' or '..'", name=repr(name))


def _layer_key(node: Node) -> int:
    """Return the key of a layer, the same at all its places; without a name or parameters each place has its own."""
    is_one = node.layer.name is not None or node.layer.parameters([item.shape for item in node.inputs])
    return id(node.layer) if is_one else id(node)


def _build(
    order: Sequence[Node], sources: Sequence[_End], targets: Sequence[_End]
) -> tuple[Graph, dict[str, FloatArray]]:
    keys = {node: _layer_key(node) for node in order}
    # An input without a name of its own is called what the model calls it.
    names = {keys[node]: name for name, node in sources if node.layer.name is None}
    layers: dict[int, Layer] = {}
    for node in order:
        layer = node.layer
        layers.setdefault(keys[node], replace(layer, name=names[keys[node]]) if keys[node] in names else layer)
    named = dict(zip(layers, _named(list(layers.values())), strict=True))
    parts = {key: layer.expanded() for key, layer in named.items()}
    vertices: list[Vertex] = []
    index: dict[Node, int] = {}
    first: dict[int, Node] = {}
    places: Counter[int] = Counter()
    weights: dict[str, FloatArray] = {}
    for node in order:
        key = keys[node]
        places[key] += 1
        _check_fits(named[key], first.setdefault(key, node), node)
        sources_of = tuple(index[item] for item in node.inputs)
        for part in parts[key]:
            vertices.append(Vertex(len(vertices), part, sources_of, node.shape, places[key]))
            sources_of = (len(vertices) - 1,)
        index[node] = len(vertices) - 1
        for parameter, values in node.weights.items():
            name = f"{named[key].name}/{parameter}"
            known = weights.setdefault(name, values)
            if known is not values and not np.array_equal(known, values):
                rule = "nodes of one layer must carry the same weights"
                hint = "take all nodes out of the model at once, after it was trained."
                raise OptionError("Model", rule, parameter=name, hint=hint)
    _check_unique([vertex.name for vertex in vertices])  # An activation that was split off has a name too.

    def ends(items: Sequence[_End]) -> tuple[tuple[str, int], ...]:
        several = [(name or str(named[keys[node]].name), index[node]) for name, node in items]
        # NOTE: the only one is called what its vertex is called, since older files do not say more.
        return tuple(
            (name, number) if len(items) > 1 or given else (vertices[number].name, number)
            for (name, number), (given, _) in zip(several, items, strict=True)
        )

    entries, exits = ends(sources), ends(targets)
    for side in (entries, exits):
        _check_unique([name for name, _ in side])
    return Graph(tuple(vertices), entries, exits), weights


def _check_fits(layer: Layer, first: Node, node: Node) -> None:
    """Raises ShapeError where a layer has other parameters in one of its places than in the first one."""
    wanted, found = (
        {spec.name: spec.shape for spec in layer.parameters([item.shape for item in place.inputs])}
        for place in (first, node)
    )
    if wanted != found:
        rule = "a layer that stands in several places has the same parameters in all of them"
        inputs = {"first": _shapes(first), "now": _shapes(node)}
        hint = "its inputs must fit these; make a layer of its own for each place that shall learn its own weights."
        raise ShapeError(layer.subject, rule, hint=hint, **inputs)


def _shapes(node: Node) -> str:
    return " ".join(str(item.shape) for item in node.inputs)
