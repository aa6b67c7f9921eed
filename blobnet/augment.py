"""Augmentation: how samples change at random on their way into a network that is trained.

Each sample of a batch gets a row of numbers, by which the kernel that fills the input blob reads and writes it
(kernels/input/augmented.cl), so that augmentation takes no pass over the samples of its own. The numbers follow from
the seed, the epoch and the sample's number alone: they do not depend on batches, on the samples' order, or on where a
training was resumed.

What changes geometry acts in the order of the list, as one map: values are interpolated once. What changes colours acts
on the result, in the same way, and what is erased, last. What comes from outside a picture, or is erased, is the mean
of the input layer (:meth:`blobnet.Model.set_normalization`): 0 once normalised. Colours are not clipped.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from blobnet.blob import FloatArray, Shape
from blobnet.errors import OptionError, near_matches
from blobnet.geometry import is_int, plain
from blobnet.planner import AUGMENTATION_WORDS
from blobnet.schedules import check_number

Float64Array = npt.NDArray[np.float64]
Range = tuple[float, float]

#: The most numbers that an augmentation draws for a sample: two blocks of the generator.
_DRAWS = 8
#: Makes the key another one than that of dropout.
_KEY = 0x6175676D
_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)


class Rows:
    """How the samples of a batch change.

    Args:
        count: samples.
        shape: of a sample.

    Attributes:
        maps: (count, 3, 3), from a cell's (y, x, 1) to the position in the sample.
        erased: (count, 4), the first row and column that are erased, and those behind the last.
        colours: (count, 4), the factors of the sample, of its gray, of the mean, and of the gray of the means.
    """

    def __init__(self, count: int, shape: Shape) -> None:
        self.count, self.shape = count, shape
        self.maps: Float64Array = np.tile(np.eye(3), (count, 1, 1))
        self.erased: Float64Array = np.zeros((count, 4))
        self.colours: Float64Array = np.tile([1.0, 0.0, 0.0, 0.0], (count, 1))

    def move(self, scales: Any, shifts: Any) -> None:
        """Reads from scale * position + shift, (y, x) each, what was read from there."""
        maps = np.zeros((self.count, 3, 3))
        maps[:, 0, 0], maps[:, 1, 1] = (np.asarray(scale) for scale in scales)
        maps[:, 0, 2], maps[:, 1, 2] = (np.asarray(shift) for shift in shifts)
        maps[:, 2, 2] = 1
        self.maps = self.maps @ maps

    def packed(self) -> FloatArray:
        """A row of AUGMENTATION_WORDS float32 for each sample."""
        # NOTE: a sum with 0 turns -0, which the product of maps makes, into 0.
        parts = self.maps[:, :2].reshape(self.count, 6) + 0.0, self.erased, self.colours
        return np.concatenate(parts, axis=1).astype(np.float32)


@dataclass(frozen=True)
class Augmentation(ABC):
    """Base of all augmentations."""

    #: Every augmentation by the name of its class, for files.
    kinds: ClassVar[dict[str, type[Augmentation]]] = {}
    #: The least axes that a sample must have besides its units.
    rank: ClassVar[int] = 2
    #: Whether values move to other cells.
    moves: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        Augmentation.kinds[cls.__name__] = cls

    @abstractmethod
    def apply(self, rows: Rows, draws: Float64Array) -> None:
        """Adds this change to rows.

        Args:
            rows: of a batch.
            draws: (8, count), random numbers between 0 and 1 for each sample.
        """

    def check(self, shape: Shape) -> None:
        """Raises OptionError if samples of a shape cannot be changed so."""
        axes = "height and a width" if self.rank == 2 else "width"
        if shape.rank < self.rank:
            self._fail(f"the model's input must have a {axes}", input=shape)

    def description(self) -> dict[str, Any]:
        """Kind and config, for files."""
        config = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        return {"kind": type(self).__name__, "config": config}

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


# -- geometry ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RandomCrop(Augmentation):
    """A part of the picture's own size, cut from it at random with a margin around it.

    Args:
        padding: the margin's cells on each side, so that the picture moves by up to so many, whole, cells.
    """

    padding: int = 2
    rank: ClassVar[int] = 1
    moves: ClassVar[bool] = True

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
        rows.move((1, 1), (down if rows.shape.rank == 2 else 0, right))


@dataclass(frozen=True)
class RandomResizedCrop(Augmentation):
    """A part of the picture, enlarged to its size.

    Args:
        scale: the least and the most share of the picture's area.
        ratio: the least and the most width of the part over its height.
    """

    scale: Range = (0.35, 1.0)
    ratio: Range = (3 / 4, 4 / 3)
    moves: ClassVar[bool] = True

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


@dataclass(frozen=True)
class Flip(Augmentation):
    """Every other picture mirrored, at random, along each axis that is asked for.

    Args:
        horizontal: left for right.
        vertical: top for bottom.
    """

    horizontal: bool = True
    vertical: bool = False
    rank: ClassVar[int] = 1
    moves: ClassVar[bool] = True

    def __post_init__(self) -> None:
        flags = self.horizontal, self.vertical
        if not all(isinstance(flag, bool) for flag in flags) or not any(flags):
            rule = "horizontal and vertical must be True or False, and not both False"
            self._fail(rule, horizontal=self.horizontal, vertical=self.vertical)

    def check(self, shape: Shape) -> None:
        super().check(shape)
        if self.vertical and shape.rank < 2:
            self._fail("to flip vertically, the model's input must have a height", input=shape)

    def apply(self, rows: Rows, draws: Float64Array) -> None:
        flips = [(draws[0] < 0.5) & self.vertical, (draws[1] < 0.5) & self.horizontal]
        sizes = rows.shape.height, rows.shape.width
        shifts = [flip * (size - 1) for flip, size in zip(flips, sizes, strict=True)]
        rows.move([1 - 2 * flip.astype(np.float64) for flip in flips], shifts)


@dataclass(frozen=True)
class RandomAffine(Augmentation):
    """The picture turned, moved and resized, about its middle.

    Args:
        degrees: the most to turn, either way.
        translate: the most to move, either way, as a share of the height and of the width.
        scale: the least and the most size, 1 for the picture's own.
    """

    degrees: float = 10.0
    translate: float = 0.0
    scale: Range = (1.0, 1.0)
    moves: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._check_share("degrees", 180)
        self._check_share("translate")
        self._check_range("scale")

    def apply(self, rows: Rows, draws: Float64Array) -> None:
        angle = np.radians(_between(draws[0], (-self.degrees, self.degrees)))
        size = np.array([rows.shape.height, rows.shape.width])
        middle = (size[:, None] - 1) / 2
        moved = middle + size[:, None] * _between(draws[1:3], (-self.translate, self.translate))
        factor = 1 / _between(draws[3], self.scale)
        cosine, sine = factor * np.cos(angle), factor * np.sin(angle)
        maps = np.zeros((rows.count, 3, 3))
        maps[:, 0, 0], maps[:, 0, 1], maps[:, 0, 2] = cosine, sine, middle[0] - cosine * moved[0] - sine * moved[1]
        maps[:, 1, 0], maps[:, 1, 1], maps[:, 1, 2] = -sine, cosine, middle[1] + sine * moved[0] - cosine * moved[1]
        maps[:, 2, 2] = 1
        rows.maps = rows.maps @ maps


# -- colours -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Brightness(Augmentation):
    """All values times a factor from 1 - amount to 1 + amount.

    Args:
        amount: from 0 to 1.
    """

    amount: float = 0.2
    rank: ClassVar[int] = 0

    def __post_init__(self) -> None:
        self._check_share("amount")

    def apply(self, rows: Rows, draws: Float64Array) -> None:
        rows.colours *= _factors(draws, self.amount)[:, None]


@dataclass(frozen=True)
class Contrast(Augmentation):
    """The distance of all values to the mean of their unit (the input layer's) times such a factor.

    Args:
        amount: from 0 to 1.
    """

    amount: float = 0.2
    rank: ClassVar[int] = 0

    def __post_init__(self) -> None:
        self._check_share("amount")

    def apply(self, rows: Rows, draws: Float64Array) -> None:
        factors = _factors(draws, self.amount)
        rows.colours *= factors[:, None]
        rows.colours[:, 2] += 1 - factors


@dataclass(frozen=True)
class Saturation(Augmentation):
    """The distance of all values to the gray of their cell, 0.299 red + 0.587 green + 0.114 blue, times such a factor.

    Args:
        amount: from 0 to 1.
    """

    amount: float = 0.2
    rank: ClassVar[int] = 0

    def __post_init__(self) -> None:
        self._check_share("amount")

    def check(self, shape: Shape) -> None:
        if shape.units != 3:
            self._fail("the model's input must have three units: red, green and blue", input=shape)

    def apply(self, rows: Rows, draws: Float64Array) -> None:
        factors = _factors(draws, self.amount)
        sample, gray, mean, gray_mean = rows.colours.T
        # The gray of gray is that gray, so that the result is a sum of the same four.
        grays = (1 - factors) * (sample + gray), (1 - factors) * (mean + gray_mean)
        rows.colours *= factors[:, None]
        rows.colours[:, 1] += grays[0]
        rows.colours[:, 3] += grays[1]


# -- erasing -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Erasing(Augmentation):
    """A rectangle of the result becomes the mean.

    Args:
        probability: that there is one.
        scale: the least and the most share of the picture's area.
        ratio: the least and the most width over height.
    """

    probability: float = 0.5
    scale: Range = (0.02, 0.33)
    ratio: Range = (0.3, 3.3)

    def __post_init__(self) -> None:
        self._check_share("probability")
        self._check_range("scale", 1)
        self._check_range("ratio")

    def apply(self, rows: Rows, draws: Float64Array) -> None:
        size = rows.shape.height, rows.shape.width
        parts = np.rint(_parts(size, _between(draws[1], self.scale), _ratios(draws[2], self.ratio)))
        first = np.floor(draws[3:5] * (np.array(size)[:, None] - parts + 1))
        rows.erased = np.where(draws[0] < self.probability, [*first, *(first + parts)], 0).T


# -- a training's ------------------------------------------------------------------------------------------------------

#: What ``augment="crop, flip"`` calls them; a number behind ``=`` is the first argument.
WORDS: Mapping[str, type[Augmentation]] = {
    "crop": RandomCrop,
    "resize": RandomResizedCrop,
    "flip": Flip,
    "rotate": RandomAffine,
    "brightness": Brightness,
    "contrast": Contrast,
    "saturation": Saturation,
    "erase": Erasing,
}
#: Those whose first argument is a number.
_WITH_NUMBER = ("crop", "rotate", "brightness", "contrast", "saturation", "erase")


def augmentations_of(value: Any, subject: str = "augment") -> tuple[Augmentation, ...]:
    """A list of augmentations, one alone, or their words: ``"crop=3, flip"``.

    Raises:
        OptionError: it is none of these, or erases twice.
    """
    if isinstance(value, Augmentation):
        value = [value]
    if isinstance(value, str):
        value = [_parsed(word.strip(), subject) for word in value.split(",")]
    items = list(value) if isinstance(value, Iterable) else [value]
    if not all(isinstance(item, Augmentation) for item in items):
        rule = "it must be a list of augmentations, or of their words in a string"
        hint = "for example [RandomCrop(2), Flip()] of blobnet.augment, or 'crop=2, flip'."
        raise OptionError(subject, rule, augment=value, hint=hint)
    if sum(isinstance(item, Erasing) for item in items) > 1:
        raise OptionError(subject, "there must be at most one Erasing", augment=", ".join(map(str, items)))
    return tuple(items)


def _parsed(text: str, subject: str) -> Augmentation:
    match = re.fullmatch(r"([^=]*?)\s*(?:=\s*(\S+))?", text)
    word, number = match.groups() if match else (text, None)
    if word not in WORDS:
        hint = near_matches(word, list(WORDS))
        raise OptionError(subject, "every word must be that of an augmentation", word=repr(word), hint=hint)
    build: Any = WORDS[word]
    if number is None:
        augmentation: Augmentation = build()
        return augmentation
    if word not in _WITH_NUMBER:
        raise OptionError(subject, f"{word} takes no number", augment=repr(text))
    try:
        value = int(number) if word == "crop" else float(number)
    except ValueError:
        kind = "an int" if word == "crop" else "a number"
        raise OptionError(subject, f"behind {word}= there must be {kind}", augment=repr(text)) from None
    parsed: Augmentation = build(value)
    return parsed


def check_fit(augmentations: Iterable[Augmentation], samples: Shape, output: Shape) -> None:
    """Raises OptionError if the samples of a model cannot be changed so, or where labels would have to move along.

    Args:
        augmentations: what is to be done.
        samples: the shape of a sample.
        output: the shape of the model's output, and so of its labels.
    """
    for augmentation in augmentations:
        augmentation.check(samples)
        if augmentation.moves and output.rank:
            rule = "labels for each position do not move along with samples"
            hint = "leave this one out; colours and Erasing keep everything in its place."
            raise OptionError(str(augmentation), rule, output=output, hint=hint)


def from_descriptions(descriptions: Any, subject: str) -> tuple[Augmentation, ...]:
    """Rebuilds what :meth:`Augmentation.description` gave for each.

    Raises:
        OptionError: these are not descriptions of augmentations.
    """
    try:
        return tuple(Augmentation.kinds[item["kind"]](**item["config"]) for item in descriptions)
    except (KeyError, TypeError) as error:
        rule = "what the interrupted training says of its augmentation must be what blobnet wrote"
        raise OptionError(subject, rule, augment=str(descriptions)[:80], hint="train without resume.") from error


def rows_for(
    augmentations: Sequence[Augmentation], shape: Shape, seed: int, epoch: int, samples: npt.NDArray[np.integer]
) -> FloatArray:
    """The rows of some samples in an epoch.

    Args:
        augmentations: what to do, in this order.
        shape: of a sample.
        seed: any number from 0 to 2**64 - 1.
        epoch: counted from 0.
        samples: the samples' numbers.

    Returns:
        (samples, AUGMENTATION_WORDS) float32.
    """
    rows = Rows(len(samples), shape)
    draws = uniform(seed, epoch, samples, len(augmentations))
    for augmentation, own in zip(augmentations, draws, strict=True):
        augmentation.apply(rows, own)
    packed = rows.packed()
    assert packed.shape[1] == AUGMENTATION_WORDS
    return packed


def uniform(seed: int, epoch: int, samples: npt.NDArray[np.integer], streams: int) -> Float64Array:
    """Random numbers above 0 and below 1, (streams, 8, samples): each follows from these numbers and its place alone.

    Philox4x32-10 (Salmon et al. 2011, *Parallel random numbers: as easy as 1, 2, 3*) with the seed as the key and
    (sample, block, epoch, 0) as the counter. NumPy's has one counter for all, and samples come in any order.
    """
    blocks = np.arange(streams * _DRAWS // 4, dtype=np.uint64)[:, None]
    first = (np.asarray(samples).astype(np.uint64) & _LOW)[None, :]
    c0, c1, c2, c3 = np.broadcast_arrays(first, blocks, np.uint64(epoch), np.uint64(0))
    keys = [np.uint64((seed ^ _KEY) & 0xFFFFFFFF), np.uint64(seed >> 32)]
    for _ in range(10):
        one, two = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (two >> _HALF) ^ c1 ^ keys[0], two & _LOW, (one >> _HALF) ^ c3 ^ keys[1], one & _LOW
        keys = [(key + step) & _LOW for key, step in zip(keys, _WEYL, strict=True)]
    words = np.stack((c0, c1, c2, c3), axis=1).reshape(streams, _DRAWS, len(samples))
    numbers: Float64Array = (words + 0.5) * 2.0**-32
    return numbers


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


def _factors(draws: Float64Array, amount: float) -> Float64Array:
    return _between(draws[0], (1 - amount, 1 + amount))
