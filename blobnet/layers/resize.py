"""Layers that change the size of planes, or move units into them and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from blobnet.contraction import Function
from blobnet.layers.lowered import AXES, ContractionLayer, function
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

    def function(self, inputs: Sequence[Shape]) -> Function:
        shape = inputs[0]
        self._require_shape(shape.rank > 0, "the input must have spatial axes", input=shape)
        axes, scales = AXES[-shape.rank :], self._per_axis("scale", shape.rank)
        statements, names = [], ["I", *(f"T{axis}" for axis in axes[:-1]), "O"]
        sizes = [axis.upper() for axis in axes]
        for place, (axis, scale) in enumerate(zip(axes, scales, strict=True)):
            reads, writes = list(axes), list(axes)
            term, writes[place] = "", f"{scale}*{axis} + s"
            bounds = f"s < {scale}"
            if self.mode == "bilinear":
                # The output's cell lies at (s + 1/2) / scale - 1/2 after the input's cell, of the three around it.
                point = f"min(max({axis} + (s + 0.5) / {scale} - 0.5, 0), {axis.upper()} - 1)"
                reads[place], bounds = f"{axis} + k - 1", f"k < 3, {bounds}, {axis} < {axis.upper()}"
                term = f"max(0, 1 - abs({point} - {axis} - k + 1)) * "
            sizes[place] = f"{scale}*{axis.upper()}"
            statements.append(
                f"{names[place + 1]}[n, c, {', '.join(writes)} : N, C, {', '.join(sizes)}]"
                f" = +({term}{names[place]}[n, c, {', '.join(reads)}]), {bounds};"
            )
        return function(f"function (I[N, C, ...]) -> (O) {{ {' '.join(statements)} }}", shape)


@dataclass(frozen=True)
class _Blocks(ContractionLayer):
    """The base of layers that turn units into blocks of cells, or back."""

    block: int
    keeps_inputs: ClassVar[bool] = False
    #: The layer, with B for the block.
    text: ClassVar[str]

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_counts("block")

    def function(self, inputs: Sequence[Shape]) -> Function:
        self._require_rank(inputs[0], 2)
        self._check(inputs[0])
        return function(self.text, B=self.block)

    def _check(self, shape: Shape) -> None:
        """Raises ShapeError where the input is no whole number of blocks."""
        raise NotImplementedError


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

    text: ClassVar[str] = """function (I[N, U, Y, X]) -> (O) {
      O[n, c, y*B + i, x*B + j : N, U / (B*B), Y*B, X*B] = +(I[n, c*B*B + i*B + j, y, x]), i < B, j < B;
    }"""

    def _check(self, shape: Shape) -> None:
        divides = shape.units % self.block**2 == 0
        self._require_shape(divides, "the input's units must be a multiple of block^2", input=shape, block=self.block)


@dataclass(frozen=True)
class SpaceToDepth(_Blocks):
    """Cells become units: (N, units, height * b, width * b) -> (N, units * b^2, height, width); undoes DepthToSpace.

    Args:
        block: b, at least 1.

    Raises:
        OptionError: a block below 1.
        ShapeError: the input has no two spatial axes, or the block does not divide them.
    """

    text: ClassVar[str] = """function (I[N, C, H, W]) -> (O) {
      O[n, c*B*B + i*B + j, y, x : N, C*B*B, H / B, W / B] = +(I[n, c, y*B + i, x*B + j]), i < B, j < B;
    }"""

    def _check(self, shape: Shape) -> None:
        divides = shape.height % self.block == 0 and shape.width % self.block == 0
        self._require_shape(divides, "height and width must be multiples of block", input=shape, block=self.block)
