"""Layers that multiply values by learned numbers, or by what follows from all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from blobnet.contraction import Function
from blobnet.layers.lowered import ContractionLayer, function
from blobnet.memory.blob import Shape
from blobnet.support.checks import check_number


@dataclass(frozen=True)
class PReLU(ContractionLayer):
    """output = input where that is above 0, else slope[unit] * input, with learned slopes that start at 1/4.

    He et al., *Delving Deep into Rectifiers*, 2015. Shapes: any, unchanged.
    """

    def start(self, name: str, shape: Sequence[int]) -> str:
        return "constant(0.25)"

    def function(self, inputs: Sequence[Shape]) -> Function:
        text = """function (I[N, C, ...], slope[C]) -> (O) {
          O[n, c, ...] = +(I[n, c, ...] > 0 ? I[n, c, ...] : slope[c] * I[n, c, ...]);
        }"""
        return function(text, inputs[0])


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

    def function(self, inputs: Sequence[Shape]) -> Function:
        text = "function (I[N, C, ...], scale[C]) -> (O) { O[n, c, ...] = +(I[n, c, ...] * scale[c]); }"
        return function(text, inputs[0])


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

    def function(self, inputs: Sequence[Shape]) -> Function:
        shape = inputs[0]
        self._require_shape(shape.rank > 0, "the input must have spatial axes", input=shape)
        text = """function (I[N, C, ...], squeeze[R, C], squeeze_bias[R], excite[C, R], excite_bias[C]) -> (O) {
          S[n, c] = +(I[n, c, ...]);
          H[n, r] = +(S[n, c] * squeeze[r, c]);
          A[n, r] = +(max(H[n, r] / P + squeeze_bias[r], 0));
          G[n, c] = +(A[n, r] * excite[c, r]);
          E[n, c] = +(sigmoid(G[n, c] + excite_bias[c]));
          O[n, c, ...] = +(I[n, c, ...] * E[n, c]);
        }"""
        return function(text, shape, R=max(1, shape.units // self.reduction), P=shape.positions)
