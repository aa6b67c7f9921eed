"""Transposed convolutions: the adjoint of a convolution, run forward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from blobnet.contraction.build import Builder, indexes
from blobnet.contraction.form import Tensor
from blobnet.layers.activation import check_activation, split
from blobnet.layers.base import Layer
from blobnet.layers.initializers import check_initializer
from blobnet.layers.lowered import ContractionLayer, axes_of
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

    def define(self, built: Builder, inputs: Sequence[Tensor]) -> None:
        (given,) = inputs
        shape = Shape(*given.shape[1:])
        self._require_rank(shape, self.rank)
        divides = shape.units % self.groups == 0
        self._require_shape(divides, "groups must divide the input's units", input=shape, groups=self.groups)
        names = ("kernel_size", "stride", "padding", "output_padding", "dilation")
        sides = [*zip(*(self._per_axis(name, self.rank, least=0) for name in names), strict=True)]
        (n, c, *at), o, g = axes_of(given), *indexes("o g")
        taps = indexes(f"{index}k" for index in at)
        sizes = [
            (size - 1) * stride + dilation * (kernel - 1) + 1 + more - 2 * padding
            for size, (kernel, stride, padding, more, dilation) in zip(shape.sizes, sides, strict=True)
        ]
        rule = "the padding must leave something of the output"
        self._require_shape(min(sizes) > 0, rule, input=shape, padding=self.padding, output=tuple(sizes))
        each, own, unit, source, bounds = shape.units // self.groups, self.filters // self.groups, o, c, []
        if self.groups > 1:
            unit, source, bounds = g * own + o, g * each + c, [g < self.groups, o < own, c < each]
        weight = built.parameter("weight", shape.units, own, *(kernel for kernel, *_ in sides))
        bias = built.parameter("bias", self.filters) if self.bias else None
        # A contraction must have terms: where no input reaches the output, the whole is made, and cut behind that.
        windows = [WindowAxis(kernel, stride, dilation, (pad, pad)) for kernel, stride, pad, _, dilation in sides]
        reached = all(axis.meets(*pair) for axis, *pair in zip(windows, shape.sizes, sizes, strict=True))
        cuts = [0 if reached else axis.padding[0] for axis in windows]
        cell = [
            index * axis.stride + tap * axis.dilation - axis.padding[0] + cut
            for index, tap, axis, cut in zip(at, taps, windows, cuts, strict=True)
        ]
        whole = [size + 2 * cut for size, cut in zip(sizes, cuts, strict=True)]
        term = given(n, source, *at) * weight(source, o, *taps)
        shape_of = given.shape[0], self.filters
        is_last = reached and not bias
        made = built.sum("O" if is_last else "T", (n, unit, *cell), term, *bounds, shape=(*shape_of, *whole))
        if not is_last:
            value = made(n, o, *(index + cut for index, cut in zip(at, cuts, strict=True)))
            built.sum("O", (n, o, *at), value + bias(o) if bias else value, shape=(*shape_of, *sizes))


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
