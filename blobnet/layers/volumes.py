"""Layers of three spatial axes: convolution and pooling of volumes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from blobnet.blob import Shape
from blobnet.contraction import Function
from blobnet.geometry import Padding, WindowAxis, axes_of_window, axis_numbers, check_padding
from blobnet.initializers import check_initializer
from blobnet.layers.activation import check_activation, split
from blobnet.layers.base import Layer
from blobnet.layers.lowered import AXES, Lowered, function

_RANK = 3


def _cells(axes: Sequence[WindowAxis]) -> str:
    """Where the taps of windows read, as maps: the window's index, and the tap's, which is called k and its axis."""
    maps = zip(AXES[-_RANK:], axes, strict=True)
    return ", ".join(f"{axis.stride}*{name} + {axis.dilation}*k{name} - {axis.padding[0]}" for name, axis in maps)


@dataclass(frozen=True)
class Conv3D(Lowered):
    """The convolution of volumes: (units, depth, height, width) -> (filters, ...).

        output[f, z, y, x] = bias[f] + sum over c, a, b, d of
            weight[f, c, a, b, d] * input[c, z * stride + a * dilation - padding, likewise y and x]

    Parameters: ``weight`` (filters, units / groups, depth, height, width) and ``bias`` (filters,).

    Args:
        filters: output units.
        kernel_size: an int for all axes, or one for each.
        stride: likewise.
        dilation: likewise.
        padding: zeros around the data: an int, one for each axis, ((front, back), (top, bottom), (left, right)),
            "same" or "valid".
        groups: into which input and output units are divided.
        bias: whether to add one number a unit.
        activation: a function to apply to the output, see Activation.
        initializer: how ``weight`` starts, see blobnet.initializers.

    Raises:
        OptionError: an argument is out of range.
        ShapeError: the input has not these axes, or the filter does not fit it.
    """

    filters: int
    kernel_size: int | tuple[int, ...]
    stride: int | tuple[int, ...] = 1
    padding: Padding = 0
    dilation: int | tuple[int, ...] = 1
    groups: int = 1
    bias: bool = True
    activation: str | None = None
    initializer: str = "he_normal"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_counts("filters", "groups")
        for name in ("kernel_size", "stride", "dilation"):
            axis_numbers(self.subject, name, getattr(self, name), _RANK)
        check_padding(self.subject, self.padding, _RANK)
        self._require(isinstance(self.bias, bool), "bias must be True or False", bias=self.bias)
        divides = self.filters % self.groups == 0
        self._require(divides, "groups must divide filters", filters=self.filters, groups=self.groups)
        check_activation(self, self.activation)
        check_initializer(self.subject, self.initializer)

    def expanded(self) -> tuple[Layer, ...]:
        return split(self, self.activation)

    def with_outputs(self, count: int) -> Layer:
        return replace(self, filters=count)

    def start(self, name: str, shape: Sequence[int]) -> str:
        return self.initializer if name == "weight" else super().start(name, shape)

    def function(self, inputs: Sequence[Shape]) -> Function:
        shape = inputs[0]
        self._require_rank(shape, _RANK)
        divides = shape.units % self.groups == 0
        self._require_shape(divides, "groups must divide the input's units", input=shape, groups=self.groups)
        kernel, stride, dilation = (
            axis_numbers(self.subject, name, getattr(self, name), _RANK)
            for name in ("kernel_size", "stride", "dilation")
        )
        axes = axes_of_window(kernel, stride, dilation, self.padding, shape.sizes)
        fits = all(axis.fits(size) for axis, size in zip(axes, shape.sizes, strict=True))
        rule = "the dilated filter must fit the padded input"
        self._require_shape(fits, rule, input=shape, filter=tuple(axis.span for axis in axes), padding=self.padding)
        sizes = [axis.output_size(size) for axis, size in zip(axes, shape.sizes, strict=True)]
        each = shape.units // self.groups
        filters, units, bounds = "f", "c", ""
        if self.groups > 1:
            filters, units = f"g*{self.filters // self.groups} + f", f"g*{each} + c"
            bounds = f", f < {self.filters // self.groups}, g < {self.groups}"
        taps = ", ".join(str(axis.kernel) for axis in axes)
        cell = f"[n, {filters}, ... : N, F, {', '.join(map(str, sizes))}]"
        term = f"I[n, {units}, {_cells(axes)}] * weight[{filters}, c, kz, ky, kx]"
        text = f"function (I[N, U, ...], weight[F, C, {taps}]{', bias[F]' * self.bias}) -> (O) {{"
        text += f" {'T' if self.bias else 'O'}{cell} = +({term}){bounds};"
        if self.bias:
            text += " O[n, f, ...] = +(T[n, f, ...] + bias[f]);"
        return function(f"{text} }}", shape, F=self.filters, C=each)


@dataclass(frozen=True)
class _Pool3D(Lowered):
    """What pooling over windows of volumes shares."""

    pool_size: int | tuple[int, ...]
    stride: int | tuple[int, ...] | None = None
    padding: Padding = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in (("pool_size", self.pool_size), ("stride", self._stride)):
            axis_numbers(self.subject, name, value, _RANK)
        check_padding(self.subject, self.padding, _RANK)
        # 'same' depends on the input, and is always smaller than the window.
        explicit = self._windows((1, 1, 1)) if self.padding != "same" else ()
        smaller = all(max(axis.padding) < axis.kernel for axis in explicit)
        rule = "the padding on every side must be smaller than the window"
        self._require(smaller, rule, padding=self.padding, pool_size=self.pool_size)

    @property
    def _stride(self) -> int | tuple[int, ...]:
        return self.pool_size if self.stride is None else self.stride

    def _windows(self, sizes: Sequence[int]) -> tuple[WindowAxis, ...]:
        window = axis_numbers(self.subject, "pool_size", self.pool_size, _RANK)
        stride = axis_numbers(self.subject, "stride", self._stride, _RANK)
        return axes_of_window(window, stride, (1, 1, 1), self.padding, sizes)

    def _axes(self, shape: Shape) -> tuple[tuple[WindowAxis, ...], str, str]:
        """The windows, the sizes of the output, and the constraints of the taps."""
        self._require_rank(shape, _RANK)
        axes = self._windows(shape.sizes)
        fits = all(axis.fits(size) for axis, size in zip(axes, shape.sizes, strict=True))
        rule = "the window must not be larger than the padded input"
        self._require_shape(fits, rule, input=shape, pool_size=self.pool_size, padding=self.padding)
        sizes = ", ".join(str(axis.output_size(size)) for axis, size in zip(axes, shape.sizes, strict=True))
        return (
            axes,
            sizes,
            ", ".join(f"k{name} < {axis.kernel}" for name, axis in zip(AXES[-_RANK:], axes, strict=True)),
        )


@dataclass(frozen=True)
class MaxPool3D(_Pool3D):
    """The largest value in a window that slides over each volume: as MaxPool2D, along three axes."""

    keeps_output: ClassVar[bool] = True

    def function(self, inputs: Sequence[Shape]) -> Function:
        axes, sizes, bounds = self._axes(inputs[0])
        text = f"O[n, c, ... : N, C, {sizes}] = >(I[n, c, {_cells(axes)}]), {bounds};"
        return function(f"function (I[N, C, ...]) -> (O) {{ {text} }}", inputs[0])


@dataclass(frozen=True)
class AveragePool3D(_Pool3D):
    """The mean over a window that slides over each volume: as AveragePool2D, along three axes."""

    count_include_pad: bool = True
    keeps_inputs: ClassVar[bool] = False

    def function(self, inputs: Sequence[Shape]) -> Function:
        axes, sizes, bounds = self._axes(inputs[0])
        cell = f"[n, c, ... : N, C, {sizes}]"
        if self.count_include_pad:
            area = axes[0].kernel * axes[1].kernel * axes[2].kernel
            text = f"O{cell} = +(I[n, c, {_cells(axes)}] / {area}), {bounds};"
        else:
            text = f"S{cell} = +(I[n, c, {_cells(axes)}]), {bounds};"
            for name, axis, size in zip(AXES[-_RANK:], axes, sizes.split(", "), strict=True):
                place = f"{axis.stride}*{name} + k - {axis.padding[0]}"
                text += f" L{name}[{name} : {size}] = +(1), k < {axis.kernel}, {place} < {name.upper()};"
            text += " O[n, c, z, y, x] = +(S[n, c, z, y, x] / (Lz[z] * Ly[y] * Lx[x]));"
        return function(f"function (I[N, C, ...]) -> (O) {{ {text} }}", inputs[0])
