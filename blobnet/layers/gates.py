"""Layers that multiply values by learned numbers, or by what follows from all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from blobnet.contraction.build import Builder, indexes
from blobnet.contraction.form import Tensor, apply
from blobnet.layers.lowered import ContractionLayer, axes_of
from blobnet.memory.blob import Shape
from blobnet.support.checks import check_number


@dataclass(frozen=True)
class PReLU(ContractionLayer):
    """output = input where that is above 0, else slope[unit] * input, with learned slopes that start at 1/4.

    He et al., *Delving Deep into Rectifiers*, 2015. Shapes: any, unchanged.
    """

    def start(self, name: str, shape: Sequence[int]) -> str:
        return "constant(0.25)"

    def define(self, built: Builder, inputs: Sequence[Tensor]) -> None:
        (given,) = inputs
        cell = axes_of(given)
        value, slope = given(*cell), built.parameter("slope", given.shape[1])
        built.sum("O", cell, apply("select", apply("greater", value, 0), value, slope(cell[1]) * value))


@dataclass(frozen=True)
class Scale(ContractionLayer):
    """output = scale[unit] * input, with learned factors.

    Touvron et al., *Going deeper with Image Transformers*, 2021 (LayerScale). Shapes: any, unchanged.

    Args:
        initial: what all factors start with, a finite number.

    Raises:
        OptionError: what factors start with is no finite number.
    """

    initial: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self.subject, "initial", self.initial)

    def start(self, name: str, shape: Sequence[int]) -> str:
        return f"constant({float(self.initial)!r})"

    def define(self, built: Builder, inputs: Sequence[Tensor]) -> None:
        (given,) = inputs
        cell = axes_of(given)
        built.sum("O", cell, given(*cell) * built.parameter("scale", given.shape[1])(cell[1]))


@dataclass(frozen=True)
class SqueezeExcite(ContractionLayer):
    """Units times gates from 0 to 1 that follow from the means of all units.

    gates = sigmoid(excite @ relu(squeeze @ means + squeeze_bias) + excite_bias), with ``squeeze`` (units / reduction,
    units) and ``excite`` (units, units / reduction), at least 1 (Hu et al., *Squeeze-and-Excitation Networks*, 2018).
    Shapes: any with positions, unchanged.

    Args:
        reduction: how many times fewer values there are between the two products.

    Raises:
        OptionError: a reduction below 1.
        ShapeError: the input has no spatial axes.
    """

    reduction: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_counts("reduction")

    def define(self, built: Builder, inputs: Sequence[Tensor]) -> None:
        (given,) = inputs
        units, *sizes = given.shape[1:]
        self._require_shape(bool(sizes), "the input must have spatial axes", input=Shape(units, *sizes))
        cell, few = axes_of(given), max(1, units // self.reduction)
        (n, c), (r,) = cell[:2], indexes("r")
        squeeze, squeeze_bias = built.parameter("squeeze", few, units), built.parameter("squeeze_bias", few)
        excite, excite_bias = built.parameter("excite", units, few), built.parameter("excite_bias", units)
        total = built.sum("S", (n, c), given(*cell))
        hidden = built.sum("H", (n, r), total(n, c) * squeeze(r, c))
        mean = hidden(n, r) / math.prod(sizes)
        active = built.sum("A", (n, r), apply("max", mean + squeeze_bias(r), 0))
        gate = built.sum("G", (n, c), active(n, r) * excite(c, r))
        gate = built.sum("E", (n, c), apply("sigmoid", gate(n, c) + excite_bias(c)))
        built.sum("O", cell, given(*cell) * gate(n, c))
