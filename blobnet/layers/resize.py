"""Layers that change the size of planes, or move units into them and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from blobnet.contraction.build import Builder, indexes
from blobnet.contraction.form import Affine, Constraint, Position, Tensor, apply
from blobnet.layers.lowered import ContractionLayer, axes_of
from blobnet.memory.blob import Shape

_MODES = ("nearest", "bilinear")


@dataclass(frozen=True)
class Upsample(ContractionLayer):
    """Every spatial axis ``scale`` times as long; (N, units, height, width) -> (N, units, height * s, width * t).

    ``nearest`` repeats each cell. ``bilinear`` weighs the two nearest cells along each axis, cells being points in the
    middle of their squares, and repeats the cells at the edge beyond it: PyTorch's ``align_corners=False``. Along a
    single axis it is linear interpolation.

    Args:
        scale: an int for all spatial axes, or one for each.
        mode: ``nearest`` or ``bilinear``.

    Raises:
        OptionError: an argument is out of range.
    """

    scale: int | tuple[int, ...] = 2
    mode: str = "nearest"
    keeps_inputs: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._per_axis("scale", len(self.scale) if isinstance(self.scale, tuple) else 1)
        self._require(self.mode in _MODES, f"mode must be one of {', '.join(_MODES)}", mode=self.mode)

    def define(self, built: Builder, inputs: Sequence[Tensor]) -> None:
        (given,) = inputs
        rank = len(given.shape) - 2
        self._require_shape(rank > 0, "the input must have spatial axes", input=Shape(*given.shape[1:]))
        cell, k = axes_of(given), Affine.index("k")
        names = [*(f"T{index}" for index in cell[2:-1]), "O"]
        for place, scale in enumerate(self._per_axis("scale", rank), start=2):
            at, size = cell[place], given.shape[place]
            step = Affine.index(f"{at}s")
            reads, writes, shape = [*cell], [*cell], [*given.shape]
            writes[place], shape[place], bounds = at * scale + step, scale * size, [step < scale]
            weight = None
            if self.mode == "bilinear":
                # The output's cell lies at (s + 1/2) / scale - 1/2 after the input's cell, of the three around it.
                point = apply("add", at, apply("add", step, 0.5) / scale) - 0.5
                point = apply("min", apply("max", point, 0), size - 1)
                reads[place], bounds = at + k - 1, [k < 3, *bounds, at < size]
                weight = apply("max", 0, 1 - apply("abs", point - Position(at + k - 1)))
            term = weight * given(*reads) if weight else given(*reads)
            given = built.sum(names[place - 2], writes, term, *bounds, shape=shape)


@dataclass(frozen=True)
class _Blocks(ContractionLayer):
    """The base of layers that turn units into blocks of cells, or back."""

    block: int
    keeps_inputs: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_counts("block")

    def _cells(self) -> tuple[tuple[Affine, Affine, Affine, Affine], tuple[Affine, ...], tuple[Constraint, ...]]:
        """Return the map of what has blocks of units, that of what has blocks of cells, and bounds."""
        n, c, i, j, x, y = indexes("n c i j x y")
        block = self.block
        units = n, (c * block + i) * block + j, y, x
        return units, (n, c, y * block + i, x * block + j), (i < block, j < block)


@dataclass(frozen=True)
class DepthToSpace(_Blocks):
    """Units become cells: (N, units * b^2, height, width) -> (N, units, height * b, width * b).

    Of each b^2 units that follow one another, one after the other goes into a row of a block of b x b cells (Shi et
    al., *Real-Time Single Image and Video Super-Resolution Using an Efficient Sub-Pixel CNN*, 2016: pixel shuffle).

    Args:
        block: b, at least 1.

    Raises:
        OptionError: a block below 1.
        ShapeError: the input has no two spatial axes, or block^2 does not divide its units.
    """

    def define(self, built: Builder, inputs: Sequence[Tensor]) -> None:
        shape, block, (units, cells, bounds) = Shape(*inputs[0].shape[1:]), self.block, self._cells()
        self._require_rank(shape, 2)
        divides = shape.units % block**2 == 0
        self._require_shape(divides, "the input's units must be a multiple of block^2", input=shape, block=block)
        sizes = inputs[0].shape[0], shape.units // block**2, shape.height * block, shape.width * block
        built.sum("O", cells, inputs[0](*units), *bounds, shape=sizes)


@dataclass(frozen=True)
class SpaceToDepth(_Blocks):
    """Cells become units: (N, units, height * b, width * b) -> (N, units * b^2, height, width); undoes DepthToSpace.

    Args:
        block: b, at least 1.

    Raises:
        OptionError: a block below 1.
        ShapeError: the input has no two spatial axes, or the block does not divide them.
    """

    def define(self, built: Builder, inputs: Sequence[Tensor]) -> None:
        shape, block, (units, cells, bounds) = Shape(*inputs[0].shape[1:]), self.block, self._cells()
        self._require_rank(shape, 2)
        divides = shape.height % block == 0 and shape.width % block == 0
        self._require_shape(divides, "height and width must be multiples of block", input=shape, block=block)
        sizes = inputs[0].shape[0], shape.units * block**2, shape.height // block, shape.width // block
        built.sum("O", units, inputs[0](*cells), *bounds, shape=sizes)
