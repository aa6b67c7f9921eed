"""Brightness, contrast and saturation."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from blobnet.augment.base import Augmentation, Float64Array, Rows, _between
from blobnet.memory.blob import Shape


@dataclass(frozen=True)
class _Colour(Augmentation):
    """The base of changes of colours: a distance is multiplied by a factor from 1 - amount to 1 + amount."""

    amount: float = 0.2
    rank: ClassVar[int] = 0

    def __post_init__(self) -> None:
        self._check_share("amount")

    def apply(self, rows: Rows, draws: Float64Array) -> None:
        factors = _between(draws[0], (1 - self.amount, 1 + self.amount))
        rest = self._rest(rows.colours, 1 - factors)
        rows.colours *= factors
        rows.colours += rest

    @abstractmethod
    def _rest(self, colours: Float64Array, others: Float64Array) -> Float64Array:
        """Return what is added to the multiplied colours, (4, count): ``others`` times the origin of distances."""


@dataclass(frozen=True)
class Brightness(_Colour):
    """All values times a factor from 1 - amount to 1 + amount.

    Args:
        amount: from 0 to 1.

    Raises:
        OptionError: the amount is no finite number of at least 0, or above 1.
    """

    def _rest(self, colours: Float64Array, others: Float64Array) -> Float64Array:
        return np.zeros((4, 1))


@dataclass(frozen=True)
class Contrast(_Colour):
    """The distance of all values to the mean of their unit (the input layer's) times such a factor.

    Args:
        amount: from 0 to 1.

    Raises:
        OptionError: the amount is no finite number of at least 0, or above 1.
    """

    def _rest(self, colours: Float64Array, others: Float64Array) -> Float64Array:
        return np.array([[0.0], [0.0], [1.0], [0.0]]) * others


@dataclass(frozen=True)
class Saturation(_Colour):
    """The distance of all values to the gray of their cell, 0.299 red + 0.587 green + 0.114 blue, times such a factor.

    Args:
        amount: from 0 to 1.

    Raises:
        OptionError: the amount is no finite number of at least 0, or above 1.
    """

    def check(self, shape: Shape) -> None:
        if shape.units != 3:
            self._fail("the model's input must have three units: red, green and blue", input=shape)

    def _rest(self, colours: Float64Array, others: Float64Array) -> Float64Array:
        # The gray of gray is that gray, so that the result is a sum of the same four.
        sample, gray, mean, gray_mean = colours
        nothing = np.zeros_like(others)
        return np.stack([nothing, others * (sample + gray), nothing, others * (mean + gray_mean)])
