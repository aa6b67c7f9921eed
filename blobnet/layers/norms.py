"""Normalizations over units and groups of them, within a sample: no running statistics, the same in inference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from blobnet.contraction.build import Builder, indexes
from blobnet.contraction.form import Affine, Expression, Tensor, apply
from blobnet.layers.lowered import ContractionLayer, axes_of
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

    def define(self, built: Builder, inputs: Sequence[Tensor]) -> None:
        (given,) = inputs
        n, c, *at = cell = axes_of(given)
        units = given.shape[1]
        total = built.sum("S", (n, *at), given(*cell))
        apart = built.sum("D", cell, given(*cell) - total(n, *at) / units)
        squares = built.sum("V", (n, *at), apart(*cell) * apart(*cell))
        value = apart(*cell) / apply("sqrt", squares(n, *at) / units + self.epsilon)
        built.sum("O", cell, _scaled(built, value, units, c) if self.affine else value)


@dataclass(frozen=True)
class _GroupNorm(ContractionLayer):
    """The base of normalizations of groups of units."""

    keeps_inputs: ClassVar[bool] = False

    def _normalize(self, built: Builder, given: Tensor, groups: int, epsilon: float, affine: bool) -> None:
        shape = Shape(*given.shape[1:])
        self._require_shape(shape.rank > 0 or shape.units > groups, "there must be several values a group", input=shape)
        each = shape.units // groups
        count, (n, _, *at), (g, k) = each * shape.positions, axes_of(given), indexes("g k")
        unit, group, bound = g * each + k, (given.shape[0], groups), k < each
        cell = n, unit, *at
        total = built.sum("S", (n, g), given(*cell), bound, shape=group)
        apart = built.sum("D", cell, given(*cell) - total(n, g) / count, bound, shape=given.shape)
        squares = built.sum("V", (n, g), apart(*cell) * apart(*cell), bound, shape=group)
        value = apart(*cell) / apply("sqrt", squares(n, g) / count + epsilon)
        scaled = _scaled(built, value, shape.units, unit) if affine else value
        built.sum("O", cell, scaled, bound, shape=given.shape)


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

    def define(self, built: Builder, inputs: Sequence[Tensor]) -> None:
        shape = Shape(*inputs[0].shape[1:])
        divides = shape.units % self.groups == 0
        self._require_shape(divides, "groups must divide the input's units", input=shape, groups=self.groups)
        self._normalize(built, inputs[0], self.groups, self.epsilon, self.affine)


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

    def define(self, built: Builder, inputs: Sequence[Tensor]) -> None:
        self._normalize(built, inputs[0], inputs[0].shape[1], self.epsilon, self.affine)


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

    def define(self, built: Builder, inputs: Sequence[Tensor]) -> None:
        (given,) = inputs
        n, c, *at = cell = axes_of(given)
        (k,) = indexes("k")
        near = given(n, c + k - self.size // 2, *at)
        squares = built.sum("S", cell, near * near, k < self.size, shape=given.shape)
        power = apply("pow", self.bias + apply("multiply", self.alpha / self.size, squares(*cell)), self.beta)
        built.sum("O", cell, given(*cell) / power, aggregation="=")


def _scaled(built: Builder, value: Expression, units: int, unit: Affine) -> Expression:
    """A value times ``scale``, plus ``shift``, both parameters of its unit."""
    scale, shift = (built.parameter(name, units)(unit) for name in ("scale", "shift"))
    return value * scale + shift


def _check(layer: ContractionLayer, epsilon: float, affine: bool) -> None:
    check_number(layer.subject, "epsilon", epsilon, above=0)
    layer._require(isinstance(affine, bool), "affine must be True or False", affine=affine)
