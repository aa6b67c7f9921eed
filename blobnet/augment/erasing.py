"""Erasing of rectangles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from blobnet.augment.base import Augmentation, Float64Array, Range, Rows, _between, _parts, _ratios


@dataclass(frozen=True)
class Erasing(Augmentation):
    """A rectangle of the result becomes the mean.

    Args:
        probability: that there is one.
        scale: the least and the most share of the picture's area.
        ratio: the least and the most width over height.

    Raises:
        OptionError: the probability is not from 0 to 1, or a range is none of numbers above 0.
    """

    probability: float = 0.5
    scale: Range = (0.02, 0.33)
    ratio: Range = (0.3, 3.3)
    numbers: ClassVar[int] = 5
    aliases: ClassVar[tuple[str, ...]] = ("erase",)

    def __post_init__(self) -> None:
        self._check_share("probability")
        self._check_range("scale", 1)
        self._check_range("ratio")

    def apply(self, rows: Rows, draws: Float64Array) -> None:
        size = rows.shape.height, rows.shape.width
        parts = np.rint(_parts(size, _between(draws[1], self.scale), _ratios(draws[2], self.ratio)))
        first = np.floor(draws[3:5] * (np.array(size)[:, None] - parts + 1))
        rows.erased = np.where(draws[0] < self.probability, [*first, *(first + parts)], 0)
