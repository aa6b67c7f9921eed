"""Augmentation: how samples change at random on their way into a network that is trained.

Each sample of a batch gets a row of numbers, by which the kernel that fills the input blob reads and writes it
(kernels/input/augmented.cl), so that augmentation takes no pass over the samples of its own. The numbers follow from
the seed, the epoch and the sample's number alone: they do not depend on batches, on the samples' order, or on where a
training was resumed.

What changes geometry acts in the order of the list, as one map: values are interpolated once. What changes colours acts
on the result, in the same way, and what is erased behind that. What comes from outside a picture, or is erased, is the
mean of the input layer (:meth:`blobnet.Model.set_normalization`): 0 once normalised. Colours are not clipped. Last of
all a sample is mixed with its partner, which is the next one of its batch (of the last one: the first), as that is
changed itself: batches are in a random order anyway. A batch of one sample stays as it is.
"""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from blobnet.errors import OptionError, near_matches
from blobnet.losses import Loss
from blobnet.memory.blob import FloatArray, Shape
from blobnet.planning import AUGMENTATION_WORDS
from blobnet.support.checks import check_number, is_int, plain
from blobnet.support.foreign import Explained

__all__ = [
    "Augmentation",
    "Brightness",
    "Contrast",
    "CutMix",
    "Erasing",
    "Flip",
    "Mixup",
    "RandomAffine",
    "RandomCrop",
    "RandomResizedCrop",
    "Saturation",
]

Float64Array = npt.NDArray[np.float64]
Range = tuple[float, float]

#: Numbers in a block of the generator, and the most blocks of an augmentation and a sample.
_BLOCK, _MAX_BLOCKS = 4, 2
#: For how many samples rows are made at once: NumPy's calls then take a small part of the time.
_AHEAD = 1024
#: Makes the key another one than that of dropout.
_KEY = 0x6175676D
_MULTIPLIERS = np.array([0xD2511F53, 0xCD9E8D57], np.uint64)[:, None, None]
_WEYL = np.array([0x9E3779B9, 0xBB67AE85], np.uint64)
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)


#: The first numbers of a row that moves nothing.
IDENTITY = (1, 0, 0, 0, 1, 0)


class Rows:
    """How the samples of a batch change.

    Args:
        count: samples.
        shape: of a sample.

    Attributes:
        maps: (2, 3, count), from a cell's (y, x, 1) to the position (y, x) in the sample.
        erased: (4, count), the first row and column that are erased, and those behind the last.
        colours: (4, count), the factors of the sample, of its gray, of the mean, and of the gray of the means.
        mixed: (5, count), the cells that are mixed, as those that are erased, and the partner's part of their values.
    """

    def __init__(self, count: int, shape: Shape) -> None:
        self.count, self.shape = count, shape
        self.maps, self.erased = np.zeros((2, 3, count)), np.zeros((4, count))
        self.colours, self.mixed = np.zeros((4, count)), np.zeros((5, count))
        self.maps[0, 0] = self.maps[1, 1] = self.colours[0] = 1
        self._mixtures = 0

    def move(self, scales: Any, shifts: Any) -> None:
        """Reads from scale * position + shift, (y, x) each, what was read from there."""
        by_y, by_x, constant = self.maps[:, 0], self.maps[:, 1], self.maps[:, 2]
        constant += by_y * shifts[0] + by_x * shifts[1]
        by_y *= scales[0]
        by_x *= scales[1]

    def turn(self, cosine: Any, sine: Any) -> None:
        """Reads from (cosine * y + sine * x, cosine * x - sine * y) what was read from (y, x)."""
        by_y, by_x = self.maps[:, 0].copy(), self.maps[:, 1].copy()
        self.maps[:, 0] = cosine * by_y - sine * by_x
        self.maps[:, 1] = sine * by_y + cosine * by_x

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
        """A row of AUGMENTATION_WORDS float32 for each sample."""
        # NOTE: a sum with 0 turns -0, which products of maps make, into 0.
        parts = self.maps.reshape(6, self.count) + 0.0, self.erased, self.colours, self.mixed
        return np.ascontiguousarray(np.concatenate(parts, dtype=np.float32, casting="same_kind").T)


@dataclass(frozen=True)
class Augmentation(metaclass=Explained):
    """Base of all augmentations."""

    #: Every augmentation by the name of its class, for files.
    kinds: ClassVar[dict[str, type[Augmentation]]] = {}
    #: How many random numbers a sample takes: one or two blocks of the generator.
    numbers: ClassVar[int] = 4
    #: The least axes that a sample must have besides its units.
    rank: ClassVar[int] = 2
    #: Whether values move to other cells.
    moves: ClassVar[bool] = False
    #: Whether a sample is mixed with another one, and so has two labels.
    mixes: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if not cls.__name__.startswith("_"):
            Augmentation.kinds[cls.__name__] = cls

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

    Raises:
        OptionError: the padding is no int of at least 1.
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

    Raises:
        OptionError: neither axis is asked for.
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
        rows.move([1 - 2.0 * flip for flip in flips], shifts)


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
        rows.turn(factor * np.cos(angle), factor * np.sin(angle))
        rows.move((1, 1), [-place - shift for place, shift in zip(middle, shifts, strict=True)])


# -- colours -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Colour(Augmentation):
    """What changes of colours share: a distance is multiplied by a factor from 1 - amount to 1 + amount."""

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
        """What comes to the multiplied colours, (4, count): ``others`` times what distances are measured from."""


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


