"""The rows of an epoch's samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from blobnet.augment.base import Augmentation, Rows, uniform
from blobnet.errors import FileError, OptionError
from blobnet.losses import Loss
from blobnet.memory.blob import FloatArray, Shape

#: For how many samples rows are made at once: NumPy's calls then take a small part of the time.
_AHEAD = 1024


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
        if augmentation.blurs and output.rank:
            rule = "labels for each position, and boxes, cannot follow what it moves: it mixes several geometries"
            hint = "TrivialAugment and RandAugment move them along."
            raise OptionError(str(augmentation), rule, output=output, hint=hint)
        if augmentation.moves and output.rank and not loss.takes_boxes and _positions(output) != _positions(samples):
            rule = "labels for each position move along only where they have the height and width of samples"
            hint = "leave this one out; colours and Erasing keep everything in its place."
            raise OptionError(str(augmentation), rule, input=samples, output=output, hint=hint)
        # Labels of positions are pasted like cells.
        if (
            augmentation.mixes
            and not loss.takes_pairs
            and (loss.takes_boxes or not (augmentation.moves and output.rank))
        ):
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
        return tuple(Augmentation.from_description(item, subject) for item in descriptions)
    except (FileError, TypeError) as error:
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
        (samples, numbers) float32, as kernels/input/augmented.cl reads them.
    """
    rows = Rows(len(samples), shape, epoch)
    numbers = [augmentation.numbers for augmentation in augmentations]
    draws = uniform(seed, epoch, samples, numbers)
    if any(augmentation.draws_once for augmentation in augmentations):
        of_all = zip(augmentations, draws, uniform(seed, 0, samples, numbers), strict=True)
        draws = [once if augmentation.draws_once else own for augmentation, own, once in of_all]
    for augmentation, own in zip(augmentations, draws, strict=True):
        augmentation.apply(rows, own)
    return rows.packed()


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
        self._first, self._rows = 0, np.empty((0, 0), np.float32)

    def of(self, first: int, count: int) -> FloatArray:
        """The rows of so many samples from a place of the order on."""
        skipped = first - self._first
        if skipped < 0 or skipped + count > len(self._rows):
            self._rows = rows_for(*self._settings, self._numbers(first, first + max(count, _AHEAD)))
            self._first, skipped = first, 0
        return self._rows[skipped : skipped + count]
