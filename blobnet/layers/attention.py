"""Products of matrices, attention, and what it attends to. A matrix is a sample of (units, width): rows are units."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from blobnet.contraction.build import Builder, indexes
from blobnet.contraction.form import Affine, Tensor, apply
from blobnet.layers.initializers import check_initializer
from blobnet.layers.lowered import ContractionLayer, axes_of, broadcast, repeating
from blobnet.memory.blob import Shape


@dataclass(frozen=True)
class MatMul(ContractionLayer):
    """Products of matrices in each sample: (N, ..., rows, inner), (N, ..., inner, columns) -> (N, ..., rows, columns).

    A sample's last two axes are a matrix, what is before them a stack of such. Stacks go together as in NumPy: one that
    is missing, or of size 1 along an axis, is repeated. A matrix for all samples is a ``Constant``.

    Args:
        transpose_first: whether to take the transposes of the first input.
        transpose_second: and of the second.

    Raises:
        ShapeError: the inputs are no matrices, their inner sizes differ, or their stacks do not go together.
    """

    transpose_first: bool = False
    transpose_second: bool = False
    arity: ClassVar[tuple[int, int | None]] = (2, 2)

    def define(self, built: Builder, inputs: Sequence[Tensor]) -> None:
        shapes = [Shape(*tensor.shape[1:]) for tensor in inputs]
        shown = " ".join(map(str, shapes))
        rule = "both inputs must have matrices: (..., rows, columns)"
        self._require_shape(all(shape.rank for shape in shapes), rule, inputs=shown)
        inner = [shape.dimensions[-2:][place] for shape, place in zip(shapes, self._inner, strict=True)]
        rule = "the inner sizes of both matrices must be the same"
        self._require_shape(inner[0] == inner[1], rule, inputs=shown)
        rank = max(shape.rank for shape in shapes)
        stacks = [(1,) * (rank - shape.rank) + shape.dimensions[:-2] for shape in shapes]
        wanted = broadcast(*stacks)
        rule = "stacks of matrices must have the same sizes along each axis, or 1"
        self._require_shape(wanted is not None, rule, inputs=shown)
        assert wanted is not None
        n, i, j, k, *axes = indexes(["n", "i", "j", "k", *"st"[: rank - 1]])
        matrices = ((k, i) if self.transpose_first else (i, k)), ((j, k) if self.transpose_second else (k, j))
        first, second = (
            tensor(n, *repeating(axes, stack, wanted)[rank - shape.rank :], *matrix)
            for tensor, shape, stack, matrix in zip(inputs, shapes, stacks, matrices, strict=True)
        )
        rows, columns = (shape.dimensions[-2:][1 - place] for shape, place in zip(shapes, self._inner, strict=True))
        built.sum("O", (n, *axes, i, j), first * second, shape=(inputs[0].shape[0], *wanted, rows, columns))

    @property
    def _inner(self) -> tuple[int, int]:
        """The axis of each input that the sum runs over."""
        return int(not self.transpose_first), int(self.transpose_second)


@dataclass(frozen=True)
class Tokens(ContractionLayer):
    """The positions of planes as columns after one that is learned, and for each column what is learned of its place.

        output(n, e, 0) = token[e] + position[0, e]
        output(n, e, 1 + i) = input(n, e, i) + position[1 + i, e],  with i = y * width + x

    (N, units, ...) -> (N, units, 1 + positions). What vision transformers begin with (Dosovitskiy et al., *An image is
    worth 16x16 words*, 2021): the column in front gathers what is said of the whole picture. Parameters: ``token``
    (units,), which starts as zeros, and ``position`` (1 + positions, units).

    Args:
        initializer: how ``position`` starts, see blobnet.layers.initializers.

    Raises:
        OptionError: an unknown initializer.
        ShapeError: the input has no spatial axes.
    """

    initializer: str = "fan_in_uniform"
    keeps_inputs: ClassVar[bool] = False
    copy_reason: ClassVar[str] = "a column in front of planes"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_initializer(self.subject, self.initializer)

    def start(self, name: str, shape: Sequence[int]) -> str:
        return self.initializer if name == "position" else super().start(name, shape)

    def define(self, built: Builder, inputs: Sequence[Tensor]) -> None:
        (given,) = inputs
        shape, (n, e, *at) = Shape(*given.shape[1:]), axes_of(given)
        self._require_shape(shape.rank > 0, "the input must have spatial axes", input=shape)
        columns, column, t = 1 + shape.positions, Affine((), 1), Affine.index("t")
        token, position = built.parameter("token", shape.units), built.parameter("position", columns, shape.units)
        for place, index in enumerate(at, start=1):
            column += index * math.prod(shape.sizes[place:])
        sizes = *given.shape[:2], columns
        moved = built.sum("P", (n, e, column), given(n, e, *at), shape=sizes)
        first = apply("select", apply("less", t, 1), token(e), 0)
        built.sum("O", (n, e, t), moved(n, e, t) + first + position(t, e))


@dataclass(frozen=True)
class MultiHeadAttention(ContractionLayer):
    """Values, weighed for each position by how well its query fits the keys of all positions; several times over.

    Inputs are (units, width), a position a column: one that all follows from; or queries, and what keys and values
    follow from; or queries, keys and values. The output has a column for each query. With ``heads`` parts of q = query
    @ Q + query_bias, and k and v likewise: output = output @ concat(v softmax(k^T q / sqrt(units of a head))) +
    output_bias (Vaswani et al., *Attention Is All You Need*, 2017).

    Parameters: ``query``, ``key``, ``value`` (units, units of the input), ``output`` (units, units), and
    ``query_bias``, ``key_bias``, ``value_bias``, ``output_bias`` (units,), with the units of the queries.

    Args:
        heads: parts into which the queries' units are divided.
        bias: whether there are biases.
        causal: whether a position sees no key after it.
        initializer: how the weights start, see blobnet.layers.initializers.

    Raises:
        OptionError: an argument is out of range.
    """

    heads: int
    bias: bool = True
    causal: bool = False
    initializer: str = "glorot_uniform"
    arity: ClassVar[tuple[int, int | None]] = (1, 3)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_counts("heads")
        check_initializer(self.subject, self.initializer)

    def start(self, name: str, shape: Sequence[int]) -> str:
        return self.initializer if len(shape) > 1 else super().start(name, shape)

    def define(self, built: Builder, inputs: Sequence[Tensor]) -> None:
        for tensor in inputs:
            self._require_rank(Shape(*tensor.shape[1:]), 1)
        samples, units, width = inputs[0].shape
        self._require_shape(
            units % self.heads == 0, "heads must divide the units", input=Shape(units, width), heads=self.heads
        )
        columns = inputs[-1].shape[2]
        same = all(tensor.shape[2] == columns for tensor in inputs[1:])
        shapes = " ".join(str(Shape(*tensor.shape[1:])) for tensor in inputs)
        self._require_shape(same, "keys and values must have the same width", inputs=shapes)
        n, e, t, c, h, s, u = indexes("n e t c h s u")
        each = units // self.heads
        of_head = h * each + u

        def product(name: str, given: Tensor, between: str, made: str) -> Tensor:
            weight = built.parameter(name, units, given.shape[1])
            bias = built.parameter(f"{name}_bias", units) if self.bias else None
            found = built.sum(between, (n, e, t), weight(e, c) * given(n, c, t))
            return built.sum(made, (n, e, t), found(n, e, t) + bias(e) if bias else found(n, e, t))

        sources = "query", "key", "value"
        query, key, value = (
            product(name, inputs[min(place, len(inputs) - 1)], f"P_{name}", f"B_{name}")
            for place, name in enumerate(sources)
        )
        seen = [t - s < width] if self.causal else []
        scores_cell, scores_shape, heads = (n, h, t, s), (samples, self.heads, width, columns), (n, h, t)
        score = query(n, of_head, t) * key(n, of_head, s)
        scores = built.sum("S", scores_cell, score, u < each, *seen, shape=scores_shape)
        # The greatest is no part of the result, and needs no derivative. Its exp is 1, so that a weight of 1 is exact
        # also where division is not rounded correctly, as on GPUs.
        greatest = built.sum("M", heads, scores(*scores_cell), *seen, aggregation=">")
        apart = scores(*scores_cell) - apply("detach", greatest(*heads))
        powers = built.sum("X", scores_cell, apply("exp", apart / each**0.5), *seen, shape=scores_shape)
        total = built.sum("Z", heads, powers(*scores_cell))
        weights = built.sum("W", scores_cell, powers(*scores_cell) / total(*heads))
        result = weights(*scores_cell) * value(n, of_head, s)
        joined = built.sum("C", (n, of_head, t), result, u < each, shape=(samples, units, width))
        product("output", joined, "R", "O")
