"""Pooling over whole planes, and into planes of a size that is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from blobnet.contraction.build import Builder, indexes
from blobnet.contraction.form import Affine, Constraint, Number, Tensor
from blobnet.layers.lowered import AXES, ContractionLayer, axes_of
from blobnet.memory.blob import Shape


@dataclass(frozen=True)
class GlobalMaxPool(ContractionLayer):
    """The maximum of each unit over all its positions: (N, units, ...) -> (N, units).

    The delta goes to the first of equal maxima.
    """

    keeps_output: ClassVar[bool] = True

    def define(self, built: Builder, inputs: Sequence[Tensor]) -> None:
        (given,) = inputs
        shape, (n, c, *at) = Shape(*given.shape[1:]), axes_of(given)
        self._require_shape(shape.rank > 0, "the input must have spatial axes", input=shape)
        built.sum("O", (n, c), given(n, c, *at), aggregation=">")


@dataclass(frozen=True)
class _Adaptive(ContractionLayer):
    """The base of pooling into planes of a given size.

    Output cell p of P takes the cells from ``p * size // P`` to before ``ceil((p + 1) * size / P)``, as PyTorch does:
    those y for which 0 <= (y + 1) * P - p * size - 1 < size + P - 1.
    """

    output_size: int | tuple[int, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        self._per_axis("output_size", len(self.output_size) if isinstance(self.output_size, tuple) else 1)

    def _windows(self, shape: Shape) -> list[tuple[Affine, int, Constraint]]:
        """Return for each axis the output's index, its size, and the constraint of the window."""
        self._require_shape(shape.rank > 0, "the input must have spatial axes", input=shape)
        axes, sizes = AXES[-shape.rank :], self._per_axis("output_size", shape.rank)
        windows = []
        for axis, size, whole in zip(axes, sizes, shape.dimensions[1:], strict=True):
            (given, made) = indexes([axis, f"p{axis}"])
            windows.append((made, size, (given + 1) * size - made * whole - 1 < whole + size - 1))
        return windows


@dataclass(frozen=True)
class AdaptiveMaxPool(_Adaptive):
    """The maxima of windows that divide each axis into ``output_size`` parts: (N, units, ...) -> (N, units, *sizes).

    Windows are as alike as can be, and may share cells. The delta goes to the first of equal maxima.

    Args:
        output_size: an int for all spatial axes, or one for each.

    Raises:
        OptionError: a size below 1, or not as many sizes as the input has spatial axes.
        ShapeError: the input has no spatial axes.
    """

    keeps_output: ClassVar[bool] = True

    def define(self, built: Builder, inputs: Sequence[Tensor]) -> None:
        (given,) = inputs
        windows = self._windows(Shape(*given.shape[1:]))
        cells, sizes, bounds = zip(*windows, strict=True)
        cell, shape = axes_of(given), (*given.shape[:2], *sizes)
        built.sum("O", (*cell[:2], *cells), given(*cell), *bounds, shape=shape, aggregation=">")


@dataclass(frozen=True)
class AdaptiveAveragePool(_Adaptive):
    """The means of windows that divide each axis into ``output_size`` parts: (N, units, ...) -> (N, units, *sizes).

    Windows are as alike as can be, and may share cells.

    Args:
        output_size: an int for all spatial axes, or one for each.

    Raises:
        OptionError: a size below 1, or not as many sizes as the input has spatial axes.
        ShapeError: the input has no spatial axes.
    """

    keeps_inputs: ClassVar[bool] = False

    def define(self, built: Builder, inputs: Sequence[Tensor]) -> None:
        """A mean along one axis after the other."""
        (given,) = inputs
        cell = axes_of(given)
        names = [*(f"M{index}" for index in cell[2:-1]), "O"]
        for place, (own, size, bound) in enumerate(self._windows(Shape(*given.shape[1:])), start=2):
            inside = cell[place] < given.shape[place]
            count = built.sum(f"L{cell[place]}", (own,), Number(1.0), bound, inside, shape=(size,))
            target, shape = [*cell], [*given.shape]
            target[place], shape[place] = own, size
            given = built.sum(names[place - 2], target, given(*cell) / count(own), bound, shape=shape)
