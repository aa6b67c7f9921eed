"""Small graphs of layers without parameters, what NumPy makes of them, and a loss for them (no OpenCL here)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from blobnet.blob import FloatArray, Shape
from blobnet.graph import Graph, Vertex, from_nodes
from blobnet.kernel_call import Blob, KernelCall, Tuning, copy_call
from blobnet.layers import Activation, Add, Concat, Flatten, Input, Layer, Node
from blobnet.losses import Loss
from blobnet.planner import Plan, make_plan
from tests.reference import joins
from tests.reference.activation import ACTIVATIONS

Float64Array = npt.NDArray[np.float64]
#: Makes a layer of a kind that is not in blobnet; it has a reference_forward(x) and a reference_backward(x, delta).
MakeLayer = Callable[[np.random.Generator], Layer]


@dataclass(frozen=True)
class HalfSquares(Loss):
    """sum(output^2) / 2, so that the output's delta is the output itself."""

    kernel: ClassVar[str] = "blob/copy"

    def check(self, output: Shape) -> None:
        """Any shape will do."""

    def calls(self, output: Blob, delta: Blob | None, tuning: Tuning) -> list[KernelCall]:
        assert delta
        return copy_call("loss", output, delta, tuning)


# It is no loss of blobnet's: files must not name it.
del Loss.kinds["HalfSquares"]


def random_graph(seed: int, size: int, others: Sequence[MakeLayer] = ()) -> Graph:
    """A graph of up to ``size`` layers; who reads whom is random, and one may be read twice by the same layer."""
    generator = np.random.default_rng(seed)
    first = [Input(2, 3, 5), Input(3, width=7), Input(4)][seed % 3]()
    nodes = [first]
    functions = [name for name in ACTIVATIONS if name not in ("relu6", "softplus", "elu")]

    def some(candidates: Sequence[Node], count: int) -> list[Node]:
        # Later nodes rather than earlier ones: deep graphs, with some long connections.
        weights = np.arange(1, len(candidates) + 1, dtype=float) ** 2
        return [candidates[index] for index in generator.choice(len(candidates), count, p=weights / weights.sum())]

    while len(nodes) < size:
        source = some(nodes, 1)[0]
        planes = (source.shape.height, source.shape.width, source.shape.rank)
        same_planes = [node for node in nodes if (node.shape.height, node.shape.width, node.shape.rank) == planes]
        same_shape = [node for node in same_planes if node.shape == source.shape]
        kind = str(generator.choice(["activation", "other", "add", "concat", "flatten"], p=[0.3, 0.2, 0.25, 0.2, 0.05]))
        if kind == "other" and others:
            nodes.append(others[int(generator.integers(len(others)))](generator)(source))
        elif kind in ("activation", "other"):
            nodes.append(Activation(str(generator.choice(functions)))(source))
        elif kind == "add":
            nodes.append(Add()([source, *some(same_shape, int(generator.integers(1, 3)))]))
        elif kind == "concat" and source.shape.units < 20:
            nodes.append(Concat()([source, *some(same_planes, int(generator.integers(1, 3)))]))
        elif kind == "flatten":
            nodes.append(Flatten()(source))
    return from_nodes(first, nodes[-1])


def residual_graph() -> Graph:
    """Two residual blocks, the second with an activation on the way around."""
    first = Input(2, 4, 5)()
    node = Activation("tanh")(first)
    node = node + Activation("sigmoid")(Activation("relu")(node))
    around = Activation("gelu")(node)
    node = around + Activation("sigmoid")(Activation("silu")(node))
    return from_nodes(first, Activation("relu")(node))


def dense_graph() -> Graph:
    """A dense block: each step reads all units before it, and adds some to them."""
    first = Input(2, 4, 5)()
    node = Activation("tanh")(first)
    for function in ("sigmoid", "elu", "tanh"):
        node = Concat()([node, Activation(function)(node)])
    return from_nodes(first, Activation("relu")(node))


def nested_graph() -> Graph:
    """Branches joined by Concat, within another Concat."""
    first = Input(2, 4, 5)()
    stem = Activation("tanh")(first)
    inner = Concat()([Activation("relu")(stem), Activation("sigmoid")(stem)])
    outer = Concat()([Activation("elu")(stem), inner, Activation("softplus")(stem)])
    return from_nodes(first, Activation("tanh")(outer))


def training_plan(graph: Graph, count: int, *, share: bool, reuse: bool, tuning: Tuning | None = None) -> Plan:
    """The plan of a training step that also gives dL/d input."""
    return make_plan(
        graph, count, loss=HalfSquares(), training=True, input_delta=True, tuning=tuning, share=share, reuse=reuse
    )


def random_samples(graph: Graph, count: int) -> FloatArray:
    """``count`` samples for the input of a graph."""
    shape = graph.input.shape
    values = np.random.default_rng(1).standard_normal((count, shape.units, shape.height, shape.width))
    return values.astype(np.float32)


def reference(graph: Graph, samples: FloatArray) -> tuple[Float64Array, Float64Array]:
    """(output, dL/d input) of sum(output^2) / 2."""
    values = [samples.astype(np.float64)]
    for vertex in graph.vertices[1:]:
        values.append(_forward(vertex, [values[source] for source in vertex.inputs]))
    deltas = [np.zeros_like(value) for value in values]
    deltas[-1] = values[-1]
    for vertex in reversed(graph.vertices[1:]):
        pieces = _backward(vertex, [values[source] for source in vertex.inputs], deltas[vertex.index])
        for source, piece in zip(vertex.inputs, pieces, strict=True):
            deltas[source] = deltas[source] + piece
    return values[-1], deltas[0]


def _forward(vertex: Vertex, inputs: list[Float64Array]) -> Float64Array:
    layer: Any = vertex.layer
    if isinstance(layer, Activation):
        return ACTIVATIONS[layer.function][0](inputs[0])
    if isinstance(layer, Flatten):
        return inputs[0].reshape(len(inputs[0]), -1, 1, 1)
    if isinstance(layer, Add):
        return joins.add(inputs)
    if isinstance(layer, Concat):
        return joins.concat(inputs)
    result: Float64Array = layer.reference_forward(inputs[0])
    return result


def _backward(vertex: Vertex, inputs: list[Float64Array], delta: Float64Array) -> list[Float64Array]:
    layer: Any = vertex.layer
    if isinstance(layer, Activation):
        return [ACTIVATIONS[layer.function][1](inputs[0], delta)]
    if isinstance(layer, Flatten):
        return [delta.reshape(inputs[0].shape)]
    if isinstance(layer, Add):
        return joins.add_backward(inputs, delta)
    if isinstance(layer, Concat):
        return joins.concat_backward(inputs, delta)
    return [layer.reference_backward(inputs[0], delta)]
