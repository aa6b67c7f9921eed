"""The base of augmentations: rows of numbers for each sample, and draws that do not depend on others."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from blobnet.errors import OptionError
from blobnet.layers.input import POLICY_WORDS
from blobnet.memory.blob import FloatArray, Shape
from blobnet.support.checks import check_number
from blobnet.support.kinds import Kind

Float64Array = npt.NDArray[np.float64]
Range = tuple[float, float]
#: Numbers in a block of the generator, and blocks of a stream and a sample that differ by the counter's second word.
_BLOCK, _BLOCKS = 4, 2
#: Makes the key another one than that of dropout.
_KEY = 0x6175676D
_MULTIPLIERS = np.array([0xD2511F53, 0xCD9E8D57], np.uint64)[:, None, None]
_WEYL = np.array([0x9E3779B9, 0xBB67AE85], np.uint64)
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
#: The first numbers of a row that moves nothing.
IDENTITY = (1, 0, 0, 0, 1, 0)


class Rows:
    """The changes of a batch's samples.

    Args:
        count: samples.
        shape: of a sample.
        epoch: counted from 0.

    Attributes:
        maps: (2, 3, count), from a cell's (y, x, 1) to the position (y, x) in the sample.
        erased: (4, count), the first row and column that are erased, and those after the last.
        colours: (4, count), the factors of the sample, of its gray, of the mean, and of the gray of the means.
        mixed: (5, count), the cells that are mixed, as those that are erased, and the partner's part of their values.
        steps: (steps, POLICY_WORDS, count), those of a policy, before all of these (kernels/input/policy.cl).
    """

    def __init__(self, count: int, shape: Shape, epoch: int = 0) -> None:
        self.count, self.shape, self.epoch = count, shape, epoch
        self.maps, self.erased = np.zeros((2, 3, count)), np.zeros((4, count))
        self.colours, self.mixed = np.zeros((4, count)), np.zeros((5, count))
        self.steps = np.zeros((0, POLICY_WORDS, count))
        self.maps[0, 0] = self.maps[1, 1] = self.colours[0] = 1
        self._mixtures = 0

    def move(self, scales: Any, shifts: Any) -> None:
        """Reads from scale * position + shift, (y, x) each, what was read from there."""
        by_y, by_x, constant = self.maps[:, 0], self.maps[:, 1], self.maps[:, 2]
        constant += by_y * shifts[0] + by_x * shifts[1]
        by_y *= scales[0]
        by_x *= scales[1]

    def read_through(self, maps: Float64Array) -> None:
        """Reads from where maps, (2, 3, count), send a position what was read from that position."""
        by_y, by_x, constant = (self.maps[:, place, None] for place in range(3))
        self.maps = by_y * maps[0] + by_x * maps[1]
        self.maps[:, 2:] += constant

    def mix(self, draws: Float64Array, probability: float, cells: Sequence[Any], part: Any) -> None:
        """Mixes samples with their partners: of several ways to do so, each sample takes one, all as often.

        Args:
            draws: (2, count), by which a sample takes this way, and is mixed at all.
            probability: that it is.
            cells: the four numbers of the cells that are mixed, each (count,) or one for all.
            part: of the partner's values in those cells, (count,) or one for all.
        """
        self._mixtures += 1
        taken, is_mixed = draws[0] * self._mixtures < 1, draws[1] < probability
        for own, new in zip(self.mixed, (*cells, part), strict=True):
            own[:] = np.where(taken, is_mixed * new, own)

    def packed(self) -> FloatArray:
        """A row of AUGMENTATION_WORDS float32 for each sample, and POLICY_WORDS for each step."""
        # NOTE: a sum with 0 turns -0, which products of maps make, into 0.
        parts = (
            self.maps.reshape(6, self.count) + 0.0,
            self.erased,
            self.colours,
            self.mixed,
            self.steps.reshape(-1, self.count),
        )
        return np.ascontiguousarray(np.concatenate(parts, dtype=np.float32, casting="same_kind").T)


@dataclass(frozen=True)
class Augmentation(Kind):
    """Base of all augmentations."""

    kinds: ClassVar[dict[str, type[Augmentation]]] = {}
    noun: ClassVar[str] = "augmentation"
    #: The least axes that a sample must have besides its units.
    rank: ClassVar[int] = 2
    #: True if values move to other cells.
    moves: ClassVar[bool] = False
    #: True if a sample has the same random numbers in all epochs.
    draws_once: ClassVar[bool] = False
    #: True if a sample is mixed with another one, and so has two labels.
    mixes: ClassVar[bool] = False
    #: True if values of several places are mixed, so that labels of places have none to follow to.
    blurs: ClassVar[bool] = False

    @property
    def numbers(self) -> int:
        """The random numbers of a sample."""
        return _BLOCK

    @property
    def policy_steps(self) -> int:
        """The steps that it makes for kernels/input/policy.cl: a list has at most one augmentation that makes any."""
        return 0

    @abstractmethod
    def apply(self, rows: Rows, draws: Float64Array) -> None:
        """Adds this change to rows.

        Args:
            rows: of a batch.
            draws: (numbers, count), random numbers between 0 and 1 for each sample.
        """

    def check(self, shape: Shape) -> None:
        """Raises OptionError if samples of a shape cannot be changed so."""
        axes = "height and a width" if self.rank == 2 else "width"
        if shape.rank < self.rank:
            self._fail(f"the model's input must have a {axes}", input=shape)

    def config(self) -> dict[str, Any]:
        # NOTE: lists, as JSON has them: a resumed training compares what it was given with what a file has.
        return {name: list(value) if isinstance(value, tuple) else value for name, value in super().config().items()}

    def _fail(self, rule: str, **received: Any) -> None:
        raise OptionError(type(self).__name__, rule, **received)

    def _check_number(self, name: str, **limits: float) -> None:
        check_number(type(self).__name__, name, getattr(self, name), **limits)
        object.__setattr__(self, name, float(getattr(self, name)))

    def _check_share(self, name: str, limit: float = 1) -> None:
        """An amount from 0, which changes nothing, to a limit."""
        value = getattr(self, name)
        self._check_number(name, least=0)
        if value > limit:
            self._fail(f"{name} must be at most {limit:g}", **{name: value})

    def _check_range(self, name: str, limit: float = math.inf) -> None:
        """Two numbers above 0, the smaller one first."""
        value = getattr(self, name)
        numbers = tuple(value) if isinstance(value, tuple | list) else ()
        for number in numbers:
            check_number(type(self).__name__, name, number, above=0)
        if len(numbers) != 2 or not numbers[0] <= numbers[1] <= limit:
            most = "" if limit == math.inf else f", of at most {limit:g}"
            self._fail(f"{name} must be two numbers, the smaller one first{most}", **{name: value})
        object.__setattr__(self, name, tuple(float(number) for number in numbers))


def uniform(seed: int, epoch: int, samples: npt.NDArray[np.integer], numbers: Sequence[int]) -> list[Float64Array]:
    """Random numbers above 0 and below 1, so many for each stream and sample: (number, samples) for each stream.

    Each follows from the seed, the epoch, the sample and its place in its stream alone: Philox4x32-10 (Salmon et al.
    2011, *Parallel random numbers: as easy as 1, 2, 3*) with the seed as the key and (sample, stream and block, epoch,
    later blocks) as the counter. NumPy's has one counter for all, and samples come in any order.
    """
    counts = [-(-number // _BLOCK) for number in numbers]
    own = [(stream, block) for stream, count in enumerate(counts) for block in range(count)]
    blocks = np.array([_BLOCKS * stream + block % _BLOCKS for stream, block in own], np.uint64)[:, None]
    later = np.array([block // _BLOCKS for _, block in own], np.uint64)[:, None]
    first = (np.asarray(samples).astype(np.uint64) & _LOW)[None, :]
    words = np.empty((4, len(own), len(samples)), np.uint64)
    words[0], words[1], words[2], words[3] = first, blocks, epoch, later
    products = np.empty((2, *words.shape[1:]), np.uint64)
    keys = np.array([(seed ^ _KEY) & 0xFFFFFFFF, seed >> 32], np.uint64)
    for _ in range(10):
        # With one = c0 * M0 and two = c2 * M1: (high(two) ^ c1 ^ k0, low(two), high(one) ^ c3 ^ k1, low(one)).
        np.multiply(words[0::2], _MULTIPLIERS, out=products)
        np.right_shift(products[::-1], _HALF, out=words[0::2])
        words[0::2] ^= words[1::2]
        words[0::2] ^= keys[:, None, None]
        np.bitwise_and(products[::-1], _LOW, out=words[1::2])
        keys = (keys + _WEYL) & _LOW
    drawn = (words.swapaxes(0, 1).astype(np.float64) + 0.5) * 2.0**-32
    ends = np.cumsum(counts)
    return [
        drawn[end - count : end].reshape(-1, len(samples))[:number]
        for end, count, number in zip(ends, counts, numbers, strict=True)
    ]


def _between(draws: Float64Array, limits: Range) -> Float64Array:
    return limits[0] + draws * (limits[1] - limits[0])


def _ratios(draws: Float64Array, limits: Range) -> Float64Array:
    """Between the limits, as often below as above the ratio in their middle."""
    ratios: Float64Array = np.exp(_between(draws, (math.log(limits[0]), math.log(limits[1]))))
    return ratios


def _parts(size: tuple[int, int], area: Float64Array, ratio: Float64Array) -> Float64Array:
    """(2, count): heights and widths of parts with a share of the area, no larger than the whole."""
    height, width = size
    cells = area * height * width
    parts: Float64Array = np.minimum([np.sqrt(cells / ratio), np.sqrt(cells * ratio)], [[height], [width]])
    return parts


def _symmetric_beta(draws: Float64Array, alpha: float) -> Float64Array:
    """From the beta distribution of (alpha, alpha), by two numbers each: 1/2 + t / (2 sqrt(n + t^2)).

    t is of Student's distribution of n = 2 alpha degrees (Devroye, *Random variate generation in one line of code*,
    1996).
    """
    power, cosine = draws[0] ** (1 / alpha), np.cos(2 * np.pi * draws[1])
    square = cosine**2 * (1 - power)
    numbers: Float64Array = 0.5 + 0.5 * np.sign(cosine) * np.sqrt(square / (power + square))
    return numbers
