"""What every data set is: a training split, perhaps a test split, and the names of its classes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from blobnet.errors import OptionError

# Values that are widened to float64 at a time: 8 MB, whatever the size of the data set.
CHUNK_ELEMENTS = 1 << 20


@dataclass(frozen=True, eq=False, repr=False)
class Split:
    """Samples and what they should become.

    ``x`` is uint8 or float32, (N, C, H, W), (N, C, L) or (N, C); ``y`` is int64 class numbers (N,), or float32 targets
    (N, ...).
    """

    x: npt.NDArray[Any]
    y: npt.NDArray[Any]

    def __len__(self) -> int:
        return len(self.x)

    def __repr__(self) -> str:
        return f"{len(self)} samples of {self.shape}"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.x.shape[1:])

    def parted(self, fraction: float, seed: int) -> tuple[Split, Split]:
        """Two splits, shuffled: the first without, the second with ``fraction`` of the samples.

        The same seed gives the same parts.

        Raises:
            OptionError: the fraction leaves one of the two without samples.
        """
        count = round(len(self) * fraction) if 0 < fraction < 1 else 0
        if not 0 < count < len(self):
            raise OptionError(
                "fraction",
                "it must lie between 0 and 1 and leave samples on both sides",
                fraction=fraction,
                samples=len(self),
            )
        order = np.random.default_rng(seed).permutation(len(self))
        kept, held_out = order[count:], order[:count]
        return Split(self.x[kept], self.y[kept]), Split(self.x[held_out], self.y[held_out])


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """A named data set; ``class_names`` is empty where ``y`` holds targets instead of class numbers."""

    name: str
    train: Split
    test: Split | None
    class_names: tuple[str, ...]

    def __repr__(self) -> str:
        count = str(len(self.train)) if self.test is None else f"{len(self.train)} + {len(self.test)}"
        goal = f"{self.classes} classes" if self.classes else f"targets of {tuple(self.train.y.shape[1:])}"
        return f"{self.name}: {count} samples of {self.shape}, {goal}"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return self.train.shape

    @property
    def classes(self) -> int:
        """How many classes there are; 0 where ``y`` holds targets."""
        return len(self.class_names)

    def with_validation(self, fraction: float, seed: int) -> Dataset:
        """The same data set with a shuffled ``fraction`` of the training samples held out as its test split.

        Raises:
            OptionError: there is a test split already, or the fraction leaves one of the two without samples.
        """
        if self.test is not None:
            raise OptionError(
                self.name,
                "only a data set without a test split can hold one out",
                hint="part the training split itself: dataset.train.parted(fraction, seed)",
                test=self.test,
            )
        train, test = self.train.parted(fraction, seed)
        return replace(self, train=train, test=test)

    def statistics(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Mean and standard deviation of each unit (channel) of the training split, two float64 arrays (C,).

        The deviation of a constant unit is given as 1, so that dividing by it is always safe.
        """
        samples = self.train.x.reshape(len(self.train), self.shape[0], -1)
        # Distances from a value of the unit itself: those of a constant unit are exactly 0, without rounding.
        start = samples[0, :, :1].astype(np.float64)
        count = samples.shape[0] * samples.shape[2]
        step = max(1, CHUNK_ELEMENTS // samples[0].size)
        chunks = range(0, len(samples), step)
        distance = sum((samples[first : first + step] - start).sum(axis=(0, 2)) for first in chunks) / count
        centre = start + np.reshape(distance, (-1, 1))
        squares = sum(np.square(samples[first : first + step] - centre).sum(axis=(0, 2)) for first in chunks)
        deviation = np.sqrt(np.asarray(squares) / count)
        return centre[:, 0], np.where(deviation == 0, 1.0, deviation)
