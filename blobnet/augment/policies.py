"""Policies: changes that are drawn from a list, with ranges that others have found.

Colours change first, by steps on the samples as they are (kernels/input/policy.cl); then the geometry of all changes
acts, as one map with that of other augmentations. AugMix does both in turn, in each of its chains.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from blobnet.augment.base import Augmentation, Float64Array, Rows
from blobnet.layers.input import POLICY_WORDS
from blobnet.memory.blob import Shape
from blobnet.support.checks import is_int, plain

#: The changes: torchvision's, by its names. The first one changes nothing.
CHANGES = (
    "Identity",
    "ShearX",
    "ShearY",
    "TranslateX",
    "TranslateY",
    "Rotate",
    "Brightness",
    "Posterize",
    "Solarize",
    "Contrast",
    "AutoContrast",
    "Equalize",
    "Color",
    "Sharpness",
)
_NUMBER = {name: number for number, name in enumerate(CHANGES)}
#: The kinds of steps, as kernels/input/policy.cl numbers them: colours in their order, after what keeps all.
_KEEP, _FIRST_COLOUR, _MOVE = 0, _NUMBER["Brightness"], 9
#: Those with a factor, 1 and more or less.
_FACTORS = [_NUMBER[name] for name in ("Brightness", "Contrast", "Color", "Sharpness")]
#: Those whose numbers are taken with either sign.
_SIGNED = np.isin(np.arange(len(CHANGES)), [*range(_NUMBER["ShearX"], _NUMBER["Rotate"] + 1), *_FACTORS])
_HIGHEST = 255
#: The share of a step after which another one goes on.
_GOES_ON = -1.0


class _Ranges(NamedTuple):
    """How far changes go.

    Attributes:
        shear: at most, as a share of the distance from an edge.
        shift: at most, of each axis (height, width), in cells; or as a share of it.
        is_share: which of these it is.
        angle: at most, in degrees.
        factor: by how much a factor is at most above or below 1.
        bits: of a value that are kept, at most and at least.
    """

    shear: float
    shift: float
    is_share: bool
    angle: float
    factor: float
    bits: tuple[int, int]

    def numbers(self, bins: int, shape: Shape) -> Float64Array:
        """Return the numbers of all changes, (changes, bins), from the least to the most: as torchvision has them."""
        shifts = [self.shift * (size if self.is_share else 1) for size in (shape.width, shape.height)]
        most = [0.0, self.shear, self.shear, *shifts, self.angle, self.factor, 0, 0, self.factor, 0, 0]
        numbers = np.linspace(0.0, [*most, self.factor, self.factor], bins, axis=1)
        numbers[_NUMBER["Posterize"]] = np.rint(np.linspace(*self.bits, bins))
        numbers[_NUMBER["Solarize"]] = np.linspace(_HIGHEST, 0, bins)
        return numbers


class _Drawn(NamedTuple):
    """A change for each sample: its place in CHANGES and its number, with its sign."""

    changes: npt.NDArray[np.intp]
    numbers: Float64Array

    def of(self, *names: str) -> Float64Array:
        """Return the numbers of samples with such changes; 0 for the others."""
        return np.where(np.isin(self.changes, [_NUMBER[name] for name in names]), self.numbers, 0)

    def maps(self, shape: Shape) -> Float64Array:
        """Return how they move cells, as Rows.maps: shears from the upper left corner, turns about the middle."""
        (middle_y, middle_x), angle = ((side - 1) / 2 for side in (shape.height, shape.width)), self.of("Rotate")
        shear_x, shear_y = self.of("ShearX"), self.of("ShearY")
        cosine, sine = np.cos(np.radians(angle)), np.sin(np.radians(angle))
        # Cells have their middles at whole numbers: the corner is at -1/2.
        down = (1 - cosine) * middle_y - sine * middle_x + shear_y / 2 - np.trunc(self.of("TranslateY"))
        right = (1 - cosine) * middle_x + sine * middle_y + shear_x / 2 - np.trunc(self.of("TranslateX"))
        return np.array([[cosine, sine + shear_y, down], [shear_x - sine, cosine, right]])

    def steps(self) -> Float64Array:
        """Return the steps of their colours, (POLICY_WORDS, count), which go on; others keep what is there."""
        found = np.zeros((POLICY_WORDS, len(self.changes)))
        found[0] = np.maximum(self.changes - _FIRST_COLOUR + 1, _KEEP)
        found[1] = _GOES_ON
        found[2] = self.numbers + np.isin(self.changes, _FACTORS)
        return found


@dataclass(frozen=True)
class _Policy(Augmentation):
    """The base of policies."""

    ranges: ClassVar[_Ranges]

    def _check_counts(self, **least: int) -> None:
        for name, bound in least.items():
            value = plain(getattr(self, name))
            object.__setattr__(self, name, value)
            if not is_int(value, bound):
                self._fail(f"{name} must be an int of at least {bound}", **{name: value})

    def _drawn(self, shape: Shape, bins: int, draws: Float64Array, places: Float64Array, *, first: int = 0) -> _Drawn:
        """Return a change for each sample.

        Args:
            shape: of a sample.
            bins: of how many numbers of a change there are.
            draws: (2, count), for the change and its sign.
            places: (count), which of these numbers.
            first: the first change that may be drawn.
        """
        changes = (first + draws[0] * (len(CHANGES) - first)).astype(np.intp)
        numbers = self.ranges.numbers(bins, shape)[changes, places.astype(np.intp)]
        return _Drawn(changes, np.where(_SIGNED[changes] & (draws[1] < 0.5), -numbers, numbers))


@dataclass(frozen=True)
class _InOrder(_Policy):
    """The base of policies that do one change after the other."""

    moves: ClassVar[bool] = True

    def apply(self, rows: Rows, draws: Float64Array) -> None:
        drawn = self._changes(rows.shape, draws)
        rows.steps = np.array([each.steps() for each in drawn])
        rows.steps[-1, 1] = 1
        for each in drawn:
            rows.read_through(each.maps(rows.shape))

    @abstractmethod
    def _changes(self, shape: Shape, draws: Float64Array) -> list[_Drawn]:
        """Return the changes, in their order."""


@dataclass(frozen=True)
class TrivialAugment(_InOrder):
    """One change of fourteen, with a number from all of a wide range (Müller and Hutter, *TrivialAugment*, 2021).

    Changes and ranges are those of torchvision's ``TrivialAugmentWide``. The samples must be pictures of uint8.

    Args:
        num_magnitude_bins: how many numbers of each range there are.

    Raises:
        OptionError: it is no int of at least 2.
    """

    num_magnitude_bins: int = 31
    ranges: ClassVar[_Ranges] = _Ranges(0.99, 32, is_share=False, angle=135, factor=0.99, bits=(8, 2))
    policy_steps: ClassVar[int] = 1
    aliases: ClassVar[tuple[str, ...]] = ("trivialaugment",)

    def __post_init__(self) -> None:
        self._check_counts(num_magnitude_bins=2)

    def _changes(self, shape: Shape, draws: Float64Array) -> list[_Drawn]:
        bins = self.num_magnitude_bins
        return [self._drawn(shape, bins, draws[:2], draws[2] * bins)]


@dataclass(frozen=True)
class RandAugment(_InOrder):
    """Changes of the same fourteen, all with numbers of one magnitude (Cubuk et al., *RandAugment*, 2019).

    Changes and ranges are those of torchvision's ``RandAugment``. The samples must be pictures of uint8.

    Args:
        num_ops: how many changes, one after the other.
        magnitude: from 0, the place of the number in its range.
        num_magnitude_bins: how many numbers of each range there are.

    Raises:
        OptionError: an argument is no int, or out of range.
    """

    num_ops: int = 2
    magnitude: int = 9
    num_magnitude_bins: int = 31
    ranges: ClassVar[_Ranges] = _Ranges(0.3, 150 / 331, is_share=True, angle=30, factor=0.9, bits=(8, 4))
    aliases: ClassVar[tuple[str, ...]] = ("randaugment",)

    def __post_init__(self) -> None:
        self._check_counts(num_ops=1, magnitude=0, num_magnitude_bins=2)
        if self.magnitude >= self.num_magnitude_bins:
            rule = "magnitude must be below num_magnitude_bins"
            self._fail(rule, magnitude=self.magnitude, num_magnitude_bins=self.num_magnitude_bins)

    @property
    def numbers(self) -> int:
        return 2 * self.num_ops

    @property
    def policy_steps(self) -> int:
        return self.num_ops

    def _changes(self, shape: Shape, draws: Float64Array) -> list[_Drawn]:
        places = np.full(draws.shape[1], float(self.magnitude))
        pairs = draws.reshape(self.num_ops, 2, -1)
        return [self._drawn(shape, self.num_magnitude_bins, pair, places) for pair in pairs]


@dataclass(frozen=True)
class AugMix(_Policy):
    """A mixture of the sample and of chains of changes of it (Hendrycks et al., *AugMix*, 2019).

    Changes and ranges are those of torchvision's ``AugMix``; shares are drawn evenly (its ``alpha`` is 1). The samples
    must be pictures of uint8. Labels of positions and boxes cannot follow, so that it is for labels of samples alone.
    The authors' loss that compares two mixtures of a sample is not part of it.

    Args:
        severity: of the ten numbers of a range, the first so many are drawn.
        mixture_width: how many chains there are.
        chain_depth: changes in each; 0 or less: 1 to 3, drawn for each chain.

    Raises:
        OptionError: an argument is no int, or out of range.
    """

    severity: int = 3
    mixture_width: int = 3
    chain_depth: int = -1
    ranges: ClassVar[_Ranges] = _Ranges(0.3, 1 / 3, is_share=True, angle=30, factor=0.9, bits=(4, 0))
    blurs: ClassVar[bool] = True
    aliases: ClassVar[tuple[str, ...]] = ("augmix",)
    _BINS: ClassVar[int] = 10

    def __post_init__(self) -> None:
        self._check_counts(severity=1, mixture_width=1, chain_depth=-1)
        if self.severity > self._BINS:
            self._fail(f"severity must be at most {self._BINS}", severity=self.severity)

    @property
    def _depth(self) -> int:
        """The most changes of a chain."""
        return self.chain_depth if self.chain_depth > 0 else 3

    @property
    def numbers(self) -> int:
        return 1 + self.mixture_width * (2 + 3 * self._depth)

    @property
    def policy_steps(self) -> int:
        return 1 + self.mixture_width * self._depth

    def apply(self, rows: Rows, draws: Float64Array) -> None:
        rows.steps = np.zeros((self.policy_steps, POLICY_WORDS, rows.count))
        rows.steps[0, 1] = draws[0]
        weights, depths, of_steps = np.split(draws[1:], [self.mixture_width, 2 * self.mixture_width])
        # NOTE: numbers of the exponential distribution over their sum are of Dirichlet's with parameters of 1.
        weights = -np.log(weights)
        shares = (1 - draws[0]) * weights / weights.sum(axis=0)
        lasts = np.floor(depths * self._depth) if self.chain_depth <= 0 else np.full_like(depths, self._depth - 1)
        chains = self.mixture_width, self._depth
        triples, steps = (part.reshape(*chains, -1, rows.count) for part in (of_steps, rows.steps[1:]))
        for chain, place in np.ndindex(chains):
            *draw, bin_draw = triples[chain, place]
            drawn = self._drawn(rows.shape, self._BINS, np.array(draw), bin_draw * self.severity, first=1)
            step, last = steps[chain, place], lasts[chain]
            step[:] = drawn.steps()
            is_moved = drawn.changes < _FIRST_COLOUR
            step[0] = np.select([place > last, is_moved], [_KEEP, _MOVE], step[0])
            step[1] = np.where(place == last, shares[chain], _GOES_ON)
            step[2:] = np.where(is_moved, drawn.maps(rows.shape).reshape(6, -1), step[2:])
