"""Products of matrices, attention, and what it attends to. A matrix is a sample of (units, width): rows are units."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from blobnet.contraction import Function
from blobnet.layers.initializers import check_initializer
from blobnet.layers.lowered import AXES, ContractionLayer, broadcast, function, repeating
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

    def function(self, inputs: Sequence[Shape]) -> Function:
        shapes = " ".join(map(str, inputs))
        rule = "both inputs must have matrices: (..., rows, columns)"
        self._require_shape(all(shape.rank for shape in inputs), rule, inputs=shapes)
        inner = [shape.dimensions[-2:][place] for shape, place in zip(inputs, self._inner, strict=True)]
        rule = "the inner sizes of both matrices must be the same"
        self._require_shape(inner[0] == inner[1], rule, inputs=shapes)
        rank = max(shape.rank for shape in inputs)
        stacks = [(1,) * (rank - shape.rank) + shape.dimensions[:-2] for shape in inputs]
        wanted = broadcast(*stacks)
        rule = "stacks of matrices must have the same sizes along each axis, or 1"
        self._require_shape(wanted is not None, rule, inputs=shapes)
        assert wanted is not None
        axes = "st"[: rank - 1]
        matrices = ("ki" if self.transpose_first else "ik"), ("jk" if self.transpose_second else "kj")
        heads, terms = [], []
        for name, shape, stack, matrix in zip("AB", inputs, stacks, matrices, strict=True):
            own = repeating(axes, stack, wanted)[rank - shape.rank :]
            terms.append(f"{name}[{', '.join(['n', *own, *matrix])}]")
            heads.append(f"{name}[N, {', '.join(map(str, shape.dimensions))}]")
        rows, columns = (shape.dimensions[-2:][1 - place] for shape, place in zip(inputs, self._inner, strict=True))
        sizes = ", ".join(map(str, (*wanted, rows, columns)))
        result = f"O[{', '.join(['n', *axes, 'i', 'j'])} : N, {sizes}]"
        return function(f"function ({', '.join(heads)}) -> (O) {{ {result} = +({' * '.join(terms)}); }}")

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

    def function(self, inputs: Sequence[Shape]) -> Function:
        shape = inputs[0]
        self._require_shape(shape.rank > 0, "the input must have spatial axes", input=shape)
        axes = AXES[len(AXES) - shape.rank :]
        steps = [math.prod(shape.sizes[place + 1 :]) for place in range(shape.rank)]
        column = " + ".join(f"{step}*{axis}" for step, axis in zip(steps, axes, strict=True))
        text = f"""function (I[N, E, ...], token[E], position[T, E]) -> (O) {{
          P[n, e, {column} + 1 : N, E, T] = +(I[n, e, ...]);
          O[n, e, t] = +(P[n, e, t] + (t < 1 ? token[e] : 0.0) + position[t, e]);
        }}"""
        return function(text, shape, T=1 + shape.positions)


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

    def function(self, inputs: Sequence[Shape]) -> Function:
        for shape in inputs:
            self._require_rank(shape, 1)
        units = inputs[0].units
        self._require_shape(units % self.heads == 0, "heads must divide the units", input=inputs[0], heads=self.heads)
        columns = inputs[-1].width
        same = all(shape.width == columns for shape in inputs[1:])
        self._require_shape(same, "keys and values must have the same width", inputs=" ".join(map(str, inputs)))
        names = ["X0", "X1", "X2"][: len(inputs)]
        sources = {"query": 0, "key": min(1, len(inputs) - 1), "value": len(inputs) - 1}
        heads = [f"{name}[N, U{place}, T{place}]" for place, name in enumerate(names)]
        statements = []
        for what, source in sources.items():
            heads += [f"{what}[E, U{source}]", *[f"{what}_bias[E]"] * self.bias]
            product = f"P_{what}[n, e, t] = +({what}[e, c] * X{source}[n, c, t]);"
            bias = f" + {what}_bias[e]" if self.bias else ""
            statements.append(f"{product} B_{what}[n, e, t] = +(P_{what}[n, e, t]{bias});")
        heads += ["output[E, E]", *["output_bias[E]"] * self.bias]
        seen = ", t - s < T" if self.causal else ""
        root = float((units / self.heads) ** 0.5)
        # The greatest is no part of the result, and needs no derivative. Its exp is 1, so that a weight of 1 is exact
        # also where division is not rounded correctly, as on GPUs.
        text = f"""function ({", ".join(heads)}) -> (O) {{
          {" ".join(statements)}
          S[n, h, t, s : N, H, T, K] = +(B_query[n, h*D + d, t] * B_key[n, h*D + d, s]), d < D{seen};
          M[n, h, t] = >(S[n, h, t, s]){seen};
          X[n, h, t, s : N, H, T, K] = +(exp((S[n, h, t, s] - detach(M[n, h, t])) / {root!r})){seen};
          Z[n, h, t] = +(X[n, h, t, s]);
          W[n, h, t, s] = +(X[n, h, t, s] / Z[n, h, t]);
          C[n, h*D + d, t : N, E, T] = +(W[n, h, t, s] * B_value[n, h*D + d, s]), d < D;
          R[n, e, t] = +(output[e, c] * C[n, c, t]);
          O[n, e, t] = +(R[n, e, t]{" + output_bias[e]" * self.bias});
        }}"""
        return function(text, E=units, H=self.heads, D=units // self.heads, T=inputs[0].width, K=columns)
