"""Crops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from blobnet.augment.base import Augmentation, Float64Array, Range, Rows, _between, _parts, _ratios
from blobnet.memory.blob import Shape
from blobnet.support.checks import is_int, plain


@dataclass(frozen=True)
class RandomCrop(Augmentation):
    """A part of the picture's own size, cut from it at random with a margin around it.

    Args:
        padding: the margin's cells on each side, so that the picture moves by up to so many, whole, cells.

    Raises:
        OptionError: the padding is no int of at least 1.
    """

    padding: int = 2
    rank: ClassVar[int] = 1
    moves: ClassVar[bool] = True
    aliases: ClassVar[tuple[str, ...]] = ("crop",)

    def __post_init__(self) -> None:
        object.__setattr__(self, "padding", plain(self.padding))
        if not is_int(self.padding, 1):
            self._fail("padding must be an int of at least 1", padding=self.padding)

    def check(self, shape: Shape) -> None:
        super().check(shape)
        least = shape.width if shape.rank == 1 else min(shape.height, shape.width)
        if self.padding >= least:
            self._fail("padding must be smaller than the picture", padding=self.padding, input=shape)

    def apply(self, rows: Rows, draws: Float64Array) -> None:
        down, right = np.floor(draws[:2] * (2 * self.padding + 1)) - self.padding
        rows.move((1, 1), (down if rows.shape.rank > 1 else 0, right))


@dataclass(frozen=True)
class RandomResizedCrop(Augmentation):
    """A part of the picture, enlarged to its size.

    Args:
        scale: the least and the most share of the picture's area.
        ratio: the least and the most width of the part over its height.

    Raises:
        OptionError: a range is none of numbers above 0, or shares are above 1.
    """

    scale: Range = (0.35, 1.0)
    ratio: Range = (3 / 4, 4 / 3)
    moves: ClassVar[bool] = True
    aliases: ClassVar[tuple[str, ...]] = ("resize",)

    def __post_init__(self) -> None:
        self._check_range("scale", 1)
        self._check_range("ratio")

    def apply(self, rows: Rows, draws: Float64Array) -> None:
        size = rows.shape.height, rows.shape.width
        parts = _parts(size, _between(draws[0], self.scale), _ratios(draws[1], self.ratio))
        scales = [part / whole for part, whole in zip(parts, size, strict=True)]
        # Cells are squares, whose middles have the whole numbers: the first one's edge is at -1/2.
        edges = [draw * (whole - part) for draw, whole, part in zip(draws[2:4], size, parts, strict=True)]
        rows.move(scales, [edge + scale / 2 - 0.5 for edge, scale in zip(edges, scales, strict=True)])
