"""Sheets of samples, as a network gets them: what it is trained on, and what it gets wrong."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from blobnet.inspection.mistakes import Mistakes, class_name, worst_mistakes
from blobnet.inspection.network_inputs import Sheet, sample_sheet
from blobnet.inspection.sheets import (
    COLOURS,
    MAX_UNITS,
    Line,
    below,
    caption,
    captions_of,
    listed,
    masks_beside,
    masks_over,
    pixels,
    shades,
    verdict,
)
from blobnet.losses.base import IGNORED
from blobnet.memory.blob import FloatArray
from blobnet.model import Model
from blobnet.plots.drawing import new_figure, text

#: The longer side of a picture in inches, small and large, and the cells of a side from which on it is large.
_SMALL, _LARGE, _LARGE_CELLS = 1.1, 1.9, 64
#: Inches between pictures, of a line of a caption and of the title, around the title, and below the last row.
_GAP, _LINE, _TITLE_LINE, _HEAD, _FOOT = 0.16, 0.145, 0.185, 0.2, 0.35
_MIN_WIDTH = 5.0
#: Units of a sample that are shown as curves.
_MAX_CURVES = 6
_CAPTION_SIZE = 7.5
#: Characters in an inch, of a caption and of the title.
_CHARACTERS, _TITLE_CHARACTERS = 16, 12
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
    masks = masks_over(sheet, class_names)
    normal = f"normalised by mean {listed(sheet.mean)} and standard deviation {listed(sheet.deviation)}"
    changes = f"; {', '.join(map(str, sheet.augment))}" if sheet.augment else ""
    title = f"{title}\nas a network gets them: {normal}{changes}"
    names = [below(int(number), files[number] if files else "") for number in sheet.numbers]
    words = list(zip(captions_of(sheet, class_names), names, strict=True))
    return _draw(sheet.values, words, title, masks, class_names, over=True)


def draw_mistakes(found: Mistakes, title: str = "mistakes") -> Figure:
    """The picture of mistakes; there must be one at least."""
    words = [(caption(mistake), below(mistake.number, mistake.file)) for mistake in found.drawn]
    return _draw(found.values, words, f"{title}\n{verdict(found)}", masks_beside(found), found.class_names)


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
    pictures = pixels(values, masks, over=over) if values.ndim == 4 else None
    beside = 0 if masks is None or over else masks.shape[1]
    width, height = _size(pictures, 1 + beside)
    lines = max(len(said) for said, _ in words)
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
    limits = shades(values)
    for index, (said, name) in enumerate(words):
        row, column = divmod(index, columns)
        left = _GAP + column * (across + _GAP) + (across - width) / 2
        top = head + row * (down + _GAP) + lines * _LINE
        place = left / size[0], 1 - (top + height) / size[1], width / size[0], height / size[1]
        axes = figure.add_axes(place)
        if pictures is not None:
            axes.imshow(pictures[index], cmap="gray", vmin=0, vmax=1, interpolation="nearest", aspect="auto")
        else:
            _draw_curves(axes, values[index], limits)
        axes.set_xticks([])
        axes.set_yticks([])
        most = int((across + _GAP / 2) * _CHARACTERS)
        axes.set_xlabel(_ending(name, most), fontsize=_CAPTION_SIZE - 1, color="gray", labelpad=1)
        cut = "\n".join(_cut(line, most) for line in said)
        axes.set_title(cut, fontsize=_CAPTION_SIZE, pad=2, linespacing=1.15)
    legend = _legend(values, limits) + ("; beside it what is and what was said" if beside else "")
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
    entries = [Patch(color=COLOURS[number], label=text(class_name(number, class_names), 30)) for number in shown]
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


def _size(pictures: FloatArray | None, beside: int) -> tuple[float, float]:
    """The width and height of a sample's picture in inches, of which several are beside each other."""
    if pictures is None:
        return 1.6, 0.9
    height, width = pictures.shape[1:3]
    longest = max(height, width / beside)
    scale = (_LARGE if longest >= _LARGE_CELLS else _SMALL) / longest
    return max(width * scale, 0.3), max(height * scale, 0.3)


def _draw_curves(axes: Axes, sample: FloatArray, limits: tuple[float, float]) -> None:
    """A sample without pictures: a curve for each unit, or one over the units."""
    curves = sample[:_MAX_CURVES] if sample.ndim == 2 else sample[None]
    for curve in curves:
        axes.plot(curve, linewidth=0.8, drawstyle="default" if curve.size > 32 else "steps-mid")
    margin = 0.05 * (limits[1] - limits[0])
    axes.set_ylim(limits[0] - margin, limits[1] + margin)


def _legend(values: FloatArray, limits: tuple[float, float]) -> str:
    """Return the meaning of shades and curves."""
    low, high = (f"{value:.3g}" for value in limits)
    units = values.shape[1]
    if values.ndim != 4:
        some = f"; {_MAX_CURVES} of {units} units" if values.ndim == 3 and units > _MAX_CURVES else ""
        return f"from {low} (bottom) to {high} (top){some}"
    some = (
        ""
        if units in (1, 3)
        else f"; units 0 to {min(units, MAX_UNITS) - 1}" + (f" of {units}" if units > MAX_UNITS else "")
    )
    return f"{'no colour' if units == 3 else 'black'} is {low}, {'full colour' if units == 3 else 'white'} {high}{some}"
