"""Transposed convolutions: the adjoint of a convolution, run forward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from blobnet.contraction import Function
from blobnet.layers.activation import check_activation, split
from blobnet.layers.base import Layer
from blobnet.layers.initializers import check_initializer
from blobnet.layers.lowered import AXES, ContractionLayer, function
from blobnet.memory.blob import Shape
from blobnet.memory.windows import WindowAxis


@dataclass(frozen=True)
class _Transposed(ContractionLayer):
    """What transposed convolutions share; ``rank`` is the number of spatial axes."""

    filters: int
    kernel_size: int | tuple[int, ...]
    stride: int | tuple[int, ...] = 1
    padding: int | tuple[int, ...] = 0
    output_padding: int | tuple[int, ...] = 0
    dilation: int | tuple[int, ...] = 1
    groups: int = 1
    bias: bool = True
    activation: str | None = None
    initializer: str = "he_normal"
    rank: ClassVar[int]
    sized_by: ClassVar[str] = "filters"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_counts("filters", "groups")
        for name in ("kernel_size", "stride", "dilation"):
            self._per_axis(name, self.rank)
        for name in ("padding", "output_padding"):
            self._per_axis(name, self.rank, least=0)
        self._require(isinstance(self.bias, bool), "bias must be True or False", bias=self.bias)
        divides = self.filters % self.groups == 0
        self._require(divides, "groups must divide filters", filters=self.filters, groups=self.groups)
        check_activation(self, self.activation)
        check_initializer(self.subject, self.initializer)

    def expanded(self) -> tuple[Layer, ...]:
        return split(self, self.activation)

    def start(self, name: str, shape: Sequence[int]) -> str:
        return self.initializer if name == "weight" else super().start(name, shape)

    def function(self, inputs: Sequence[Shape]) -> Function:
        shape = inputs[0]
        self._require_rank(shape, self.rank)
        divides = shape.units % self.groups == 0
        self._require_shape(divides, "groups must divide the input's units", input=shape, groups=self.groups)
        names = ("kernel_size", "stride", "padding", "output_padding", "dilation")
        sides = zip(*(self._per_axis(name, self.rank, least=0) for name in names), strict=True)
        places, sizes, taps, extents, paddings, reached = [], [], [], [], [], True
        for index, size, (kernel, stride, padding, more, dilation) in zip(
            AXES[-self.rank :], shape.dimensions[1:], sides, strict=True
        ):
            places.append(f"{stride}*{index} + {dilation}*k{index}")
            sizes.append((size - 1) * stride + dilation * (kernel - 1) + 1 + more - 2 * padding)
            taps.append(f"k{index}")
            extents.append(kernel)
            paddings.append(padding)
            reached &= WindowAxis(kernel, stride, dilation, (padding, padding)).meets(size, sizes[-1])
        rule = "the padding must leave something of the output"
        self._require_shape(min(sizes) > 0, rule, input=shape, padding=self.padding, output=tuple(sizes))
        unit, source, bounds = ("f", "c", "")
        if self.groups > 1:
            unit, source, bounds = "g*M + f", f"g*{shape.units // self.groups} + c", f", g < {self.groups}, f < M"
            bounds += f", c < {shape.units // self.groups}"
        head = f"I[N, C, ...], weight[C, M, {', '.join(map(str, extents))}]{', bias[F]' * self.bias}"
        # A contraction must have terms: where no input reaches the output, the whole is made, and cut behind that.
        cuts = [0] * self.rank if reached else paddings
        places = [f"{place} - {padding - cut}" for place, padding, cut in zip(places, paddings, cuts, strict=True)]
        made = [str(size + 2 * cut) for size, cut in zip(sizes, cuts, strict=True)]
        result = "T" if self.bias or not reached else "O"
        cell = f"[n, {unit}, {', '.join(places)} : N, F, {', '.join(made)}]"
        term = f"I[n, {source}, ...] * weight[{source}, f, {', '.join(taps)}]"
        text = f"function ({head}) -> (O) {{ {result}{cell} = +({term}){bounds};"
        if result == "T":
            cells = ", ".join(f"{index} + {cut}" for index, cut in zip(AXES[-self.rank :], cuts, strict=True))
            rest = ", ".join(map(str, sizes))
            text += f" O[n, f, ... : N, F, {rest}] = +(T[n, f, {cells}]{' + bias[f]' * self.bias});"
        return function(f"{text} }}", shape, F=self.filters, M=self.filters // self.groups)


@dataclass(frozen=True)
class ConvTranspose1D(_Transposed):
    """The transposed convolution of (units, width): what the gradient of a Conv1D's input is, as a layer.

    output[f, stride*x + dilation*k - padding] += input[c, x] * weight[c, f, k]; the output is
    ``(width - 1) * stride + dilation * (kernel_size - 1) + 1 + output_padding - 2 * padding`` wide. Parameters:
    ``weight`` (units, filters / groups, kernel_size), as PyTorch has it, and ``bias`` (filters,).

    Args:
        filters: output units.
        kernel_size: of the convolution that this is the adjoint of, an int.
        stride: likewise.
        padding: likewise.
        dilation: likewise.
        output_padding: more cells at the end.
        groups: into which input and output units are divided.
        bias: whether to add one number a unit.
        activation: a function to apply to the output, see Activation.
        initializer: how ``weight`` starts, see blobnet.layers.initializers.

    Raises:
        OptionError: an argument is out of range.
    """

    rank: ClassVar[int] = 1


@dataclass(frozen=True)
class ConvTranspose2D(_Transposed):
    """The transposed convolution of (units, height, width); sizes are ints or (vertical, horizontal).

    As ConvTranspose1D, along both axes; ``weight`` is (units, filters / groups, height, width).
    """

    rank: ClassVar[int] = 2


@dataclass(frozen=True)
class ConvTranspose3D(_Transposed):
    """The transposed convolution of (units, depth, height, width); sizes are ints, or one for each axis.

    As ConvTranspose1D, along all axes; ``weight`` is (units, filters / groups, depth, height, width).
    """

    rank: ClassVar[int] = 3
