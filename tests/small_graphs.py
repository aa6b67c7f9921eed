"""Small graphs, known ones and random ones of all kinds of layers, for tests of plans (no OpenCL here)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from blobnet import layers
from blobnet.layers import Layer, Node
from blobnet.layers.activation import ACTIVATIONS
from blobnet.network.graph import Graph, from_nodes


def _plain() -> Graph:
    """Everything that a plain network has, with sizes that are not round."""
    images = layers.Input(2, 9, 7)()
    node = layers.Conv2D(5, 3, padding="same", activation="relu")(images)
    node = layers.MaxPool2D(2)(node)
    node = layers.BatchNorm()(layers.Conv2D(3, (2, 3), padding=((1, 0), (0, 2)), bias=False)(node))
    node = layers.AveragePool2D(2, 1, count_include_pad=False)(layers.Activation("gelu")(node))
    node = layers.Dense(11, activation="tanh")(layers.Flatten()(layers.Dropout(0.3)(node)))
    return from_nodes(images, layers.Dense(3)(layers.Dropout(0.5)(node)))


def _residual() -> Graph:
    """Residual blocks, one as it is and one with a projection at half the size."""
    images = layers.Input(2, 6, 5)()
    node = layers.Conv2D(4, 3, padding=1, activation="relu")(images)
    branch = layers.BatchNorm()(layers.Conv2D(4, 3, padding=1, bias=False)(node))
    node = layers.Activation("relu")(branch + node)
    branch = layers.Conv2D(4, 3, stride=2, padding=1, activation="relu")(node)
    branch = layers.BatchNorm()(layers.Conv2D(4, 3, padding=1, bias=False)(branch))
    node = layers.Activation("relu")(layers.BatchNorm()(layers.Conv2D(4, 1, stride=2)(node)) + branch)
    return from_nodes(images, layers.Dense(3)(layers.GlobalAveragePool()(node)))


def _dense_blocks() -> Graph:
    """Each convolution reads all units before it; joins of joins."""
    images = layers.Input(2, 5, 6)()
    node = images
    for units in (2, 3, 2):
        branch = layers.Activation("relu")(layers.BatchNorm()(node))
        node = layers.Concat()([node, layers.Conv2D(units, 3, padding="same", bias=False)(branch)])
    return from_nodes(images, layers.Dense(3)(layers.Flatten()(layers.AveragePool2D(2)(node))))


def _three_readers() -> Graph:
    """A blob that a convolution, a pooling layer and a sum read."""
    images = layers.Input(2, 5, 5)()
    node = layers.Conv2D(3, 2, activation="tanh")(images)
    parts = [layers.Conv2D(3, 3, padding=1)(node), layers.MaxPool2D(3, 1, padding=1)(node), node]
    return from_nodes(images, layers.Dense(3)(layers.Add()(parts)))


def _twice() -> Graph:
    """A blob added to itself, as it is and through layers that launch nothing."""
    images = layers.Input(2, 3, 5)()
    node = layers.Conv2D(3, 3, padding=1)(images)
    node = layers.Activation("sigmoid")(node + node)
    flat = layers.Flatten()(node)
    return from_nodes(images, layers.Dense(3)(layers.Add()([flat, flat, layers.Flatten()(node)])))


def _inplace_around_concat() -> Graph:
    """Activations in place before and after a join, one of whose parts is read elsewhere too."""
    images = layers.Input(2, 5, 4)()
    first = layers.Conv2D(2, 3, padding=1, activation="relu")(images)
    second = layers.Activation("tanh")(layers.BatchNorm()(layers.Conv2D(3, 1)(images)))
    joined = layers.Activation("leaky_relu")(layers.Concat()([first, second]))
    node = layers.Conv2D(3, 3, padding=1)(joined) + second
    return from_nodes(images, layers.Dense(3)(layers.Dropout(0.25)(node)))


def _concats_share() -> Graph:
    """Two joins that share an input, joined again."""
    images = layers.Input(2, 4, 5)()
    shared = layers.Conv2D(2, 3, padding=1, activation="relu")(images)
    first = layers.Concat()([shared, layers.Conv2D(1, 1)(images)])
    second = layers.Concat()([layers.Conv2D(2, 2, padding=((0, 1), (1, 0)))(images), shared])
    node = layers.Concat()([layers.Conv2D(2, 1)(first), second, first])
    return from_nodes(images, layers.Dense(3)(layers.Flatten()(node)))


def _one_dimension() -> Graph:
    """A network of signals."""
    signals = layers.Input(3, width=17)()
    node = layers.Conv1D(4, 5, padding="same", activation="relu")(signals)
    node = layers.Conv1D(4, 3, stride=2, dilation=2, padding=(1, 2), groups=2)(layers.MaxPool1D(2)(node))
    node = layers.AveragePool1D(3, 1, padding=1)(layers.BatchNorm()(node))
    return from_nodes(signals, layers.Dense(3)(layers.Flatten()(layers.Dropout(0.25)(node))))


def _depthwise() -> Graph:
    """Depthwise and pointwise convolutions with a stride larger than the filter, and a bias for each position."""
    images = layers.Input(3, 7, 8)()
    node = layers.Conv2D(3, 3, padding=1, groups=3, bias="position")(images)
    node = layers.Activation("silu")(layers.Conv2D(5, 1, stride=(2, 3))(node))
    return from_nodes(images, layers.Dense(3)(layers.Activation("softmax")(node)))


def _few_positions() -> Graph:
    """Many units at four positions, two, and one."""
    signals = layers.Input(3, width=4)()
    node = layers.Conv1D(130, 3, padding="same", activation="relu")(signals)
    node = layers.Conv1D(130, 3, activation="relu")(node)
    return from_nodes(signals, layers.Dense(3)(layers.Conv1D(4, 2)(node)))


def _many_units() -> Graph:
    """As many units and positions as it takes for minimal filtering."""
    images = layers.Input(2, 24, 28)()
    node = layers.Conv2D(64, 1, activation="relu")(images)
    node = layers.Conv2D(64, 3, padding="same", activation="relu")(node)
    return from_nodes(images, layers.Dense(3)(layers.GlobalAveragePool()(node)))


def _many_taps() -> Graph:
    """Filters as large as it takes for transforms of Fourier."""
    images = layers.Input(2, 6, 9)()
    node = layers.Conv2D(4, 5, padding=2, activation="relu")(images)
    return from_nodes(images, layers.Dense(3)(layers.Conv2D(3, 4, padding=(1, 2), bias=False)(node)))


def _small_planes() -> Graph:
    """Many units on planes of a few cells."""
    images = layers.Input(3, 2, 2)()
    node = layers.Conv2D(60, 3, padding=1, activation="relu")(images)
    node = layers.Conv2D(64, 3, padding=1, bias=False)(node)
    return from_nodes(images, layers.Dense(3)(layers.GlobalAveragePool()(node)))


def _vectors() -> Graph:
    """A network without planes."""
    rows = layers.Input(5)()
    node = layers.Dense(7, activation="elu")(rows)
    node = layers.BatchNorm()(layers.Concat()([node, rows]))
    return from_nodes(rows, layers.Dense(3)(layers.Dense(12, activation="softplus")(node) + node))


def _parts() -> Graph:
    """Units cut in parts, parts of parts, some of which nobody reads, or two read."""
    images = layers.Input(2, 5, 4)()
    node = layers.Conv2D(7, 3, padding=1, activation="tanh")(images)
    first, second, third = layers.split(node, [2, 3, 2])
    gates = layers.Activation("sigmoid")(layers.Conv2D(3, 3, padding=1)(first))
    node = layers.Concat()([gates + second, third])
    inner, outer = layers.split(layers.Conv2D(6, 1)(node), [4, 2])
    left, right = layers.split(inner, [3, 1])
    ends = [layers.Conv2D(2, 2)(left), layers.Activation("relu")(layers.Conv2D(2, 2)(right))]
    cut = layers.Conv2D(5, 2, activation="elu")(layers.Concat()([outer, left]))
    ends += [layers.Slice(((1, 3, None),))(cut), layers.Slice(((2, -1, 1), None))(cut)]
    return from_nodes(images, layers.Dense(3)(layers.Flatten()(layers.Concat()(ends))))


KNOWN_GRAPHS: dict[str, Callable[[], Graph]] = {
    "plain": _plain,
    "residual": _residual,
    "dense blocks": _dense_blocks,
    "three readers": _three_readers,
    "twice": _twice,
    "in place around concat": _inplace_around_concat,
    "concats that share": _concats_share,
    "one dimension": _one_dimension,
    "depthwise": _depthwise,
    "few positions": _few_positions,
    "many units": _many_units,
    "many taps": _many_taps,
    "small planes": _small_planes,
    "vectors": _vectors,
    "parts": _parts,
}

#: Those whose gradients are compared with PyTorch's: all but one whose layers and joins the others have too, since
#: programs take long to build.
COMPARED_GRAPHS = [name for name in KNOWN_GRAPHS if name != "dense blocks"]

#: Kinds of steps, and how often they come.
_STEPS = {
    "activation": 5,
    "add": 5,
    "concat": 5,
    "flatten": 1,
    "slice": 3,
    "dropout": 2,
    "norm": 3,
    "convolution": 5,
    "pool": 2,
    "global pool": 1,
    "dense": 1,
}
_MAX_UNITS = 9


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
        return joined(layers.Concat(), same_units=False) if shape.units <= _MAX_UNITS else None
    if kind == "flatten":
        return layers.Flatten()(source)
    if kind == "slice":
        first, last = sorted(generator.choice(shape.units + 1, 2, replace=False).tolist())
        if generator.random() < 0.5:
            return layers.Slice(((first, last, None),))(source)
        for part in layers.split(source, [last, shape.units - last] if last < shape.units else [last]):
            nodes.append(part)
        return None
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
