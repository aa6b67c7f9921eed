"""Random networks of all layers, losses and optimizers, against PyTorch in float64.

    python -m tests.random_networks --count 2000 --seed 0
    python -m tests.random_networks --count 500 --precision bf16

makes the networks of seeds 0 to 1999: each with several inputs and outputs, layers in several places, frozen parts,
weights of samples and classes, and labels to ignore. It compares gradients, three steps of training, the losses of
these and of an evaluation, and predictions. ``--seed N --count 1`` makes the network alone that a failure names. In
bf16 and fp16 it compares gradients and predictions with PyTorch's in float64 that rounds each value and each delta
between layers to that type.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from blobnet import layers, losses, optimizers
from blobnet.device.device import Device
from blobnet.errors import ShapeError
from blobnet.layers import Layer, Node
from blobnet.layers.activation import ACTIVATIONS
from blobnet.memory.blob import Shape
from blobnet.model import Model
from tests import torch_graphs
from tests.torch_graphs import CHARBONNIER, CONTRACTIONS, Network, loss_sums, optimizer_of

Arrays = dict[str, Any]

#: Values of a sample, and units, that a layer may have at most.
_MAX_ELEMENTS, _MAX_UNITS = 240, 12
_STEPS = 3
#: What each result may differ by: so many times what rounding does to PyTorch's, and over its largest value.
_TIMES, _LEAST = 30.0, 2e-5
#: The part of a layer's largest gradient below which float64 has nothing but its own rounding.
_CANCELLED = 2.0**-40
#: What an output is rounded to: of float32, and of what is kept in a narrower type.
_ROUNDING, _NARROW = 2.0**-23, {"float16": 2.0**-11, "bfloat16": 2.0**-8}
#: Precisions that keep such types between layers, and the same of a result there.
STORAGE_OF, _TIMES_NARROW = {"bf16": "bfloat16", "fp16": "float16"}, 8.0


# -- networks ----------------------------------------------------------------------------------------------------------


class Builder:
    """A network that grows by random layers."""

    def __init__(self, random: np.random.Generator) -> None:
        self.random = random
        self.nodes: list[Node] = []
        self.made: list[tuple[Layer, list[Shape]]] = []

    def integer(self, least: int, most: int) -> int:
        return int(self.random.integers(least, most + 1))

    def flag(self, chance: float = 0.5) -> bool:
        return bool(self.random.random() < chance)

    def pick(self, *choices: Any) -> Any:
        return choices[int(self.random.integers(len(choices)))]

    def source(self, fits: Callable[[Shape], bool] = lambda shape: True) -> Node | None:
        """One of the nodes, the later the rather."""
        found = [node for node in self.nodes if fits(node.shape)]
        if not found:
            return None
        weights = np.arange(1, len(found) + 1, dtype=float) ** 3
        return found[int(self.random.choice(len(found), p=weights / weights.sum()))]

    def like(self, layer: Layer, node: Node, most: int = 2) -> list[Node]:
        """The node, and others that go together with it in the layer."""

        def goes(other: Node) -> bool:
            try:
                return layer.output_shape([item.shape for item in (*some, other)]).elements <= _MAX_ELEMENTS
            except ShapeError:
                return False

        some = [node]
        for _ in range(self.integer(1, most)):
            found = [other for other in self.nodes if goes(other)]
            some += [self.pick(*found)] if found else []
        self.random.shuffle(some)  # type: ignore[arg-type]
        return some

    def put(self, layer: Layer, *nodes: Node) -> Node:
        """The layer behind nodes; now and then a layer of its kind that stands elsewhere already."""
        shapes = [node.shape for node in nodes]
        same = [known for known, own in self.made if known.kind == layer.kind and own == shapes]
        if same and self.flag(0.3):
            layer = self.pick(*same)
        self.made.append((layer, shapes))
        return layer(*nodes)

    def values(self, *shape: int) -> Any:
        return self.random.standard_normal(shape).astype(np.float32)

    def step(self) -> None:
        """Adds a layer, or does not where it does not fit."""
        kind = self.pick(*(kind for kind in GENERATED for _ in range(_OFTEN.get(kind, 1))))
        made = GENERATED[kind](self)
        for node in [made] if isinstance(made, Node) else made or []:
            if node.shape.elements <= _MAX_ELEMENTS and node.shape.units <= _MAX_UNITS:
                self.nodes.append(node)


Made = Node | list[Node] | None


def _any(make: Callable[[Builder, Shape], Layer], least: int = 0, most: int = 3) -> Callable[[Builder], Made]:
    """A layer of one input with so many axes."""

    def step(builder: Builder) -> Made:
        node = builder.source(lambda shape: least <= shape.rank <= most)
        return None if node is None else builder.put(make(builder, node.shape), node)

    return step


def _activation(builder: Builder, shape: Shape) -> Layer:
    name = builder.pick(*ACTIVATIONS)
    if name == "relu" and builder.flag(0.3):
        return layers.Activation("relu", limit=1.5)
    return layers.Activation(name, slope=0.2 if name == "leaky_relu" and builder.flag() else None)


def _maybe_activation(builder: Builder) -> str | None:
    return builder.pick(None, None, "relu", "tanh", "gelu", "leaky_relu(0.2)", "softmax")


def _sides(builder: Builder, rank: int, most: int) -> Any:
    """Padding of a window in all the ways to say it."""
    kind = builder.pick("one", "one", "same", "valid", "pairs")
    if kind == "one":
        return builder.integer(0, most)
    if kind in ("same", "valid"):
        return kind
    pairs = tuple((builder.integer(0, most), builder.integer(0, most)) for _ in range(rank))
    return pairs[0] if rank == 1 else pairs


def _sizes(builder: Builder, rank: int, least: int, most: int) -> Any:
    if builder.flag():
        return builder.integer(least, most)
    sizes = tuple(builder.integer(least, most) for _ in range(rank))
    return sizes[0] if rank == 1 else sizes


def _groups(builder: Builder, units: int) -> tuple[int, int]:
    """Groups, and filters that they divide."""
    groups = builder.pick(*(count for count in range(1, units + 1) if units % count == 0))
    return groups, groups * builder.integer(1, max(1, 6 // groups))


def _convolution(rank: int) -> Callable[[Builder], Made]:
    kind: Any = getattr(layers, f"Conv{rank}D")

    def make(builder: Builder, shape: Shape) -> Layer:
        groups, filters = _groups(builder, shape.units)
        small = min(shape.sizes)
        layer: Layer = kind(
            filters,
            _sizes(builder, rank, 1, min(3, small)),
            stride=builder.pick(1, 1, 1, _sizes(builder, rank, 1, 3)),
            padding=_sides(builder, rank, 2),
            dilation=2 if small >= 5 and builder.flag(0.3) else 1,
            groups=groups,
            bias=builder.pick(True, True, False, *["position"] * (rank < 3)),
            activation=_maybe_activation(builder),
        )
        return layer

    return _any(make, rank, rank)


def _transposed(rank: int) -> Callable[[Builder], Made]:
    kind: Any = getattr(layers, f"ConvTranspose{rank}D")

    def make(builder: Builder, shape: Shape) -> Layer:
        groups, filters = _groups(builder, shape.units)
        kernel, stride = builder.integer(1, 3), builder.integer(1, 3)
        layer: Layer = kind(
            filters,
            kernel,
            stride=stride,
            padding=builder.integer(0, 1) if kernel > 2 or (kernel == 2 and min(shape.sizes) > 1) else 0,
            output_padding=builder.integer(0, stride - 1),
            groups=groups,
            bias=builder.flag(),
            activation=_maybe_activation(builder),
        )
        return layer

    return _any(make, rank, rank)


def _pool(rank: int, what: str) -> Callable[[Builder], Made]:
    kind: Any = getattr(layers, f"{what}Pool{rank}D")

    def make(builder: Builder, shape: Shape) -> Layer:
        small = min(shape.sizes)
        window, stride = builder.integer(1, min(3, small)), builder.pick(None, 1, 2, 3)
        padding = builder.pick(0, window // 2, "same", "valid")
        if padding not in ("same", "valid") and window > 1 and builder.flag(0.3):
            pairs = tuple((builder.integer(0, window - 1), builder.integer(0, window - 1)) for _ in range(rank))
            padding = pairs[0] if rank == 1 else pairs
        options: dict[str, Any] = {}
        if what == "Average":
            options["count_include_pad"] = builder.flag()
        elif rank < 3 and isinstance(padding, int):
            options["ceil_mode"] = builder.flag()
        layer: Layer = kind(window, stride, padding, **options)
        return layer

    return _any(make, rank, rank)


def _join(kind: Any) -> Callable[[Builder], Made]:
    def step(builder: Builder) -> Made:
        node = builder.source()
        assert node is not None
        layer: Layer = kind()
        if builder.flag(0.3) and kind in (layers.Add, layers.Multiply):
            return layer([node, _constant_like(builder, node.shape)])
        inputs = builder.like(layer, node, 1 if kind is layers.Interleave else 2)
        return builder.put(layer, *inputs) if len(inputs) > 1 else None

    return step


def _constant_like(builder: Builder, shape: Shape) -> Node:
    sizes = [1 if builder.flag(0.3) else size for size in shape.dimensions]
    sizes = builder.pick(sizes, [shape.units], list(shape.dimensions))
    return layers.Constant(builder.values(*sizes), trainable=builder.flag())()


def _constant(builder: Builder) -> Made:
    """Values of no sample, which other layers may take as any others."""
    sizes = [builder.integer(1, 5) for _ in range(builder.integer(1, 4))]
    return layers.Constant(builder.values(*sizes), trainable=builder.flag())() if builder.flag(0.3) else None


def _contraction(builder: Builder) -> Made:
    text = builder.pick(*CONTRACTIONS)
    node = builder.source()
    assert node is not None
    sizes = {"F": builder.integer(1, 5)} if "F, C" in text else {}
    layer = layers.Contraction(text, sizes=sizes)
    if "B[" not in text:
        return layer(node)
    inputs = builder.like(layer, node, 1)
    return layer(inputs if len(inputs) == 2 else [node, node])


def _matmul(builder: Builder) -> Made:
    first = builder.source(lambda shape: shape.rank > 0)
    if first is None:
        return None
    layer = layers.MatMul(builder.flag(), builder.flag())
    inner = first.shape.dimensions[-2 if layer.transpose_first else -1]
    known = builder.source(lambda shape: shape.rank > 0 and _multiplies(layer, first.shape, shape))
    if known is not None and builder.flag(0.7):
        return layer([first, known])
    sizes = [inner, builder.integer(1, 4)][:: -1 if layer.transpose_second else 1]
    return layer([first, layers.Constant(builder.values(*sizes), trainable=builder.flag())()])


def _multiplies(layer: Layer, first: Shape, second: Shape) -> bool:
    try:
        return layer.output_shape([first, second]).elements <= _MAX_ELEMENTS
    except ShapeError:
        return False


def _attention(builder: Builder) -> Made:
    node = builder.source(lambda shape: shape.rank == 1)
    if node is None:
        return None
    heads = builder.pick(*(count for count in (1, 2, 3) if node.shape.units % count == 0))
    layer = layers.MultiHeadAttention(heads, bias=builder.flag(0.7), causal=builder.flag(0.3))
    others = [other for other in builder.nodes if other.shape.rank == 1]
    inputs = [node]
    if builder.flag():
        keys = builder.pick(*others)
        same = [other for other in others if other.shape.width == keys.shape.width]
        inputs += [keys, *([builder.pick(*same)] if builder.flag() else [])]
    return layer(inputs)


def _reshape(builder: Builder, shape: Shape) -> Layer:
    factors = [factor for factor in range(2, shape.elements + 1) for _ in range(_times(shape.elements, factor))]
    sizes = [1] * builder.integer(1, 4)
    for factor in factors:
        sizes[builder.integer(0, len(sizes) - 1)] *= factor
    return layers.Reshape(tuple(sizes))


def _times(number: int, factor: int) -> int:
    """How often a prime divides a number."""
    if any(factor % other == 0 for other in range(2, factor)):
        return 0
    found = 0
    while number % factor == 0:
        number, found = number // factor, found + 1
    return found


def _permute(builder: Builder, shape: Shape) -> Layer:
    return layers.Permute(tuple(int(axis) for axis in builder.random.permutation(1 + shape.rank)))


def _pad(builder: Builder, shape: Shape) -> Layer:
    if builder.flag():
        return layers.Pad(1)
    pairs = [(builder.integer(0, 2), builder.integer(0, 2)) for _ in range(shape.rank)]
    return layers.Pad(tuple(builder.pick(pair, pair[0]) for pair in pairs))


def _slice(builder: Builder) -> Made:
    node = builder.source()
    assert node is not None
    shape = node.shape
    if builder.flag(0.3) and shape.units > 1:
        first = builder.integer(1, shape.units - 1)
        return layers.split(node, [first, shape.units - first])
    ranges: list[Any] = []
    for size in shape.dimensions:
        start = builder.integer(0, size - 1)
        stop = builder.integer(start + 1, size)
        ranges.append(builder.pick(None, (start, stop), (start - size, None), (start, stop, 2), (None, stop)))
    whole = builder.flag()  # Units alone: those are read where they lie.
    return layers.Slice((ranges[0] or (0, 1),) if whole else tuple(ranges[: builder.integer(1, len(ranges))]))(node)


def _groups_of(builder: Builder, shape: Shape) -> Layer:
    counts = [count for count in range(1, shape.units + 1) if shape.units % count == 0]
    if not shape.rank:
        counts = [count for count in counts if count < shape.units]
    if not counts:
        return layers.LayerNorm(1e-2)
    return layers.GroupNorm(builder.pick(*counts), 1e-2, affine=builder.flag(0.7))


def _instances(builder: Builder) -> Made:
    node = builder.source(lambda shape: shape.positions > 1)
    return None if node is None else builder.put(layers.InstanceNorm(1e-2, affine=builder.flag(0.7)), node)


def _depth_to_space(builder: Builder) -> Made:
    node = builder.source(lambda shape: shape.rank == 2 and shape.units % 4 == 0)
    return None if node is None else builder.put(layers.DepthToSpace(2), node)


def _space_to_depth(builder: Builder) -> Made:
    node = builder.source(lambda shape: shape.rank == 2 and shape.height % 2 == shape.width % 2 == 0)
    return None if node is None else builder.put(layers.SpaceToDepth(2), node)


def _recurrent(kind: type[Layer]) -> Callable[[Builder], Made]:
    def make(builder: Builder) -> Made:
        node = builder.source(lambda shape: shape.rank == 1)
        if node is None:
            return None
        direction = builder.pick({}, {"bidirectional": True}, {"reverse": True})
        options = {"bias": builder.flag(0.7), "return_sequences": builder.flag(0.7), **direction}
        return kind(builder.integer(1, 4), **options)(node)

    return make


def _batch_norm(builder: Builder, shape: Shape) -> Layer:
    # A large epsilon: units that are constant would make rounding errors large.
    return layers.BatchNorm(builder.pick(0.1, 0.5, 1.0), builder.pick(1e-2, 0.1))


def _upsample(builder: Builder, shape: Shape) -> Layer:
    return layers.Upsample(builder.pick(2, 1, 3) if shape.rank > 1 else 2, builder.pick("nearest", "bilinear"))


#: How layers of each kind are made.
GENERATED: dict[str, Callable[[Builder], Made]] = {
    **{f"Conv{rank}D": _convolution(rank) for rank in (1, 2, 3)},
    **{f"ConvTranspose{rank}D": _transposed(rank) for rank in (1, 2, 3)},
    **{f"{what}Pool{rank}D": _pool(rank, what) for what in ("Max", "Average") for rank in (1, 2, 3)},
    "Activation": _any(_activation),
    "AdaptiveAveragePool": _any(lambda builder, shape: layers.AdaptiveAveragePool(builder.integer(1, 3)), 1),
    "AdaptiveMaxPool": _any(lambda builder, shape: layers.AdaptiveMaxPool(builder.integer(1, 3)), 1),
    "Add": _join(layers.Add),
    "BatchNorm": _any(_batch_norm),
    "Concat": _join(layers.Concat),
    "Constant": _constant,
    "Contraction": _contraction,
    "Dense": _any(
        lambda builder, shape: layers.Dense(
            builder.integer(1, 7), bias=builder.flag(0.7), activation=_maybe_activation(builder)
        )
    ),
    "DepthToSpace": _depth_to_space,
    "Dropout": _any(lambda builder, shape: layers.Dropout(builder.pick(0.25, 0.5))),
    "Flatten": _any(lambda builder, shape: layers.Flatten()),
    "GRU": _recurrent(layers.GRU),
    "GlobalAveragePool": _any(lambda builder, shape: layers.GlobalAveragePool()),
    "GlobalMaxPool": _any(lambda builder, shape: layers.GlobalMaxPool(), 1),
    "GroupNorm": _any(_groups_of),
    "InstanceNorm": _instances,
    "Interleave": _join(layers.Interleave),
    "LSTM": _recurrent(layers.LSTM),
    "LayerNorm": _any(lambda builder, shape: layers.LayerNorm(1e-2, affine=builder.flag(0.7))),
    "LocalResponseNorm": _any(lambda builder, shape: layers.LocalResponseNorm(builder.integer(1, 4), 0.3, 0.6, 1.5)),
    "MatMul": _matmul,
    "MultiHeadAttention": _attention,
    "Multiply": _join(layers.Multiply),
    "PReLU": _any(lambda builder, shape: layers.PReLU()),
    "Pad": _any(_pad, 1),
    "Permute": _any(_permute),
    "Reshape": _any(_reshape),
    "Scale": _any(lambda builder, shape: layers.Scale()),
    "Slice": _slice,
    "SpaceToDepth": _space_to_depth,
    "SqueezeExcite": _any(lambda builder, shape: layers.SqueezeExcite(2), 1),
    "Standardize": _any(lambda builder, shape: layers.Standardize()),
    "StochasticDepth": _any(lambda builder, shape: layers.StochasticDepth(0.4)),
    "Tokens": _any(lambda builder, shape: layers.Tokens(), 1),
    "Upsample": _any(_upsample, 1),
}
#: Kinds that come more than once as often as others: those that launches of others, and memory of others, take in.
_OFTEN = {"Activation": 5, "BatchNorm": 5, "Add": 4, "MultiHeadAttention": 4}
_OFTEN |= dict.fromkeys(("Scale", "PReLU", "Dense", "Conv2D"), 3)
_OFTEN |= dict.fromkeys(("Multiply", "Concat", "Flatten", "Slice", "GlobalAveragePool", "Conv1D", "Dropout"), 2)
#: Kinds that are no step, and why.
NOT_GENERATED = {
    "Input": "every network begins with some",
    "Embedding": "values between layers are no whole numbers",
}


def _input_shape(builder: Builder) -> Shape:
    rank = builder.pick(0, 0, 0, 1, 1, 2, 2, 3)
    units = builder.integer(1, 7 if rank == 0 else 5 - rank)
    return Shape(units, *(builder.integer(1 if builder.flag(0.2) else 3, (8, 7, 5, 4)[rank]) for _ in range(rank)))


@dataclass
class Problem:
    """A network, data, and how it is trained."""

    seed: int
    model: Model
    x: Arrays
    y: Arrays
    losses: dict[str, losses.Loss]
    loss_weights: dict[str, float]
    sample_weights: dict[str, Any]
    class_weights: dict[str, Any]
    frozen: list[str]
    optimizer: optimizers.Optimizer
    batch_size: int
    narrow: str
    precision: str = "fp32"

    def __str__(self) -> str:
        graph = self.model.graph
        lines = [f"seed {self.seed}, {self.precision}: {self.optimizer}, batches of {self.batch_size} of {self.count}"]
        lines += [f"  frozen: {', '.join(self.frozen)}"] * bool(self.frozen)
        for vertex in graph.vertices:
            inputs = ", ".join(graph.vertices[item].name for item in vertex.inputs)
            lines.append(f"  {vertex.name} {vertex.shape} = {vertex.layer}({inputs})")
        for name, loss in self.losses.items():
            own = [f"{self.loss_weights[name]} * {loss}"]
            own += ["weighted samples"] * (name in self.sample_weights)
            own += ["weighted classes"] * (name in self.class_weights)
            lines.append(f"  output {name}: {graph.outputs[name].name}, {', '.join(own)}")
        return "\n".join(lines)

    @property
    def count(self) -> int:
        """Samples."""
        return len(next(iter(self.x.values())))

    def given(self, arrays: Mapping[str, Any]) -> Any:
        """What a model takes for its outputs, or inputs: the only one by itself."""
        return next(iter(arrays.values())) if len(arrays) == 1 else dict(arrays)


def _loss_of(builder: Builder, shape: Shape) -> losses.Loss:
    options: dict[str, Any] = {"ignore": 255} if builder.flag(0.4) else {}
    smoothing = builder.pick(0.0, 0.1)
    of_classes: list[Any] = [
        lambda: losses.CrossEntropy(smoothing, **options),
        lambda: losses.Focal(builder.pick(0.0, 1.0, 2.0), smoothing, **options),
        lambda: losses.Dice(builder.pick(1.0, 0.5), **options),
    ]
    of_targets: list[Any] = [
        lambda: losses.BinaryCrossEntropy(smoothing),
        losses.MeanSquaredError,
        losses.MeanAbsoluteError,
        lambda: losses.Huber(builder.pick(0.5, 1.0)),
        lambda: losses.Expression(CHARBONNIER, {"K": shape.elements}),
    ]
    made: losses.Loss = builder.pick(*(of_targets + 2 * of_classes * (shape.units > 1)))()
    return made


def _labels_of(builder: Builder, loss: losses.Loss, shape: Shape, count: int, nothing: Any) -> Any:
    if not loss.takes_classes:
        return builder.random.random((count, *shape.dimensions)).astype(np.float32)
    labels = builder.random.integers(0, shape.units, (count, *shape.sizes))
    if loss.ignored_label is not None:
        labels[builder.random.random(labels.shape) < 0.3] = loss.ignored_label
        labels[0] = labels[nothing] = loss.ignored_label  # All of a sample, and of a batch.
    return labels


def _optimizer(builder: Builder, names: Sequence[str], *, clips: bool) -> optimizers.Optimizer:
    rate = builder.pick(0.01, 0.05)
    options: dict[str, Any] = {"weight_decay": builder.pick(0.0, 0.1), "clip_norm": builder.pick(None, None, 0.5)}
    options |= {"clip_norm": 0.5} if clips else {}
    if builder.flag(0.3) and names:
        options["rates"] = {builder.pick(*names): 0.5, "*": 1.5}
    # NOTE: large epsilons: a gradient that is 0 but for rounding would be as large a step as any.
    made: optimizers.Optimizer = builder.pick(
        lambda: optimizers.SGD(rate, **options),
        lambda: optimizers.SGD(rate, 0.9, nesterov=builder.flag(), **options),
        lambda: optimizers.RMSprop(rate, epsilon=0.1, momentum=builder.pick(0.0, 0.5), **options),
        lambda: optimizers.Adam(rate, epsilon=0.1, **options),
        lambda: optimizers.AdamW(rate, epsilon=0.1, **options),
    )()
    return made


def make_problem(seed: int, steps: int | None = None) -> Problem:
    """The network of a seed."""
    builder = Builder(np.random.default_rng([33, seed]))
    sources = {f"in{number}": layers.Input.of(_input_shape(builder))() for number in range(builder.pick(1, 1, 2, 3))}
    builder.nodes += sources.values()
    wanted = steps or builder.integer(4, 10)
    for _ in range(20 * wanted):
        if len(builder.nodes) >= len(sources) + wanted:
            break
        builder.step()
    model = Model(sources, _outputs(builder, sources))
    graph = model.graph
    weights = {}
    for name, values in model.weights.items():
        noise = builder.values(*values.shape)
        positive = name.endswith(("scale", "deviation", "running_variance"))
        weights[name] = np.abs(1 + 0.3 * noise) + 0.1 if positive else values + 0.2 * noise
    sharp = [name for name in weights if name.endswith("/query") and builder.flag(0.3)]
    for name in sharp:  # Scores of attention up to 1e5 or so.
        weights[name] *= 10 ** builder.random.uniform(0.5, 4)
    model.set_weights(weights)
    batch_size = builder.integer(2, 5)
    count = builder.integer((_STEPS - 1) * batch_size + 1, _STEPS * batch_size)
    x = {name: builder.values(count, *vertex.shape.dimensions) for name, vertex in graph.inputs.items()}
    own = {name: _loss_of(builder, vertex.shape) for name, vertex in graph.outputs.items()}
    layers_of = sorted({name.partition("/")[0] for name in graph.trainable})
    frozen = [name for name in layers_of if builder.flag(0.25)] if builder.flag(0.5) else []
    frozen += [name for name in graph.trainable if builder.flag(0.1)] if builder.flag(0.3) else []
    if len(_frozen_names(graph.trainable, frozen)) == len(graph.trainable):
        frozen = []
    # A batch of which nothing counts: that of the gradients, or of a step.
    nothing: Any = builder.pick([], [], [], slice(0, batch_size), _order(seed, count)[-batch_size:])
    return Problem(
        seed=seed,
        model=model,
        x=x,
        y={name: _labels_of(builder, loss, graph.outputs[name].shape, count, nothing) for name, loss in own.items()},
        losses=own,
        loss_weights=_some_above_zero({name: builder.pick(1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 2.0, 0.0) for name in own}),
        sample_weights={
            name: _some_above_zero(builder.random.random(count) * (builder.random.random(count) > 0.1), nothing)
            for name in own
            if builder.flag(0.3)
        },
        class_weights={
            name: _some_above_zero(builder.random.uniform(-0.3, 2, graph.outputs[name].shape.units).clip(0))
            for name, loss in own.items()
            if loss.takes_classes and builder.flag(0.3)
        },
        frozen=frozen,
        optimizer=_optimizer(builder, layers_of, clips=bool(sharp)),
        batch_size=batch_size,
        narrow=list(_NARROW)[seed % 2] if builder.flag(0.15) else "",
    )


def _order(seed: int, count: int) -> Any:
    """The samples in the order in which the training has them."""
    return np.random.default_rng([seed, 0]).permutation(count)


def _some_above_zero(weights: Any, nothing: Any = ()) -> Any:
    """Weights of which one at least counts, and as many as may be of ``nothing`` do not."""
    if isinstance(weights, dict):
        return weights if any(weights.values()) else dict.fromkeys(weights, 1.0)
    weights[nothing] = 0.0
    if not weights.any():
        weights[0] = 1.0
    return weights.astype(np.float32)


def _frozen_names(trainable: Iterable[str], frozen: Sequence[str]) -> set[str]:
    return {name for name in trainable if name in frozen or name.partition("/")[0] in frozen}


def _outputs(builder: Builder, sources: Mapping[str, Node]) -> dict[str, Node]:
    """What nobody reads, at most three nodes; and now and then one that others read, too."""
    read = {id(source) for node in builder.nodes for source in node.inputs}
    ends = [node for node in builder.nodes if id(node) not in read]
    # An input alone is no output, and nor is what does not depend on any.
    ends = [layers.Dense(builder.integer(1, 4))(node) if not node.inputs else node for node in ends]
    while len(ends) > 3:
        first, second = ends.pop(0), ends.pop(0)
        joined = layers.Concat()([node if not node.shape.rank else layers.Flatten()(node) for node in (first, second)])
        ends.append(joined)
    if not any(_has_parameters(node) for node in ends):
        ends[0] = layers.Dense(builder.integer(2, 4))(ends[0])
    inner = [node for node in builder.nodes if id(node) in read and node.inputs and node not in ends]
    if inner and builder.flag(0.4):
        ends.append(builder.pick(*inner, *(node for node in inner if not node.shape.rank)))
    return {f"out{number}": node for number, node in enumerate(ends)}


def _has_parameters(node: Node) -> bool:
    own = any(spec.trainable for spec in node.layer.parameters([item.shape for item in node.inputs]))
    return own or any(map(_has_parameters, node.inputs))


# -- both ways ---------------------------------------------------------------------------------------------------------


class Rounding(NamedTuple):
    """How PyTorch computes: in which type, with which noise, and what it rounds values between layers to."""

    dtype: str = "float64"
    noise: float = 0.0
    seed: int = 0
    storage: str = ""


def torch_results(problem: Problem, rounding: Rounding) -> Arrays:
    """All that is compared, by name."""
    graph, found = problem.model.graph, dict[str, Any]()
    frozen = _frozen_names(graph.trainable, problem.frozen)

    def network(noise: float = rounding.noise) -> Network:
        options = {"dtype": rounding.dtype, "storage": rounding.storage, "seed": rounding.seed}
        return Network(graph, problem.model.weights, frozen=frozen, noise=noise, **options)

    def total(own: Network, outputs: Arrays, rows: Any, *, weighted: bool) -> tuple[Any, dict[str, tuple[Any, float]]]:
        sums = {}
        for name, loss in problem.losses.items():
            weights = (problem.sample_weights.get(name), problem.class_weights.get(name)) if weighted else (None, None)
            of_samples = None if weights[0] is None else weights[0][rows]
            sums[name] = loss_sums(loss, outputs[name], problem.y[name][rows], of_samples, weights[1])
        parts = [problem.loss_weights[name] * value / (weight or 1.0) for name, (value, weight) in sums.items()]
        return sum(parts), sums

    # Gradients of the first batch, at the largest scale of the loss at which they are finite.
    rows, scale = np.arange(problem.batch_size), 2.0**17 if rounding.storage == "float16" else 2.0
    while scale > 1 and not (found and all(map(_is_finite, found.values()))):
        own, scale = network(), scale / 2
        x = {name: own.tensor(values[rows]).requires_grad_() for name, values in problem.x.items()}
        loss, _ = total(own, own.outputs(x, training=True, seed=5), rows, weighted=False)
        (loss * scale).backward()
        read = {name: own.tensors[name] for name in own.trained} | x
        found |= {f"gradient of {name}": item.grad / scale for name, item in read.items() if item.grad is not None}
        found |= {f"gradient of {name}": np.zeros(1) for name, item in read.items() if item.grad is None}
    if problem.precision != "fp32":
        own = network()
        outputs = own.outputs({name: own.tensor(values) for name, values in problem.x.items()}, training=False)
        return _arrays(found | {f"prediction of {name}": values for name, values in outputs.items()})
    if problem.narrow:
        own = network(rounding.noise * _NARROW[problem.narrow] / _ROUNDING)
        outputs = own.outputs({name: own.tensor(values) for name, values in problem.x.items()}, training=False)
        found |= {f"prediction in {problem.narrow} of {name}": values for name, values in outputs.items()}
    # A short training.
    own = network()
    factors = {
        name: next(
            (factor for layer, factor in problem.optimizer.factors if layer in ("*", name.partition("/")[0])), 1.0
        )
        for name in own.trained
    }
    step = optimizer_of(own, problem.optimizer, factors)
    order = _order(problem.seed, problem.count)
    sums: dict[str, list[float]] = {name: [0.0, 0.0] for name in problem.losses}
    for number in range(-(-problem.count // problem.batch_size)):
        rows = order[number * problem.batch_size : (number + 1) * problem.batch_size]
        x = {name: own.tensor(values[rows]) for name, values in problem.x.items()}
        loss, each = total(own, own.outputs(x, training=True, seed=problem.seed, step=number), rows, weighted=True)
        loss.backward()
        step()
        for name, (value, weight) in each.items():
            sums[name] = [sums[name][0] + float(value.detach()), sums[name][1] + weight]
    for name, tensor in own.tensors.items():
        found[name] = tensor
    found |= _means(problem, sums, "training loss")
    # And what it is like then.
    x = {name: own.tensor(values) for name, values in problem.x.items()}
    outputs = own.outputs(x, training=False)
    _, each = total(own, outputs, np.arange(problem.count), weighted=False)
    found |= _means(problem, each, "loss")
    found |= {f"prediction of {name}": values for name, values in outputs.items()}
    return _arrays(found)


def _is_finite(values: Any) -> bool:
    return bool(np.isfinite(np.asarray(values)).all())


def _arrays(found: Arrays) -> Arrays:
    return {name: np.asarray(item.detach() if hasattr(item, "detach") else item) for name, item in found.items()}


def _means(problem: Problem, sums: Mapping[str, Any], what: str) -> Arrays:
    """The losses, NaN where nothing counted, and their sum over what did."""
    values = {name: float(getattr(value, "data", value)) for name, (value, _) in sums.items()}
    means = {name: value / sums[name][1] if sums[name][1] else math.nan for name, value in values.items()}
    parts = [problem.loss_weights[name] * value for name, value in means.items() if sums[name][1]]
    whole = sum(parts) if parts else math.nan
    return {what: np.array(whole), **{f"{what} of {name}": np.array(value) for name, value in means.items()}}


def device_results(problem: Problem, device: Device | str | None, *, with_gradients: bool) -> Arrays:
    """The same of blobnet; predictions in narrow types are of the weights before the training."""
    model, found, first = problem.model, dict[str, Any](), slice(0, problem.batch_size)
    fresh = Model.__new__(Model)
    fresh._start(model.graph, (), 0)
    fresh.set_weights(model.weights)
    one = problem.given
    options: dict[str, Any] = {"loss": one(problem.losses), "device": device, "precision": problem.precision}
    options["loss_weights"] = one(problem.loss_weights)
    sizes: dict[str, Any] = {"batch_size": problem.batch_size}
    predicting = {**sizes, "device": device, "precision": problem.precision}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if with_gradients:
            gradients = fresh.gradients(
                one({name: values[first] for name, values in problem.x.items()}),
                one({name: values[first] for name, values in problem.y.items()}),
                freeze=problem.frozen,
                seed=5,
                debug=True,
                **options,
            )
            names = {"input": next(iter(problem.x))} if len(problem.x) == 1 else {}
            found |= {f"gradient of {names.get(name, name)}": values for name, values in gradients.items()}
        if problem.precision != "fp32":
            return found | _by_name(model, fresh.predict(one(problem.x), **predicting), "prediction of")
        if storage := problem.narrow:
            outputs = fresh.predict(one(problem.x), storage=storage, **predicting)
            found |= _by_name(model, outputs, f"prediction in {storage} of")
        history = fresh.fit(
            one(problem.x),
            one(problem.y),
            optimizer=problem.optimizer,
            freeze=problem.frozen,
            seed=problem.seed,
            sample_weights=_by_output(problem, problem.sample_weights),
            class_weights=_by_output(problem, problem.class_weights),
            verbose=False,
            **sizes,
            **options,
        )
        found |= fresh.weights
        measured = fresh.evaluate(one(problem.x), one(problem.y), **sizes, **options)
        outputs = fresh.predict(one(problem.x), **predicting)
    found |= {"training loss": np.array(history["loss"][0]), "loss": np.array(measured["loss"])}
    for name in problem.losses:
        # That of the only output is already multiplied by its weight.
        key, weight = (f"{name}_loss", 1.0) if len(problem.losses) > 1 else ("loss", problem.loss_weights[name])
        found[f"training loss of {name}"] = np.array(history[key][0] / weight)
        found[f"loss of {name}"] = np.array(measured[key] / weight)
    return found | _by_name(model, outputs, "prediction of")


def _by_output(problem: Problem, values: Mapping[str, Any]) -> Any:
    """What some outputs have, as a model takes it; None where none has it."""
    return None if not values else problem.given(values) if len(problem.losses) == 1 else dict(values)


def _by_name(model: Model, outputs: Any, what: str) -> Arrays:
    each = outputs if isinstance(outputs, dict) else dict(zip(model.graph.outputs, [outputs], strict=True))
    return {f"{what} {name}": values for name, values in each.items()}


# -- the comparison ----------------------------------------------------------------------------------------------------


@dataclass
class Difference:
    """A result that is wrong."""

    name: str
    error: float
    allowed: float
    note: str = ""

    def __str__(self) -> str:
        return f"{self.name}: off by {self.error:.3g}, of which rounding makes {self.allowed:.3g} at most{self.note}"


def differences(problem: Problem, device: Device | str | None, *, with_gradients: bool = True) -> list[Difference]:
    """What is farther from PyTorch in float64 than rounding explains."""
    wanted = torch_results(problem, Rounding())
    if storage := STORAGE_OF.get(problem.precision, ""):
        noises = [Rounding(noise=_NARROW[storage], seed=seed, storage=storage) for seed in range(6)]
    else:
        noises = [Rounding("float32"), *(Rounding(noise=_ROUNDING, seed=seed) for seed in range(2))]
    rounded = [torch_results(problem, noise) for noise in noises]
    found = device_results(problem, device, with_gradients=with_gradients)
    missing = {name for name in wanted.keys() ^ found.keys() if with_gradients or "gradient of" not in name}
    wrong = [Difference(name, math.inf, 0.0, ", which only one of both has") for name in missing]
    for name, values in wanted.items():
        if name not in found:
            continue
        actual = np.asarray(found[name], np.float64).reshape(-1)
        expected = np.broadcast_to(values.astype(np.float64).reshape(-1), actual.shape)
        there = ~np.isnan(expected)  # A loss is none where nothing counts.
        with np.errstate(invalid="ignore"):
            noise = max(_largest((np.asarray(other[name]).reshape(-1) - expected)[there]) for other in rounded)
            error = _largest((actual - expected)[there]) if (np.isnan(actual) != there).all() else math.inf
        if not math.isfinite(noise):  # Halves hold no such numbers.
            continue
        if storage:
            allowed = _TIMES_NARROW * (noise + _NARROW[storage] * (_scale(wanted, name, of_all=True) + 1e-2))
        else:
            least = _NARROW[problem.narrow] if name.startswith("prediction in") else _LEAST
            allowed = _TIMES * noise + least * (_scale(wanted, name) + 1e-2)
        if not error <= allowed:
            wrong.append(Difference(name, error, allowed))
    return wrong


def _scale(wanted: Arrays, name: str, *, of_all: bool = False) -> float:
    """The largest of the values that a result is made of.

    Gradients that float64 finds to be 0 but for its own rounding are so in theory, as that of a key's bias is, which
    softmax ignores: they are what is left of terms that cancel, which are as large as its layer's other gradients
    (``of_all``: as any; where deltas are rounded, those of a layer norm of one unit are not all 0).
    """
    own = _largest(np.nan_to_num(wanted[name]))
    if not name.startswith("gradient of "):
        return own
    layer = name.rpartition("/")[0]
    others = (other for other in wanted if other.rpartition("/")[0] == layer or (of_all and "gradient of" in other))
    terms = max(_largest(np.nan_to_num(wanted[other])) for other in others)
    return terms if own < _CANCELLED * terms else own


def _largest(values: Any) -> float:
    return float(np.abs(values).max(initial=0.0))


@dataclass
class Tally:
    """What was seen of how many networks."""

    networks: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    wrong: list[int] = field(default_factory=list)


def examine(
    seeds: Iterable[int],
    device: Device | str | None,
    say: Callable[[str], object],
    *,
    with_gradients: bool = True,
    precision: str = "fp32",
) -> Tally:
    """Compares the networks of seeds, and says which are wrong."""
    tally = Tally()
    for seed in seeds:
        problem = replace(make_problem(seed), precision=precision)
        tally.networks += 1
        tally.kinds.update({vertex.layer.kind for vertex in problem.model.graph.vertices})
        try:
            wrong = [str(difference) for difference in differences(problem, device, with_gradients=with_gradients)]
        except Exception as error:
            wrong = [f"{type(error).__name__}: {error}"]
        if wrong:
            tally.wrong.append(seed)
            say("\n".join([str(problem), *(f"  WRONG {item}" for item in wrong[:12])]))
            say(f"  alone: python -m tests.random_networks --seed {seed} --count 1 --precision {precision}")
    return tally


def unlisted_kinds() -> set[str]:
    """Layers of blobnet that no network has, for no reason that is said."""
    return (torch_graphs.own_kinds() - GENERATED.keys() - NOT_GENERATED.keys()) | torch_graphs.unknown_kinds()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000, help="networks (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the first one (%(default)s)")
    parser.add_argument("--precision", choices=("fp32", *STORAGE_OF), default="fp32")
    parser.add_argument("--device", help="as of the commands; $BLOBNET_DEVICE else")
    parser.add_argument("--minutes", type=float, default=math.inf, help="stop then")
    options = parser.parse_args(arguments)
    if unlisted_kinds():
        print(f"no network has {', '.join(sorted(unlisted_kinds()))}")
        return 1
    begin, cpu = time.monotonic(), time.process_time()

    def seeds() -> Iterable[int]:
        for seed in range(options.seed, options.seed + options.count):
            if time.monotonic() - begin > 60 * options.minutes:
                return
            yield seed
            if (seed - options.seed) % 20 == 19:
                print(f"{seed - options.seed + 1} networks in {time.monotonic() - begin:.0f} s", flush=True)

    tally = examine(seeds(), options.device, lambda text: print(text, flush=True), precision=options.precision)
    print(f"kinds: {', '.join(f'{kind} {count}' for kind, count in tally.kinds.most_common())}")
    seconds = f"{time.monotonic() - begin:.0f} s ({time.process_time() - cpu:.0f} s of this process)"
    print(f"{tally.networks} networks, {len(tally.wrong)} wrong: {tally.wrong}; in {seconds}")
    return 1 if tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
