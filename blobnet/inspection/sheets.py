"""Sheets of samples without drawing: their pictures as pixels, and the words that stand beside them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from blobnet.datasets.pictures import mask_colours
from blobnet.inspection.mistakes import Mistake, Mistakes, label_words, percent, short_values
from blobnet.inspection.network_inputs import Sheet, are_masks
from blobnet.losses.base import IGNORED
from blobnet.memory.blob import FloatArray

#: A line of a caption: what stands before, the words, and what stands after them.
Line = tuple[str, str, str]
#: Units of a sample that are shown side by side where they are no colours.
MAX_UNITS = 16
#: The part of all values that the shades of a sheet may leave out at either end.
_CUT = 0.2
#: The opacity of the colour of a class over a picture.
_OVER = 0.5
#: The colours of classes in masks, from 0 to 1: those of the files that ``predict --masks`` writes.
COLOURS = mask_colours() / 255


def captions_of(sheet: Sheet, class_names: Sequence[str]) -> list[list[Line]]:
    """The labels of samples, and those that they are mixed with."""
    mixed = zip(sheet.labels, sheet.partners, sheet.shares, strict=True)
    # Targets of 0 and 1 alone are labels, of which a sample may have several.
    described = partial(_label, class_names=class_names, are_several=bool(np.isin(sheet.labels, (0, 1)).all()))
    captions = [_truth(described(own), described(other), float(share)) for own, other, share in mixed]
    return captions if sheet.shares.any() else [caption[:1] for caption in captions]


def masks_over(sheet: Sheet, class_names: Sequence[str]) -> npt.NDArray[np.int64] | None:
    """The labels of samples as masks that lie over them, if they are such."""
    if not are_masks(sheet.labels, sheet.values):
        return None
    masks = sheet.labels.astype(np.int64)
    if class_names:
        masks[masks >= len(class_names)] = IGNORED
    return masks


def masks_beside(found: Mistakes) -> npt.NDArray[np.int64] | None:
    """(M, 2, height, width): what is and what was said of mistakes with a class for each position of a picture."""
    masks = [item.masks for item in found.drawn if item.masks is not None and item.masks.ndim == 3]
    return np.stack(masks) if masks else None


def verdict(found: Mistakes) -> str:
    """How many samples are wrong, and which of them are shown."""
    worst = found.drawn
    if found.wrong is None:
        return f"the {len(worst)} of {found.samples:,} samples with the largest errors"
    parts = "positions" if any(mistake.masks is not None for mistake in worst) else "labels"
    wrong = f"have {parts} that are wrong" if worst and worst[0].is_part else "are wrong"
    what = f"{found.wrong:,} of {found.samples:,} samples {wrong}"
    return what + (f"; the {len(worst)} worst of them" if len(worst) < found.wrong else "")


def below(number: int, file: str) -> str:
    """Return the line below a sample: the name of its file, or its number."""
    return Path(file).name or f"#{number}"


def caption(mistake: Mistake) -> list[Line]:
    """What a mistake is, and what was said of it."""
    lines = [("is ", mistake.truth, ""), ("said ", mistake.said, "")]
    if mistake.share is None:
        return [*lines, ("off by ", f"{mistake.error:.3g}", "")]
    if mistake.is_part or mistake.masks is not None:  # No name would have room beside it.
        return [*lines, ("", percent(mistake.share), " wrong")]
    return [lines[0], ("said ", mistake.said, f" ({percent(mistake.share)})")]


def _truth(own: str, partner: str, share: float) -> list[Line]:
    """Return a sample's label, and in a second line the one it is mixed with, if that has a percent."""
    part = round(100 * share)
    if own == partner or part in (0, 100):
        return [("", partner if part == 100 else own, ""), ("", "", "")]
    return [("", own, f" ({100 - part} %)"), ("+ ", partner, f" ({part} %)")]


