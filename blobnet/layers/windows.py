"""The base of convolutions and pools: windows that slide over the spatial axes of an input, one, two or three."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from blobnet.layers.base import Layer
from blobnet.memory.blob import Shape
from blobnet.memory.windows import Padding, WindowAxis, axes_of_window, axis_numbers, check_padding

#: What is one number for all axes, or one for each.
Numbers = int | tuple[int, ...]


class Windowed(Layer):
    """A layer whose outputs each see a window of the input; ``rank`` is the number of spatial axes."""

    rank: ClassVar[int]
    padding: Padding

    def __post_init__(self) -> None:
        super().__post_init__()
        self._numbers()
        check_padding(self.subject, self.padding, self.rank)

    @property
    @abstractmethod
    def _window(self) -> Mapping[str, Numbers]:
        """The hyperparameters that make the window: its size, its stride, and the distance between its cells if any."""

    def _numbers(self) -> list[tuple[int, ...]]:
        """These, for each axis."""
        return [axis_numbers(self.subject, name, value, self.rank) for name, value in self._window.items()]

    def windows(self, shape: Shape) -> tuple[WindowAxis, ...]:
        """The window along each axis of an input."""
        size, stride, dilation = (*self._numbers(), (1,) * self.rank)[:3]
        return axes_of_window(size, stride, dilation, self.padding, shape.axes[-self.rank :])

    def _axes(self, shape: Shape) -> tuple[WindowAxis, WindowAxis]:
        """The vertical and the horizontal one over planes; along a row a window stands still vertically."""
        vertical, horizontal = (WindowAxis(1), *self.windows(shape))[-2:]
        return vertical, horizontal

    def _fitting(self, shape: Shape, rule: str, hint: str | None = None, **received: object) -> tuple[int, ...]:
        """The windows along each axis of an input.

        Raises:
            ShapeError: it has not these axes, or is too small, for which there is the ``rule``.
        """
        self._require_rank(shape, self.rank)
        axes = list(zip(self.windows(shape), shape.sizes, strict=True))
        fits = all(axis.fits(size) for axis, size in axes)
        self._require_shape(fits, rule, hint=hint, input=shape, **received, padding=self.padding)
        return tuple(axis.output_size(size) for axis, size in axes)


class Filtering(Windowed):
    """A convolution: filters in ``groups``, whose taps are apart by a dilation."""

    filters: int
    groups: int
    kernel_size: Numbers
    stride: Numbers
    dilation: Numbers

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_counts("filters", "groups")
        divides = self.filters % self.groups == 0
        self._require(divides, "groups must divide filters", filters=self.filters, groups=self.groups)

    @property
    def _window(self) -> Mapping[str, Numbers]:
        return {"kernel_size": self.kernel_size, "stride": self.stride, "dilation": self.dilation}

    def _output_sizes(self, shape: Shape) -> tuple[int, ...]:
        """The axes of the output for an input."""
        self._require_rank(shape, self.rank)
        divides = shape.units % self.groups == 0
        self._require_shape(divides, "groups must divide the input's units", input=shape, groups=self.groups)
        spans = tuple(axis.span for axis in self.windows(shape))
        hint = "use a smaller filter, more padding, or pool less before this layer."
        return self._fitting(shape, "the dilated filter must fit the padded input", hint, filter=spans)


class Pooling(Windowed):
    """A pool, whose windows follow one another where there is no stride."""

    pool_size: Numbers
    stride: Numbers | None

    def __post_init__(self) -> None:
        super().__post_init__()
        # 'same' depends on the input, and is always smaller than the window.
        explicit = self.windows(Shape(1, *(1,) * self.rank)) if self.padding != "same" else ()
        smaller = all(max(axis.padding) < axis.kernel for axis in explicit)
        rule = "the padding on every side must be smaller than the window"
        self._require(smaller, rule, padding=self.padding, pool_size=self.pool_size)

    @property
    def _window(self) -> Mapping[str, Numbers]:
        return {"pool_size": self.pool_size, "stride": self.pool_size if self.stride is None else self.stride}

    def _output_sizes(self, shape: Shape) -> tuple[int, ...]:
        """The axes of the output for an input."""
        return self._fitting(shape, "the window must not be larger than the padded input", pool_size=self.pool_size)
