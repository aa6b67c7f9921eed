"""Mixtures of two samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from blobnet.augment.base import Augmentation, Float64Array, Rows, _symmetric_beta


@dataclass(frozen=True)
class _Mixture(Augmentation):
    """The base of mixtures of a sample with its partner."""

    alpha: float = 1.0
    probability: float = 1.0
    mixes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._check_number("alpha", above=0)
        self._check_share("probability")


@dataclass(frozen=True)
class Mixup(_Mixture):
    """The sample and its partner, each with a share, and their labels with the same (Zhang et al., *mixup*, 2018).

    Args:
        alpha: both parameters of the beta distribution that shares are drawn from: the smaller, the more of one alone.
        probability: that a sample is mixed.

    Raises:
        OptionError: alpha is not above 0, or the probability not from 0 to 1.
    """

    alpha: float = 0.2
    rank: ClassVar[int] = 0

    def apply(self, rows: Rows, draws: Float64Array) -> None:
        parts = _symmetric_beta(draws[2:4], self.alpha)
        rows.mix(draws, self.probability, (0, 0, rows.shape.height, rows.shape.width), parts)


@dataclass(frozen=True)
class CutMix(_Mixture):
    """A rectangle of the partner pasted into the sample; labels have the shares of the area (Yun et al., 2019).

    Args:
        alpha: both parameters of the beta distribution that the rectangle's part of the area is drawn from, before what
            reaches beyond the picture is cut off.
        probability: that there is a rectangle.

    Raises:
        OptionError: alpha is not above 0, or the probability not from 0 to 1.
    """

    numbers: ClassVar[int] = 6
    rank: ClassVar[int] = 1
    moves: ClassVar[bool] = True

    def apply(self, rows: Rows, draws: Float64Array) -> None:
        shape = rows.shape
        size = np.array([shape.height, shape.width])[:, None]
        sides = size * _symmetric_beta(draws[2:4], self.alpha) ** (1 / min(shape.rank, 2))  # Of every plane.
        if shape.rank == 1:
            sides[0] = 2  # The one row, wherever the middle is.
        middle = size * draws[4:6]
        first, end = (np.clip(np.rint(middle + sign * sides / 2), 0, size) for sign in (-1, 1))
        rows.mix(draws, self.probability, [*first, *end], 1)
