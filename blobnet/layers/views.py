"""Layers that only move values: parts of axes, other orders of axes, zeros around them, other shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, ClassVar

from blobnet.contraction.build import Builder
from blobnet.contraction.form import Affine, Tensor, apply
from blobnet.errors import OptionError, ShapeError
from blobnet.launch.kernel_call import Blob, KernelCall
from blobnet.layers.base import Layer, LayerContext, Node, Placement, Placements
from blobnet.layers.lowered import ContractionLayer, axes_of
from blobnet.memory.blob import Shape
from blobnet.support.checks import is_int


@dataclass(frozen=True)
class Reshape(Layer):
    """The values of a sample, in their order (unit, z, y, x), in another shape.

    Args:
        shape: (units,), (units, width), (units, height, width) or (units, depth, height, width); one of them may be
            -1, what is left.

    Raises:
        OptionError: the shape is no such tuple.
    """

    shape: Sequence[int]
    moves_values: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes = self.shape if isinstance(self.shape, tuple) else ()
        known = [size for size in sizes if size != -1]
        fits = 1 <= len(sizes) <= 4 and all(is_int(size, 1) for size in known) and len(sizes) - len(known) < 2
        self._require(
            fits, "shape must be (units[[, depth], height][, width]), of which one may be -1", shape=self.shape
        )

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        known = math.prod(size for size in self.shape if size != -1)
        left, rest = divmod(inputs[0].elements, known)
        fits = rest == 0 and (left == 1 or -1 in self.shape)
        self._require_shape(fits, "the shape must hold the input's values", input=inputs[0], shape=self.shape)
        return Shape(*(left if size == -1 else size for size in self.shape))

    def placement(self, inputs: Sequence[Shape], training: bool) -> Placements:
        return Placements(Placement.SHARED, Placement.SHARED)

    def forward(self, site: LayerContext) -> list[KernelCall]:
        return site.copied_input(0, site.output)

    def backward_data(self, site: LayerContext) -> list[KernelCall]:
        return site.copied_delta(0, site.delta)


@dataclass(frozen=True)
class Permute(ContractionLayer):
    """The axes of a sample in another order: ``Permute((1, 0))`` makes (width, units) of (units, width).

    Args:
        order: for each axis of the output which axis of the input it is; 0 are the units.

    Raises:
        OptionError: that is no order of axes.
    """

    order: Sequence[int]
    moves_values: ClassVar[bool] = True
    keeps_inputs: ClassVar[bool] = False
    copy_reason: ClassVar[str] = "axes in another order"

    def __post_init__(self) -> None:
        super().__post_init__()
        fits = isinstance(self.order, tuple) and sorted(self.order) == list(range(len(self.order)))
        self._require(fits and bool(self.order), "order must have each axis of a sample once", order=self.order)

    def define(self, built: Builder, inputs: Sequence[Tensor]) -> None:
        (given,) = inputs
        self._require_rank(Shape(*given.shape[1:]), len(self.order) - 1)
        n, *axes = axes_of(given)
        built.sum("O", (n, *(axes[axis] for axis in self.order)), given(n, *axes))


@dataclass(frozen=True)
class Interleave(ContractionLayer):
    """The units of two inputs of one shape, in turns: the first one's first, the second one's first, ...

        output(n, 2 * c + k, ...) = input k(n, c, ...)

    (N, C, ...), (N, C, ...) -> (N, 2 * C, ...). It is a concat and, after it, the channel shuffle of two groups (Zhang
    et al., *ShuffleNet*, 2018). Every value is moved.
    """

    arity: ClassVar[tuple[int, int | None]] = (2, 2)
    moves_values: ClassVar[bool] = True
    keeps_inputs: ClassVar[bool] = False
    copy_reason: ClassVar[str] = "units in another order"

    def define(self, built: Builder, inputs: Sequence[Tensor]) -> None:
        first, second = inputs
        shapes = " ".join(str(Shape(*tensor.shape[1:])) for tensor in inputs)
        self._require_shape(first.shape == second.shape, "both inputs must have the same shape", inputs=shapes)
        (n, c, *at), k = axes_of(first), Affine.index("k")
        term = apply("select", apply("less", k, 1), first(n, c, *at), second(n, c, *at))
        samples, units, *sizes = first.shape
        built.sum("O", (n, c * 2 + k, *at), term, k < 2, shape=(samples, 2 * units, *sizes))


@dataclass(frozen=True)
class Pad(ContractionLayer):
    """Zeros around the planes.

    Args:
        padding: cells on every side of every spatial axis; or for each axis a number, or (before, after).

    Raises:
        OptionError: a number that is none, or negative.
    """

    padding: int | Sequence[int | Sequence[int]]
    moves_values: ClassVar[bool] = True
    keeps_inputs: ClassVar[bool] = False
    copy_reason: ClassVar[str] = "zeros around the planes"

    def __post_init__(self) -> None:
        super().__post_init__()
        sides = [side for axis in self._sides(1) for side in axis]
        rule = "padding must be an int of at least 0, or for each spatial axis one, or (before, after)"
        self._require(all(is_int(side, 0) for side in sides), rule, padding=self.padding)

    def _sides(self, rank: int) -> list[tuple[Any, Any]]:
        values: Sequence[Any] = self.padding if isinstance(self.padding, tuple) else (self.padding,) * rank
        pairs = [value if isinstance(value, tuple) else (value, value) for value in values]
        return [pair if len(pair) == 2 else (None, None) for pair in pairs]

    def define(self, built: Builder, inputs: Sequence[Tensor]) -> None:
        (given,) = inputs
        shape, (n, c, *at) = Shape(*given.shape[1:]), axes_of(given)
        sides = self._sides(shape.rank)
        fits = 0 < shape.rank == len(sides)
        self._require_shape(fits, "there must be padding for each spatial axis", input=shape, padding=self.padding)
        cell = [index + before for index, (before, _) in zip(at, sides, strict=True)]
        sizes = [size + sum(both) for size, both in zip(shape.sizes, sides, strict=True)]
        built.sum("O", (n, c, *cell), given(n, c, *at), shape=(*given.shape[:2], *sizes))


@dataclass(frozen=True)
class Slice(ContractionLayer):
    """A part of every axis, as Python slices lists.

    Units side by side, of whole planes, are read where they lie, and their delta is written where it belongs if other
    slices take the rest: then nothing is launched.

    Args:
        ranges: for the units, and then for each spatial axis, (start, stop) or (start, stop, step), or None for all of
            the axis; axes at the end may be left out. Numbers may be negative (from the end) or None, as in slices;
            a step is at least 1.

    Raises:
        OptionError: a range is none of these.
    """

    ranges: Sequence[Sequence[int | None] | None]
    moves_values: ClassVar[bool] = True
    keeps_inputs: ClassVar[bool] = False
    copy_reason: ClassVar[str] = "planes cut, left out or taken twice"

    def __post_init__(self) -> None:
        super().__post_init__()
        rule = "ranges must have (start, stop), (start, stop, step) or None for each axis, with steps of at least 1"
        fits = isinstance(self.ranges, tuple) and 1 <= len(self.ranges) <= 4
        for item in self.ranges if fits else ():
            whole = item is None or (isinstance(item, tuple) and 2 <= len(item) <= 3)
            numbers = all(number is None or is_int(number, -(2**31)) for number in item or ()) if whole else False
            fits = fits and numbers and (item is None or len(item) == 2 or item[2] is None or item[2] >= 1)
        self._require(fits, rule, ranges=self.ranges)

    def _parts(self, shape: Shape) -> list[range]:
        """Return the part that is taken of each axis."""
        fits = len(self.ranges) <= 1 + shape.rank
        self._require_shape(fits, "there must be no more ranges than axes", input=shape, ranges=self.ranges)
        ranges = (*self.ranges, *(None,) * (1 + shape.rank - len(self.ranges)))
        slices = [slice(*item) if item else slice(None) for item in ranges]
        parts = [range(size)[part] for part, size in zip(slices, shape.dimensions, strict=True)]
        rule = "every range must have something of its axis"
        self._require_shape(all(parts), rule, input=shape, ranges=self.ranges)
        return parts

    @property
    def _takes_whole_planes(self) -> bool:
        units, *axes = (item or (None,) for item in self.ranges)
        whole = all(item in ((None,), (None, None), (0, None)) for item in (axis[:2] for axis in axes))
        return whole and all(item[2:] in ((), (None,), (1,)) for item in (units, *axes))

    def placement(self, inputs: Sequence[Shape], training: bool) -> Placements:
        if self._takes_whole_planes:
            return Placements(Placement.PART, Placement.PART, self._parts(inputs[0])[0].start)
        return super().placement(inputs, training)

    def forward(self, site: LayerContext) -> list[KernelCall]:
        return [] if self._is_part(site, site.output, site.inputs[0]) else super().forward(site)

    def backward_data(self, site: LayerContext) -> list[KernelCall]:
        target = site.input_deltas[0]
        return [] if target and self._is_part(site, site.delta, target) else super().backward_data(site)

    def _is_part(self, site: LayerContext, part: Blob, whole: Blob) -> bool:
        """Return True if a blob is those units of another one, in its memory."""
        if part.storage != whole.storage:
            return False
        first = self._parts(site.shapes[0])[0].start
        return part == replace(whole, layout=whole.layout.slice_units(first, part.layout.unit_count))

    def define(self, built: Builder, inputs: Sequence[Tensor]) -> None:
        (given,) = inputs
        parts, (n, *at) = self._parts(Shape(*given.shape[1:])), axes_of(given)
        cell = [index * part.step + part.start for index, part in zip(at, parts, strict=True)]
        built.sum("O", (n, *at), given(n, *cell), shape=(given.shape[0], *map(len, parts)))


def split(node: Node, sizes: Sequence[int], axis: int = 0) -> list[Node]:
    """A node in parts along an axis, 0 for the units: a Slice for each of ``sizes``.

    Raises:
        OptionError: the sizes are no whole numbers above 0, or there is no such axis.
        ShapeError: together they are not the size of the axis.
    """
    has_axis = is_int(axis, 0) and axis <= node.shape.rank
    if not has_axis or not all(is_int(size, 1) for size in sizes):
        rule = "sizes must be ints of at least 1, and the axis one of the node's"
        raise OptionError("split", rule, sizes=sizes, axis=axis, node=node.shape)
    if sum(sizes) != node.shape.dimensions[axis]:
        raise ShapeError("split", "the parts must be all of the axis", sizes=sizes, axis=axis, node=node.shape)
    ends = pairwise(accumulate(sizes, initial=0))
    return [Slice((*(None,) * axis, part))(node) for part in ends]
