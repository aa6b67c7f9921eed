"""Random small graphs of all kinds of layers, for tests of plans (no OpenCL here)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from blobnet import layers
from blobnet.graph import Graph, from_nodes
from blobnet.layers import Layer, Node
from blobnet.layers.activation import ACTIVATIONS

#: Kinds of steps, and how often they come.
_STEPS = {
    "activation": 5,
    "add": 5,
    "concat": 5,
    "flatten": 1,
    "dropout": 2,
    "norm": 3,
    "convolution": 5,
    "pool": 2,
    "global pool": 1,
    "dense": 1,
}
_MOST_UNITS = 9


def random_graph(seed: int, steps: int | None = None) -> Graph:
    """A graph with many readers, joins of joins and odd sizes; half of the graphs end in a Dense, and give 3 values."""
    generator = np.random.default_rng([20, seed])
    images = [layers.Input(2, 5, 4), layers.Input(3, 4, 7), layers.Input(3, width=7), layers.Input(5)][seed % 4]()
    nodes = [images]
    for _ in range(steps or int(generator.integers(4, 15))):
        kind = str(generator.choice(list(_STEPS), p=np.array(list(_STEPS.values())) / sum(_STEPS.values())))
        node = _step(kind, nodes, generator)
        if node is not None:
            nodes.append(node)
    read = {id(source) for node in nodes for source in node.inputs}
    ends = [node for node in nodes if id(node) not in read]
    flat = [_flat(node, generator) for node in ends]
    last = flat[0] if len(flat) == 1 else layers.Concat()(flat)
    if generator.random() < 0.5 or not last.inputs:
        last = layers.Dense(3)(last)
    return from_nodes(images, last)


def _flat(node: Node, generator: np.random.Generator) -> Node:
    if not node.shape.rank:
        return node
    layer: Layer = layers.Flatten() if generator.random() < 0.5 else layers.GlobalAveragePool()
    return layer(node)


def _some(candidates: Sequence[Node], count: int, generator: np.random.Generator) -> list[Node]:
    # Later nodes rather than earlier ones: deep graphs, with some long connections. One may come twice.
    weights = np.arange(1, len(candidates) + 1, dtype=float) ** 2
    return [candidates[index] for index in generator.choice(len(candidates), count, p=weights / weights.sum())]


def _step(kind: str, nodes: list[Node], generator: np.random.Generator) -> Node | None:
    source = _some(nodes, 1, generator)[0]
    shape = source.shape

    def joined(layer: Layer, *, same_units: bool) -> Node:
        planes = (shape.height, shape.width, shape.rank)
        fitting = [node for node in nodes if (node.shape.height, node.shape.width, node.shape.rank) == planes]
        if same_units:
            fitting = [node for node in fitting if node.shape == shape]
        return layer([source, *_some(fitting, int(generator.integers(1, 3)), generator)])

    if kind == "activation":
        return layers.Activation(str(generator.choice(ACTIVATIONS)))(source)
    if kind == "add":
        return joined(layers.Add(), same_units=True)
    if kind == "concat":
        return joined(layers.Concat(), same_units=False) if shape.units <= _MOST_UNITS else None
    if kind == "flatten":
        return layers.Flatten()(source)
    if kind == "dropout":
        return layers.Dropout(float(generator.choice([0.25, 0.5])))(source)
    if kind == "norm":
        return layers.BatchNorm()(source)
    if kind == "dense":
        return layers.Dense(int(generator.integers(1, 5)), activation=_maybe_activation(generator))(source)
    if shape.rank == 0:
        return None
    if kind == "global pool":
        return layers.GlobalAveragePool()(source)
    return _pool(source, generator) if kind == "pool" else _convolution(source, generator)


def _maybe_activation(generator: np.random.Generator) -> str | None:
    return str(generator.choice(["relu", "tanh", "gelu"])) if generator.random() < 0.5 else None


def _convolution(source: Node, generator: np.random.Generator) -> Node:
    shape = source.shape
    groups = shape.units if generator.random() < 0.2 else 1
    # Mostly convolutions that keep the planes, so that there is something to add and to join.
    keeps = generator.random() < 0.7
    layer = (layers.Conv2D if shape.rank == 2 else layers.Conv1D)(
        filters=shape.units if groups > 1 or generator.random() < 0.5 else int(generator.integers(1, 5)),
        kernel_size=int(generator.integers(1, 4)),
        stride=1 if keeps else int(generator.integers(1, 4)),
        padding="same" if keeps else int(generator.integers(1, 3)),
        dilation=int(generator.integers(1, 3)) if min(shape.dimensions[1:]) > 2 else 1,
        groups=groups,
        bias=bool(generator.random() < 0.5),
        activation=_maybe_activation(generator),
    )
    fits = keeps or all(size + 2 >= 5 for size in shape.dimensions[1:])
    return layer(source) if fits else layers.BatchNorm()(source)


def _pool(source: Node, generator: np.random.Generator) -> Node | None:
    shape = source.shape
    if min(shape.dimensions[1:]) < 2:
        return None
    window, stride = int(generator.integers(2, 4)), int(generator.integers(1, 3))
    most = generator.random() < 0.5
    if shape.rank == 2:
        return (layers.MaxPool2D if most else layers.AveragePool2D)(window, stride, padding=1)(source)
    return (layers.MaxPool1D if most else layers.AveragePool1D)(window, stride, padding=1)(source)
