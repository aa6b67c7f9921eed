"""Sheets of samples, as a network gets them: what it is trained on, and what it gets wrong."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from blobnet.datasets.pictures import mask_colours
from blobnet.inspection.mistakes import (
    Mistake,
    Mistakes,
    class_name,
    label_words,
    percent,
    short_values,
    worst_mistakes,
)
from blobnet.inspection.network_inputs import Sheet, are_masks, sample_sheet
from blobnet.losses.base import IGNORED
from blobnet.memory.blob import FloatArray
from blobnet.model import Model
from blobnet.plots.drawing import new_figure, text

#: A line of a caption: what stands before, the words, and what stands after them.
Line = tuple[str, str, str]
#: The longer side of a picture in inches, small and large, and the cells of a side from which on it is large.
_SMALL, _LARGE, _LARGE_CELLS = 1.1, 1.9, 64
#: Inches between pictures, of a line of a caption and of the title, around the title, and below the last row.
_GAP, _LINE, _TITLE_LINE, _HEAD, _FOOT = 0.16, 0.145, 0.185, 0.2, 0.35
_MIN_WIDTH = 5.0
#: Units of a sample that are shown side by side where they are no colours, and as curves.
_MAX_UNITS, _MAX_CURVES = 16, 6
_CAPTION_SIZE = 7.5
#: Characters in an inch, of a caption and of the title.
_CHARACTERS, _TITLE_CHARACTERS = 16, 12
#: The part of all values that the shades of a sheet may leave out at either end.
_CUT = 0.2
#: The opacity of the colour of a class over a picture.
_OVER = 0.5
#: The colours of classes in masks, from 0 to 1: those of the files that ``predict --masks`` writes.
_COLOURS = mask_colours() / 255
#: Classes of masks that the legend names, and inches of an entry besides its words.
_MAX_CLASSES, _ENTRY = 40, 0.45


def samples(
    x: Any,
    y: Any,
    *,
    class_names: Sequence[str] = (),
    title: str = "samples",
    files: Sequence[str] = (),
    **settings: Any,
) -> Figure:
    """A sheet of samples with their labels, as a training begins with them; masks lie over their pictures.

    Args:
        x: samples, as for Model.fit; no iterable.
        y: a label for each.
        class_names: of the labels.
        title: of the picture.
        files: of the samples, whose names stand below them instead of their numbers.
        **settings: ``augment``, ``normalization``, ``count``, ``seed`` and ``device``, as
            :func:`blobnet.inspection.network_inputs.sample_sheet` takes them, which gives the numbers.
    """
    return draw_sheet(sample_sheet(x, y, **settings), class_names, title, files)


def mistakes(model: Model, x: Any, y: Any, *, title: str = "mistakes", **settings: Any) -> Figure:
    """The samples that a model gets most wrong, with the truth and with what was said.

    Args:
        model: whose answers.
        x: samples, as for Model.fit; no iterable.
        y: labels or targets.
        title: of the picture.
        **settings: ``count``, ``files``, ``loss``, ``batch_size``, ``device`` and ``precision``, as
            :func:`blobnet.inspection.mistakes.worst_mistakes` takes them, which gives the numbers.
    """
    return draw_mistakes(worst_mistakes(model, x, y, **settings), title)


def draw_sheet(
    sheet: Sheet, class_names: Sequence[str] = (), title: str = "samples", files: Sequence[str] = ()
) -> Figure:
    """The picture of a sheet."""
    mixed = zip(sheet.labels, sheet.partners, sheet.shares, strict=True)
    # Targets of 0 and 1 alone are labels, of which a sample may have several.
    described = partial(_label, class_names=class_names, are_several=bool(np.isin(sheet.labels, (0, 1)).all()))
    captions = [_truth(described(own), described(other), float(share)) for own, other, share in mixed]
    if not sheet.shares.any():
        captions = [caption[:1] for caption in captions]
    masks = sheet.labels.astype(np.int64) if are_masks(sheet.labels, sheet.values) else None
    if masks is not None and class_names:
        masks[masks >= len(class_names)] = IGNORED
    normal = f"normalised by mean {_listed(sheet.mean)} and standard deviation {_listed(sheet.deviation)}"
    changes = f"; {', '.join(map(str, sheet.augment))}" if sheet.augment else ""
    title = f"{title}\nas a network gets them: {normal}{changes}"
    below = [_below(int(number), files[number] if files else "") for number in sheet.numbers]
    words = list(zip(captions, below, strict=True))
    return _draw(sheet.values, words, title, masks, class_names, over=True)


def draw_mistakes(found: Mistakes, title: str = "mistakes") -> Figure:
    """The picture of mistakes; there must be one at least."""
    worst = found.worst[: len(found.values)]
    if found.wrong is None:
        what = f"the {len(worst)} of {found.samples:,} samples with the largest errors"
    else:
        parts = "positions" if any(mistake.masks is not None for mistake in worst) else "labels"
        wrong = f"have {parts} that are wrong" if worst and worst[0].is_part else "are wrong"
        what = f"{found.wrong:,} of {found.samples:,} samples {wrong}"
        what += f"; the {len(worst)} worst of them" if len(worst) < found.wrong else ""
    masks = [mistake.masks for mistake in worst if mistake.masks is not None and mistake.masks.ndim == 3]
    words = [(_caption(mistake), _below(mistake.number, mistake.file)) for mistake in worst]
    drawn = np.stack(masks) if masks else None
    return _draw(found.values, words, f"{title}\n{what}", drawn, found.class_names)


def _below(number: int, file: str) -> str:
    """Return the line below a sample: the name of its file, or its number."""
    return Path(file).name or f"#{number}"


def _caption(mistake: Mistake) -> list[Line]:
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


def _listed(values: npt.NDArray[Any]) -> str:
    return short_values(values) if values.size == 1 else f"({short_values(values)})"


# -- drawing -----------------------------------------------------------------------------------------------------------


def _draw(
    values: FloatArray,
    words: Sequence[tuple[Sequence[Line], str]],
    title: str,
    masks: npt.NDArray[np.int64] | None = None,
    class_names: Sequence[str] = (),
    *,
    over: bool = False,
) -> Figure:
    """Samples in rows, masks ``over`` each or beside it, and its words: a caption above it, and a line below."""
    pictures = _pictures(values) if values.ndim == 4 else None
    beside = 0 if masks is None or over else masks.shape[1]
    if pictures is not None and masks is not None:
        pictures = _under_masks(pictures, masks) if over else _with_masks(pictures, masks)
    width, height = _size(pictures, 1 + beside)
    lines = max(len(caption) for caption, _ in words)
    across = max(width, 0.9)  # A caption needs room.
    down = height + (lines + 1) * _LINE
    columns = _columns(len(values), across + _GAP, down + _GAP)
    rows = -(-len(values) // columns)
    side = max(columns * (across + _GAP) + _GAP, _MIN_WIDTH)
    wrapped = [line for part in title.split("\n") for line in textwrap.wrap(part, int(side * _TITLE_CHARACTERS))]
    head = _HEAD + len(wrapped) * _TITLE_LINE
    entries = [] if masks is None else _entries(masks, class_names)
    longest = max((len(str(entry.get_label())) for entry in entries), default=0)
    across_legend = max(1, int(side / (_ENTRY + longest / _CHARACTERS)))
    foot = _FOOT + -(-len(entries) // across_legend) * _TITLE_LINE
    size = side, head + rows * (down + _GAP) + foot
    figure = new_figure(*size, "")
    figure.set_layout_engine("none")
    figure.suptitle("\n".join(map(text, wrapped)), y=1 - 0.1 / size[1], va="top", fontsize=11)
    shades = _shades(values)
    for index, (caption, below) in enumerate(words):
        row, column = divmod(index, columns)
        left = _GAP + column * (across + _GAP) + (across - width) / 2
        top = head + row * (down + _GAP) + lines * _LINE
        place = left / size[0], 1 - (top + height) / size[1], width / size[0], height / size[1]
        axes = figure.add_axes(place)
        if pictures is not None:
            axes.imshow(pictures[index], cmap="gray", vmin=0, vmax=1, interpolation="nearest", aspect="auto")
        else:
            _draw_curves(axes, values[index], shades)
        axes.set_xticks([])
        axes.set_yticks([])
        most = int((across + _GAP / 2) * _CHARACTERS)
        axes.set_xlabel(_ending(below, most), fontsize=_CAPTION_SIZE - 1, color="gray", labelpad=1)
        cut = "\n".join(_cut(line, most) for line in caption)
        axes.set_title(cut, fontsize=_CAPTION_SIZE, pad=2, linespacing=1.15)
    legend = _legend(values, shades) + ("; beside it what is and what was said" if beside else "")
    figure.text(0.5, 0.1 / size[1], legend, ha="center", fontsize=8)
    if entries:
        anchor = 0.5, 0.25 / size[1]
        style: dict[str, Any] = {"frameon": False, "fontsize": 8, "borderpad": 0, "columnspacing": 1}
        figure.legend(handles=entries, loc="lower center", bbox_to_anchor=anchor, ncols=across_legend, **style)
    return figure


def _entries(masks: npt.NDArray[np.int64], class_names: Sequence[str]) -> list[Patch]:
    """The legend: the colour of each class that is in the masks, and white for what takes no part."""
    found = [int(number) for number in np.unique(masks)]
    shown = [number for number in found if number != IGNORED][:_MAX_CLASSES]
    entries = [Patch(color=_COLOURS[number], label=text(class_name(number, class_names), 30)) for number in shown]
    if IGNORED in found:
        entries.append(Patch(facecolor="white", edgecolor="gray", label="takes no part"))
    return entries


def _cut(line: Line, most: int) -> str:
    """A line of a caption, of which the middle gives way where there is no room."""
    before, words, after = line
    return text(before) + text(words, most - len(before) - len(after)) + text(after)


def _ending(words: str, most: int) -> str:
    """A name of which the beginning gives way where there is no room."""
    return text(words if len(words) <= most else f"\N{HORIZONTAL ELLIPSIS}{words[1 - most :]}")


def _columns(count: int, width: float, height: float) -> int:
    """Return the number of pictures side by side, for a sheet half as wide again as high."""
    return max(1, min(count, round(math.sqrt(1.5 * count * height / width))))


def _shades(values: FloatArray) -> tuple[float, float]:
    """The values that are black and white, for all samples: nearly the least and the largest."""
    low, high = (float(value) for value in np.percentile(values, (_CUT, 100 - _CUT)))
    return (low, high) if high > low else (low - 1, high + 1)


def _pictures(values: FloatArray) -> FloatArray:
    """Return the samples as imshow takes them: (M, height, width) or (M, height, width, 3), from 0 to 1."""
    low, high = _shades(values)
    shaded = np.clip((values - low) / (high - low), 0, 1)
    units = values.shape[1]
    if units == 3:
        return np.moveaxis(shaded, 1, -1)
    return shaded[:, 0] if units == 1 else side_by_side(shaded[:, :_MAX_UNITS])


def _in_colours(pictures: FloatArray) -> FloatArray:
    """(M, height, width, 3), gray ones too."""
    return pictures if pictures.ndim == 4 else np.repeat(pictures[..., None], 3, axis=-1)


def _under_masks(pictures: FloatArray, masks: npt.NDArray[np.int64]) -> FloatArray:
    """(M, height, width, 3): pictures below the colours of their classes, as they are where none counts."""
    coloured = _in_colours(pictures)
    if coloured.shape[1:3] != masks.shape[1:]:  # Units that are no colours stand side by side.
        return pictures
    blended = (1 - _OVER) * coloured + _OVER * _COLOURS[masks % len(_COLOURS)]
    return np.where((masks == IGNORED)[..., None], coloured, blended)


def _with_masks(pictures: FloatArray, masks: npt.NDArray[np.int64]) -> FloatArray:
    """(M, height, width', 3): pictures with their masks beside, a colour for each class, white where none counts."""
    height, width = pictures.shape[1:3]
    rows, columns = (np.arange(size) * own // size for size, own in zip((height, width), masks.shape[2:], strict=True))
    own = masks[:, :, rows][..., columns]
    drawn = np.where((own == IGNORED)[..., None], 1.0, _COLOURS[own % len(_COLOURS)])
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


def _size(pictures: FloatArray | None, beside: int) -> tuple[float, float]:
    """The width and height of a sample's picture in inches, of which several are beside each other."""
    if pictures is None:
        return 1.6, 0.9
    height, width = pictures.shape[1:3]
    longest = max(height, width / beside)
    scale = (_LARGE if longest >= _LARGE_CELLS else _SMALL) / longest
    return max(width * scale, 0.3), max(height * scale, 0.3)


def _draw_curves(axes: Axes, sample: FloatArray, shades: tuple[float, float]) -> None:
    """A sample without pictures: a curve for each unit, or one over the units."""
    curves = sample[:_MAX_CURVES] if sample.ndim == 2 else sample[None]
    for curve in curves:
        axes.plot(curve, linewidth=0.8, drawstyle="default" if curve.size > 32 else "steps-mid")
    margin = 0.05 * (shades[1] - shades[0])
    axes.set_ylim(shades[0] - margin, shades[1] + margin)


def _legend(values: FloatArray, shades: tuple[float, float]) -> str:
    """Return the meaning of shades and curves."""
    low, high = (f"{value:.3g}" for value in shades)
    units = values.shape[1]
    if values.ndim != 4:
        some = f"; {_MAX_CURVES} of {units} units" if values.ndim == 3 and units > _MAX_CURVES else ""
        return f"from {low} (bottom) to {high} (top){some}"
    some = (
        ""
        if units in (1, 3)
        else f"; units 0 to {min(units, _MAX_UNITS) - 1}" + (f" of {units}" if units > _MAX_UNITS else "")
    )
    return f"{'no colour' if units == 3 else 'black'} is {low}, {'full colour' if units == 3 else 'white'} {high}{some}"