def _label(label: npt.NDArray[Any], class_names: Sequence[str], *, are_several: bool = False) -> str:
    if label.dtype.kind == "f" and class_names and are_several:
        return label_words(label, class_names)
    if label.dtype.kind == "f" or not class_names:
        return short_values(label)
    # Of a class for each position, those that have the most.
    counts = np.bincount(label[(label >= 0) & (label < len(class_names))].astype(np.int64).reshape(-1))
    found = np.argsort(-counts, kind="stable")[: (counts > 0).sum()]
    return ", ".join(class_names[unit] for unit in found)


def listed(values: npt.NDArray[Any]) -> str:
    """A number for each unit, or the only one."""
    return short_values(values) if values.size == 1 else f"({short_values(values)})"


def shades(values: FloatArray) -> tuple[float, float]:
    """The values that are black and white, for all samples: nearly the least and the largest."""
    low, high = (float(value) for value in np.percentile(values, (_CUT, 100 - _CUT)))
    return (low, high) if high > low else (low - 1, high + 1)


def pixels(values: FloatArray, masks: npt.NDArray[np.int64] | None = None, *, over: bool = False) -> FloatArray:
    """Samples (M, units, height, width) as pixels, (M, height, width) or (M, height, width, 3), from 0 to 1.

    Args:
        values: three units are colours; others than one stand side by side.
        masks: of the samples: see :func:`masks_over` and :func:`masks_beside`.
        over: whether they lie over the samples, or beside them.
    """
    pictures = _pictures(values)
    if masks is None:
        return pictures
    return _under_masks(pictures, masks) if over else _with_masks(pictures, masks)


def _pictures(values: FloatArray) -> FloatArray:
    low, high = shades(values)
    shaded = np.clip((values - low) / (high - low), 0, 1)
    units = values.shape[1]
    if units == 3:
        return np.moveaxis(shaded, 1, -1)
    return shaded[:, 0] if units == 1 else side_by_side(shaded[:, :MAX_UNITS])


def _in_colours(pictures: FloatArray) -> FloatArray:
    """(M, height, width, 3), gray ones too."""
    return pictures if pictures.ndim == 4 else np.repeat(pictures[..., None], 3, axis=-1)


def _under_masks(pictures: FloatArray, masks: npt.NDArray[np.int64]) -> FloatArray:
    """(M, height, width, 3): pictures below the colours of their classes, as they are where none counts."""
    coloured = _in_colours(pictures)
    if coloured.shape[1:3] != masks.shape[1:]:  # Units that are no colours stand side by side.
        return pictures
    blended = (1 - _OVER) * coloured + _OVER * COLOURS[masks % len(COLOURS)]
    return np.where((masks == IGNORED)[..., None], coloured, blended)


def _with_masks(pictures: FloatArray, masks: npt.NDArray[np.int64]) -> FloatArray:
    """(M, height, width', 3): pictures with their masks beside, a colour for each class, white where none counts."""
    height, width = pictures.shape[1:3]
    rows, columns = (np.arange(size) * own // size for size, own in zip((height, width), masks.shape[2:], strict=True))
    own = masks[:, :, rows][..., columns]
    drawn = np.where((own == IGNORED)[..., None], 1.0, COLOURS[own % len(COLOURS)])
    coloured = _in_colours(pictures)
    line = np.ones((len(pictures), height, max(1, width // 20), 3))
    beside = [part for number in range(own.shape[1]) for part in (line, drawn[:, number])]
    return np.concatenate([coloured, *beside], axis=2)


def side_by_side(planes: FloatArray) -> FloatArray:
    """The units of each sample beside and below each other, with a white line between them."""
    count, units, height, width = planes.shape
    columns = max(1, min(units, round(math.sqrt(units * height / width))))
    rows = -(-units // columns)
    sheet = np.ones((count, rows * (height + 1) - 1, columns * (width + 1) - 1), planes.dtype)
    for unit in range(units):
        top, left = unit // columns * (height + 1), unit % columns * (width + 1)
        sheet[:, top : top + height, left : left + width] = planes[:, unit]
    return sheet
