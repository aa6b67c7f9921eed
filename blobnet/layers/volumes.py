"""Layers of three spatial axes: convolution and pooling of volumes."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import ClassVar

from blobnet.contraction.build import Builder, indexes
from blobnet.contraction.form import Affine, Constraint, Number, Tensor
from blobnet.layers.activation import check_activation, split
from blobnet.layers.base import Layer
from blobnet.layers.initializers import check_initializer
from blobnet.layers.lowered import AXES, ContractionLayer, axes_of
from blobnet.layers.windows import Filtering, Pooling
from blobnet.memory.blob import Shape
from blobnet.memory.windows import Padding, WindowAxis

_RANK = 3


def _taps() -> list[Affine]:
    """Return the indexes of a window's taps."""
    return indexes(f"{axis}k" for axis in AXES[-_RANK:])


def _cells(axes: Sequence[WindowAxis]) -> list[Affine]:
    """Return the map by which taps of windows read."""
    maps = zip(indexes([*AXES[-_RANK:]]), _taps(), axes, strict=True)
    return [index * axis.stride + tap * axis.dilation - axis.padding[0] for index, tap, axis in maps]


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

    def define(self, built: Builder, inputs: Sequence[Tensor]) -> None:
        (given,) = inputs
        shape = Shape(*given.shape[1:])
        sizes, windows, each = self._output_sizes(shape), self.windows(shape), shape.units // self.groups
        (n, c, *at), o, g, taps = axes_of(given), *indexes("o g"), _taps()
        filters, units, bounds = o, c, []
        if self.groups > 1:
            own = self.filters // self.groups
            filters, units, bounds = g * own + o, g * each + c, [o < own, g < self.groups]
        weight = built.parameter("weight", self.filters, each, *(axis.kernel for axis in windows))
        bias = built.parameter("bias", self.filters) if self.bias else None
        if not all(axis.meets(*pair) for axis, *pair in zip(windows, sizes, shape.axes, strict=True)):
            # A contraction must have terms: where windows see nothing but zeros, these are written around the data.
            cell = [index + axis.padding[0] for index, axis in zip(at, windows, strict=True)]
            whole = [size + sum(axis.padding) for size, axis in zip(shape.axes, windows, strict=True)]
            given = built.sum("P", (n, c, *cell), given(n, c, *at), shape=(*given.shape[:2], *whole))
            windows = tuple(replace(axis, padding=(0, 0)) for axis in windows)
        term = given(n, units, *_cells(windows)) * weight(filters, c, *taps)
        made = (given.shape[0], self.filters, *sizes)
        total = built.sum("T" if bias else "O", (n, filters, *at), term, *bounds, shape=made)
        if bias:
            built.sum("O", (n, o, *at), total(n, o, *at) + bias(o))


@dataclass(frozen=True)
class _Pool3D(Pooling, ContractionLayer):
    """The base of pooling over windows of volumes."""

    pool_size: int | tuple[int, ...]
    stride: int | tuple[int, ...] | None = None
    padding: Padding = 0
    rank: ClassVar[int] = _RANK

    def _windows(self, given: Tensor) -> tuple[tuple[WindowAxis, ...], tuple[int, ...], list[Constraint]]:
        """Return the windows over an input, the output's shape, and the bounds of the taps."""
        shape = Shape(*given.shape[1:])
        made, windows = (*given.shape[:2], *self._output_sizes(shape)), self.windows(shape)
        return windows, made, [tap < axis.kernel for tap, axis in zip(_taps(), windows, strict=True)]


@dataclass(frozen=True)
class MaxPool3D(_Pool3D):
    """The largest value in a window that slides over each volume: as MaxPool2D, along three axes."""

    keeps_output: ClassVar[bool] = True

    def define(self, built: Builder, inputs: Sequence[Tensor]) -> None:
        (given,) = inputs
        (windows, shape, bounds), (n, c, *at) = self._windows(given), axes_of(given)
        built.sum("O", (n, c, *at), given(n, c, *_cells(windows)), *bounds, shape=shape, aggregation=">")


@dataclass(frozen=True)
class AveragePool3D(_Pool3D):
    """The mean over a window that slides over each volume: as AveragePool2D, along three axes."""

    count_include_pad: bool = True
    keeps_inputs: ClassVar[bool] = False

    def define(self, built: Builder, inputs: Sequence[Tensor]) -> None:
        (given,) = inputs
        (windows, shape, bounds), (n, c, *at) = self._windows(given), axes_of(given)
        cell, value = (n, c, *at), given(n, c, *_cells(windows))
        if self.count_include_pad:
            area = math.prod(axis.kernel for axis in windows)
            built.sum("O", cell, value / area, *bounds, shape=shape)
            return
        total, counts = built.sum("S", cell, value, *bounds, shape=shape), []
        for index, axis, size, made in zip(at, windows, given.shape[2:], shape[2:], strict=True):
            k = Affine.index("k")
            inside = index * axis.stride + k - axis.padding[0] < size
            counts.append(built.sum(f"L{index}", (index,), Number(1.0), k < axis.kernel, inside, shape=(made,))(index))
        built.sum("O", cell, total(*cell) / reduce(operator.mul, counts))
