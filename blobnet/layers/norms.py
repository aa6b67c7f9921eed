"""Normalizations over units and groups of them, within a sample: no running statistics, the same in inference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from blobnet.contraction import Function
from blobnet.layers.lowered import ContractionLayer, function
from blobnet.memory.blob import Shape
from blobnet.support.checks import check_number


@dataclass(frozen=True)
class LayerNorm(ContractionLayer):
    """Every position's units with mean 0 and variance 1, then ``* scale[unit] + shift[unit]``.

    output[c] = (input[c] - mean) / sqrt(variance + epsilon) * scale[c] + shift[c], with the mean and the variance over
    the units of a position (Ba et al., *Layer Normalization*, 2016). Shapes: any, unchanged.

    Args:
        epsilon: above 0.
        affine: whether there are ``scale`` and ``shift``.

    Raises:
        OptionError: an epsilon that is not above 0.
    """

    epsilon: float = 1e-5
    affine: bool = True
    keeps_inputs: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(self, self.epsilon, self.affine)

    def function(self, inputs: Sequence[Shape]) -> Function:
        text = f"""function (I[N, C, ...]{", scale[C], shift[C]" * self.affine}) -> (O) {{
          S[n, ...] = +(I[n, c, ...]);
          D[n, c, ...] = +(I[n, c, ...] - S[n, ...] / C);
          V[n, ...] = +(D[n, c, ...] * D[n, c, ...]);
          O[n, c, ...] = +(D[n, c, ...] / sqrt(V[n, ...] / C + {float(self.epsilon)!r})
            {"* scale[c] + shift[c]" * self.affine});
        }}"""
        return function(text, inputs[0])


@dataclass(frozen=True)
class _GroupNorm(ContractionLayer):
    """The base of normalizations of groups of units."""

    keeps_inputs: ClassVar[bool] = False

    def _normalized(self, shape: Shape, groups: int, epsilon: float, affine: bool) -> Function:
        self._require_shape(shape.rank > 0 or shape.units > groups, "there must be several values a group", input=shape)
        text = f"""function (I[N, C, ...]{", scale[C], shift[C]" * affine}) -> (O) {{
          S[n, g : N, G] = +(I[n, g*K + k, ...]), k < K;
          D[n, g*K + k, ... : N, C, ...] = +(I[n, g*K + k, ...] - S[n, g] / M), k < K;
          V[n, g : N, G] = +(D[n, g*K + k, ...] * D[n, g*K + k, ...]), k < K;
          O[n, g*K + k, ... : N, C, ...] = +(D[n, g*K + k, ...] / sqrt(V[n, g] / M + {float(epsilon)!r})
            {"* scale[g*K + k] + shift[g*K + k]" * affine}), k < K;
        }}"""
        each = shape.units // groups
        return function(text, shape, G=groups, K=each, M=each * shape.positions)


@dataclass(frozen=True)
class GroupNorm(_GroupNorm):
    """Groups of units with mean 0 and variance 1 over all their positions, then ``* scale[unit] + shift[unit]``.

    Wu and He, *Group Normalization*, 2018. Shapes: any, unchanged.

    Args:
        groups: how many, of the same size.
        epsilon: above 0, what is added to the variance.
        affine: whether there are ``scale`` and ``shift``.

    Raises:
        OptionError: no groups, or an epsilon that is not above 0.
        ShapeError: the groups do not divide the input's units, or hold one value each.
    """

    groups: int
    epsilon: float = 1e-5
    affine: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_counts("groups")
        _check(self, self.epsilon, self.affine)

    def function(self, inputs: Sequence[Shape]) -> Function:
        divides = inputs[0].units % self.groups == 0
        self._require_shape(divides, "groups must divide the input's units", input=inputs[0], groups=self.groups)
        return self._normalized(inputs[0], self.groups, self.epsilon, self.affine)


@dataclass(frozen=True)
class InstanceNorm(_GroupNorm):
    """Every unit with mean 0 and variance 1 over its positions, then ``* scale[unit] + shift[unit]``.

    Ulyanov et al., *Instance Normalization*, 2016. Shapes: any with positions, unchanged.

    Args:
        epsilon: above 0, what is added to the variance.
        affine: whether there are ``scale`` and ``shift``.

    Raises:
        OptionError: an epsilon that is not above 0.
        ShapeError: a unit has one value.
    """

    epsilon: float = 1e-5
    affine: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(self, self.epsilon, self.affine)

    def function(self, inputs: Sequence[Shape]) -> Function:
        return self._normalized(inputs[0], inputs[0].units, self.epsilon, self.affine)


@dataclass(frozen=True)
class LocalResponseNorm(ContractionLayer):
    """Every value over a power of the squares of its neighbours among the units.

    output[c] = input[c] / (bias + alpha / size * sum over ``size`` units around c of input^2)^beta (Krizhevsky et al.,
    *ImageNet Classification with Deep Convolutional Neural Networks*, 2012, with alpha over size as PyTorch has it).
    Shapes: any, unchanged.

    Args:
        size: units, from ``size // 2`` before c on.
        alpha: as above.
        beta: as above.
        bias: as above, more than 0.

    Raises:
        OptionError: a size below 1, or a number out of its range.
    """

    size: int
    alpha: float = 1e-4
    beta: float = 0.75
    bias: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_counts("size")
        check_number(self.subject, "alpha", self.alpha, least=0)
        check_number(self.subject, "beta", self.beta, least=0)
        check_number(self.subject, "bias", self.bias, above=0)

    def function(self, inputs: Sequence[Shape]) -> Function:
        text = f"""function (I[N, C, ...]) -> (O) {{
          S[n, c, ... : N, C, ...] = +(I[n, c + k - K/2, ...] * I[n, c + k - K/2, ...]), k < K;
          O = I / pow({float(self.bias)!r} + {float(self.alpha / self.size)!r} * S, {float(self.beta)!r});
        }}"""
        return function(text, inputs[0], K=self.size)


def _check(layer: ContractionLayer, epsilon: float, affine: bool) -> None:
    check_number(layer.subject, "epsilon", epsilon, above=0)
    layer._require(isinstance(affine, bool), "affine must be True or False", affine=affine)
