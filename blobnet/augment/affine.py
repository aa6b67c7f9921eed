"""Turns, scales, shears and shifts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from blobnet.augment.base import Augmentation, Float64Array, Range, Rows, _between


@dataclass(frozen=True)
class RandomAffine(Augmentation):
    """The picture turned, moved and resized, about its middle.

    Args:
        degrees: the most to turn, either way.
        translate: the most to move, either way, as a share of the height and of the width.
        scale: the least and the most size, 1 for the picture's own.

    Raises:
        OptionError: a number below 0, or a range that is none of numbers above 0.
    """

    degrees: float = 10.0
    translate: float = 0.0
    scale: Range = (1.0, 1.0)
    moves: ClassVar[bool] = True
    aliases: ClassVar[tuple[str, ...]] = ("rotate",)

    def __post_init__(self) -> None:
        self._check_share("degrees", 180)
        self._check_share("translate")
        self._check_range("scale")

    def apply(self, rows: Rows, draws: Float64Array) -> None:
        angle = np.radians(_between(draws[0], (-self.degrees, self.degrees)))
        size = rows.shape.height, rows.shape.width
        middle = [(side - 1) / 2 for side in size]
        shifts = [
            side * _between(draw, (-self.translate, self.translate))
            for side, draw in zip(size, draws[1:3], strict=True)
        ]
        factor = 1 / _between(draws[3], self.scale)
        rows.move((1, 1), middle)
        cosine, sine, nothing = factor * np.cos(angle), factor * np.sin(angle), np.zeros(rows.count)
        rows.read_through(np.array([[cosine, sine, nothing], [-sine, cosine, nothing]]))
        rows.move((1, 1), [-place - shift for place, shift in zip(middle, shifts, strict=True)])