# -- erasing -----------------------------------------------------------------------------------------------------------


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

    def __post_init__(self) -> None:
        self._check_share("probability")
        self._check_range("scale", 1)
        self._check_range("ratio")

    def apply(self, rows: Rows, draws: Float64Array) -> None:
        size = rows.shape.height, rows.shape.width
        parts = np.rint(_parts(size, _between(draws[1], self.scale), _ratios(draws[2], self.ratio)))
        first = np.floor(draws[3:5] * (np.array(size)[:, None] - parts + 1))
        rows.erased = np.where(draws[0] < self.probability, [*first, *(first + parts)], 0)


# -- mixing ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Mixture(Augmentation):
    """What mixtures of a sample with its partner share."""

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
    "mixup": Mixup,
    "cutmix": CutMix,
}
#: Those whose first argument is a number.
_WITH_NUMBER = ("crop", "rotate", "brightness", "contrast", "saturation", "erase", "mixup", "cutmix")


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


def check_fit(augmentations: Iterable[Augmentation], samples: Shape, output: Shape, loss: Loss) -> None:
    """Raises OptionError if the samples of a model cannot be changed so, or their labels not with them.

    Args:
        augmentations: what is to be done.
        samples: the shape of a sample.
        output: the shape of the model's output, and so of its labels.
        loss: of the training.
    """
    for augmentation in augmentations:
        augmentation.check(samples)
        if augmentation.moves and output.rank and _positions(output) != _positions(samples):
            rule = "labels for each position move along only where they have the height and width of samples"
            hint = "leave this one out; colours and Erasing keep everything in its place."
            raise OptionError(str(augmentation), rule, input=samples, output=output, hint=hint)
        # Labels of positions are pasted like cells.
        if augmentation.mixes and not loss.takes_pairs and not (augmentation.moves and output.rank):
            rule = "the loss must take the labels of two samples, each with a share"
            hint = "CrossEntropy and Focal do, and all losses of targets."
            raise OptionError(str(augmentation), rule, loss=loss, hint=hint)


def check_mixed(augmentations: Iterable[Augmentation], inputs: Sequence[str], subject: str = "augment") -> None:
    """Raises OptionError where samples of several inputs would be mixed, all of which a label belongs to."""
    mixing = [augmentation for augmentation in augmentations if augmentation.mixes]
    if mixing and len(inputs) > 1:
        rule = "samples can be mixed where the network has one input"
        hint = "leave Mixup and CutMix out."
        raise OptionError(subject, rule, augment=", ".join(map(str, mixing)), inputs=", ".join(inputs), hint=hint)


def _positions(shape: Shape) -> tuple[int, ...]:
    return shape.sizes


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
    draws = uniform(seed, epoch, samples, [augmentation.numbers for augmentation in augmentations])
    for augmentation, own in zip(augmentations, draws, strict=True):
        augmentation.apply(rows, own)
    packed = rows.packed()
    assert packed.shape[1] == AUGMENTATION_WORDS
    return packed


def partner_shares(rows: FloatArray, shape: Shape, *, has_positions: bool = False) -> FloatArray:
    """The shares of the partners' labels, (count,), by rows for samples of a shape: those of their values.

    Where each position has a label of its own, what is pasted has no other one beside it: the share is 0.
    """
    if has_positions:
        return np.where(rows[:, 18] < 1, rows[:, 18], np.float32(0))
    top, left, bottom, right, part = rows[:, 14:19].T.astype(np.float64)
    shares = part * ((bottom - top) * (right - left) / (shape.height * shape.width))
    rounded: FloatArray = shares.astype(np.float32)
    return rounded


class EpochRows:
    """The rows of the samples of an epoch, in their order, made for many batches at once.

    Args:
        augmentations: as for :func:`rows_for`.
        shape: likewise.
        seed: likewise.
        epoch: likewise.
        numbers: the samples' numbers from one place of the order to another one, or to the end.
    """

    def __init__(
        self,
        augmentations: Sequence[Augmentation],
        shape: Shape,
        seed: int,
        epoch: int,
        numbers: Callable[[int, int], npt.NDArray[np.integer]],
    ) -> None:
        self._settings = augmentations, shape, seed, epoch
        self._numbers = numbers
        self._first, self._rows = 0, np.empty((0, AUGMENTATION_WORDS), np.float32)

    def of(self, first: int, count: int) -> FloatArray:
        """The rows of so many samples from a place of the order on."""
        skipped = first - self._first
        if skipped < 0 or skipped + count > len(self._rows):
            self._rows = rows_for(*self._settings, self._numbers(first, first + max(count, _AHEAD)))
            self._first, skipped = first, 0
        return self._rows[skipped : skipped + count]


def uniform(seed: int, epoch: int, samples: npt.NDArray[np.integer], numbers: Sequence[int]) -> list[Float64Array]:
    """Random numbers above 0 and below 1, so many for each stream and sample: (number, samples) for each stream.

    Each follows from the seed, the epoch, the sample and its place in its stream alone: Philox4x32-10 (Salmon et al.
    2011, *Parallel random numbers: as easy as 1, 2, 3*) with the seed as the key and (sample, block, epoch, 0) as the
    counter. NumPy's has one counter for all, and samples come in any order.
    """
    counts = [-(-number // _BLOCK) for number in numbers]
    places = [_MAX_BLOCKS * stream + block for stream, count in enumerate(counts) for block in range(count)]
    blocks = np.array(places, np.uint64)[:, None]
    first = (np.asarray(samples).astype(np.uint64) & _LOW)[None, :]
    words = np.empty((4, len(places), len(samples)), np.uint64)
    words[0], words[1], words[2], words[3] = first, blocks, epoch, 0
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
