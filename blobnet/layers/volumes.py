"""Layers of three spatial axes: convolution and pooling of volumes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from blobnet.contraction import Function
from blobnet.layers.activation import check_activation, split
from blobnet.layers.base import Layer
from blobnet.layers.initializers import check_initializer
from blobnet.layers.lowered import AXES, ContractionLayer, function
from blobnet.layers.windows import Filtering, Pooling
from blobnet.memory.blob import Shape
from blobnet.memory.windows import Padding, WindowAxis

_RANK = 3


def _cells(axes: Sequence[WindowAxis]) -> str:
    """Return the maps by which taps of windows read: of the window's index, and of the tap's, k and its axis."""
    maps = zip(AXES[-_RANK:], axes, strict=True)
    return ", ".join(f"{axis.stride}*{name} + {axis.dilation}*k{name} - {axis.padding[0]}" for name, axis in maps)


@dataclass(frozen=True)
class Conv3D(Filtering, ContractionLayer):
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
        initializer: how ``weight`` starts, see blobnet.layers.initializers.

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
    rank: ClassVar[int] = _RANK
    sized_by: ClassVar[str] = "filters"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(isinstance(self.bias, bool), "bias must be True or False", bias=self.bias)
        check_activation(self, self.activation)
        check_initializer(self.subject, self.initializer)

    def expanded(self) -> tuple[Layer, ...]:
        return split(self, self.activation)

    def start(self, name: str, shape: Sequence[int]) -> str:
        return self.initializer if name == "weight" else super().start(name, shape)

    def function(self, inputs: Sequence[Shape]) -> Function:
        shape = inputs[0]
        sizes, axes = self._output_sizes(shape), self.windows(shape)
        each = shape.units // self.groups
        filters, units, bounds = "f", "c", ""
        if self.groups > 1:
            filters, units = f"g*{self.filters // self.groups} + f", f"g*{each} + c"
            bounds = f", f < {self.filters // self.groups}, g < {self.groups}"
        taps = ", ".join(str(axis.kernel) for axis in axes)
        cell = f"[n, {filters}, ... : N, F, {', '.join(map(str, sizes))}]"
        source, reads, padded = "I", axes, ""
        if not all(axis.meets(*pair) for axis, *pair in zip(axes, sizes, shape.axes, strict=True)):
            # A contraction must have terms: where windows see nothing but zeros, these are written around the data.
            source, reads = "P", tuple(replace(axis, padding=(0, 0)) for axis in axes)
            at = ", ".join(f"{name} + {axis.padding[0]}" for name, axis in zip(AXES[-_RANK:], axes, strict=True))
            whole = ", ".join(str(size + sum(axis.padding)) for size, axis in zip(shape.axes, axes, strict=True))
            padded = f" P[n, c, {at} : N, U, {whole}] = +(I[n, c, ...]);"
        term = f"{source}[n, {units}, {_cells(reads)}] * weight[{filters}, c, kz, ky, kx]"
        text = f"function (I[N, U, ...], weight[F, C, {taps}]{', bias[F]' * self.bias}) -> (O) {{{padded}"
        text += f" {'T' if self.bias else 'O'}{cell} = +({term}){bounds};"
        if self.bias:
            text += " O[n, f, ...] = +(T[n, f, ...] + bias[f]);"
        return function(f"{text} }}", shape, F=self.filters, C=each)


@dataclass(frozen=True)
class _Pool3D(Pooling, ContractionLayer):
    """The base of pooling over windows of volumes."""

    pool_size: int | tuple[int, ...]
    stride: int | tuple[int, ...] | None = None
    padding: Padding = 0
    rank: ClassVar[int] = _RANK

    def _texts(self, shape: Shape) -> tuple[tuple[WindowAxis, ...], str, str]:
        """The windows, the sizes of the output, and the constraints of the taps."""
        sizes, axes = ", ".join(map(str, self._output_sizes(shape))), self.windows(shape)
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
        axes, sizes, bounds = self._texts(inputs[0])
        text = f"O[n, c, ... : N, C, {sizes}] = >(I[n, c, {_cells(axes)}]), {bounds};"
        return function(f"function (I[N, C, ...]) -> (O) {{ {text} }}", inputs[0])


@dataclass(frozen=True)
class AveragePool3D(_Pool3D):
    """The mean over a window that slides over each volume: as AveragePool2D, along three axes."""

    count_include_pad: bool = True
    keeps_inputs: ClassVar[bool] = False

    def function(self, inputs: Sequence[Shape]) -> Function:
        axes, sizes, bounds = self._texts(inputs[0])
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
