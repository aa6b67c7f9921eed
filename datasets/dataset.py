"""The data set: a training split, perhaps a test split, and the names of its classes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from blobnet.errors import OptionError, counted, first_few
from blobnet.support.old_names import old_method

if TYPE_CHECKING:
    from blobnet.datasets.source import Source

# Values that are widened to float64 at a time: 8 MB, whatever the size of the data set.
CHUNK_ELEMENTS = 1 << 20
#: The class number of positions that take no part, in files of masks (that of Pascal VOC), unless a class has it.
IGNORED_LABEL = 255
#: The class of rows of boxes that are none.
NO_BOX = -1
#: Bytes of samples that are no array that statistics look at, at most about twice as many.
STATISTICS_BYTES = 1 << 28
#: Names of targets that a data set shows.
_MAX_NAMED = 5


def ignored_label(positions: tuple[int, ...], classes: int | None) -> int | None:
    """The class number that takes no part in labels in files: IGNORED_LABEL, where a position has one."""
    return IGNORED_LABEL if positions and (classes or 0) <= IGNORED_LABEL else None


def are_names(class_names: Sequence[str]) -> bool:
    """Return True if classes have names, and not the numbers that stand for missing names."""
    return list(class_names) != [str(number) for number in range(len(class_names))]


def held_out_rows(samples: int, fraction: float, seed: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the shuffled numbers of the samples that stay, and of the ``fraction`` of them that is held out.

    Raises:
        OptionError: the fraction leaves one of the two without samples.
    """
    count = round(samples * fraction) if 0 < fraction < 1 else 0
    if not 0 < count < samples:
        rule = "it must lie between 0 and 1 and leave samples on both sides"
        raise OptionError("fraction", rule, fraction=fraction, samples=samples)
    order = np.random.default_rng(seed).permutation(samples)
    return order[count:], order[:count]


@dataclass(frozen=True, eq=False, repr=False)
class Split:
    """Samples and what they should become.

    ``x`` is uint8 or float32, (N, C, H, W), (N, C, L) or (N, C): an array, or a :class:`Source` of samples that are
    read when they are asked for (``numpy.asarray(x[:10])`` reads ten); ``y`` is int64 class numbers (N,), whole numbers
    of any type where each position has one (N, height, width), or float32 targets (N, ...). Of boxes it is float32
    (N, boxes, 5): the class, and left, top, right and bottom as parts of the picture's width and height; where a
    picture has fewer boxes, the class of the other rows is -1. Where a file is too large
    for memory, ``y`` is a source too, and both have the file's types. ``files`` are the paths of the pictures, one for
    each sample; empty for samples that have no files of their own.
    """

    x: npt.NDArray[Any] | Source
    y: npt.NDArray[Any] | Source
    files: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.x)

    def __repr__(self) -> str:
        return f"{len(self)} samples of {self.shape}"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.x.shape[1:])

    def split_validation(self, fraction: float, seed: int) -> tuple[Split, Split]:
        """Return two splits, drawn by ``seed``: the first without, the second with ``fraction`` of the samples.

        The same seed gives the same parts.

        Raises:
            OptionError: the fraction leaves one of the two without samples.
        """
        kept, held_out = held_out_rows(len(self), fraction, seed)
        # What is measured is read in the order in which it lies in files.
        return self._some(kept), self._some(np.sort(held_out))

    parted = old_method("parted", "split_validation")

    def _some(self, rows: npt.NDArray[np.int64]) -> Split:
        return Split(self.x[rows], self.y[rows], tuple(self.files[row] for row in rows) if self.files else ())


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """A named data set; ``class_names`` is empty where ``y`` holds targets instead of class numbers.

    ``target_names`` are those of the targets of a sample (N, names), where they have some; ``has_several`` says that a
    target is 1 where a sample has the label of that name, of which it may have several, and 0 where not.
    ``validation`` is what the data set itself keeps for choosing between models, if it does.
    """

    name: str
    train: Split
    test: Split | None
    class_names: tuple[str, ...]
    validation: Split | None = None
    target_names: tuple[str, ...] = ()
    has_several: bool = False

    def __repr__(self) -> str:
        count = " + ".join(str(len(split)) for split in (self.train, self.validation, self.test) if split is not None)
        shape = tuple(self.train.y.shape[1:])
        goal = f"{self.classes} classes" if self.classes else f"targets of {shape}" if shape else "a target each"
        if self.target_names:
            count_of = counted(len(self.target_names), "label" if self.has_several else "number")
            goal = f"{count_of}: {first_few(self.target_names, _MAX_NAMED)}"
        goal += f" for each of {self.positions} positions" if self.positions else ""
        goal += f" in up to {shape[0]} boxes" if self.has_boxes else ""
        return f"{self.name}: {count} samples of {self.shape}, {goal}"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return self.train.shape

    @property
    def classes(self) -> int:
        """The number of classes; 0 if ``y`` holds targets."""
        return len(self.class_names)

    @property
    def positions(self) -> tuple[int, ...]:
        """The (height, width) of a sample's labels, where each position has a class; else ()."""
        return tuple(self.train.y.shape[1:]) if self.classes and not self.has_boxes else ()

    @property
    def has_boxes(self) -> bool:
        """True if ``y`` holds boxes with classes."""
        return bool(self.classes) and len(self.train.y.shape) == 3 and self.train.y.dtype.kind == "f"

    @property
    def ignored_label(self) -> int | None:
        """The class number of positions that take no part; None if all do."""
        return ignored_label(self.positions, self.classes)

    def statistics(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Mean and standard deviation of each unit (channel) of the training split: see :func:`sampled_statistics`."""
        return sampled_statistics(self.train.x)


def sampled_statistics(
    x: npt.NDArray[Any] | Source,
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Mean and standard deviation of each unit (channel) of samples: see :func:`unit_statistics`.

    Of samples that are read when they are asked for, STATISTICS_BYTES are read: every so many of them, from the first
    on.
    """
    return unit_statistics(x if isinstance(x, np.ndarray) else x[:: max(1, x.bytes // STATISTICS_BYTES)])


def unit_statistics(x: npt.NDArray[Any] | Source) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Mean and standard deviation of each unit (channel) of samples (N, C, ...), two float64 arrays (C,).

    The deviation of a constant unit is given as 1, so that dividing by it is always safe. Samples are read once.
    """
    units = x.shape[1]
    mean, squares, seen = np.zeros((units, 1)), np.zeros((units, 1)), 0
    # Distances from a value of the unit itself: those of a constant unit are exactly 0, without rounding.
    start = np.asarray(x[:1]).reshape(units, -1)[:, :1].astype(np.float64)
    step = max(1, CHUNK_ELEMENTS // math.prod(x.shape[1:]))
    # Means and squares of chunks are joined as by Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm
    # for computing sample variances" (1979).
    for first in range(0, len(x), step):
        chunk = np.asarray(x[first : first + step])
        distances = chunk.reshape(len(chunk), units, -1) - start
        count = distances.size // units
        centre = distances.mean(axis=(0, 2))[:, None]
        apart, total = centre - mean, seen + count
        squares += np.square(distances - centre).sum(axis=(0, 2))[:, None] + apart**2 * (seen * count / total)
        mean, seen = mean + apart * (count / total), total
    deviation = np.sqrt(squares / seen)[:, 0]
    return (start + mean)[:, 0], np.where(deviation == 0, 1.0, deviation)
