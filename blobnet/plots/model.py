"""The picture of a model: graph, first filters, and how each layer's weights, values and gradients are spread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from blobnet.inspection.layer_statistics import LayerSpread, ModelSpreads, Spread, layer_spreads
from blobnet.inspection.sheets import side_by_side
from blobnet.memory.blob import FloatArray
from blobnet.model import Model
from blobnet.plots.drawing import new_figure, text

#: Inches: a layer's row, what stands beside its name, each panel of spreads, what is above and below, between panels.
_ROW, _NAMES, _PANEL, _TOP, _BOTTOM, _GAP = 0.2, 2.6, 2.6, 0.75, 0.5, 0.25
#: Inches of a character of a name, and the most of them.
_CHARACTER, _MAX_CHARACTERS = 0.062, 60
#: Inches of a lane for connections that pass over layers.
_LANE = 0.13
_FONT = 7.5
_COLOURS = {"weights": "#4f81bd", "values": "#f0b04a", "gradients": "#7f9f7f"}
_FAULT = "#c00000"
#: Filters that are drawn, the inches of one and between two, the same for one of many units, and of a line above them.
_MAX_FILTERS, _FILTER, _LARGE_FILTER, _TITLE = 96, (0.55, 0.05), (0.9, 0.15), 0.35


def network(model: Model, x: Any = None, y: Any = None, *, title: str = "", **settings: Any) -> Figure:
    """The graph of a model, its first filters, and per layer the spread of weights, and with data of values, gradients.

    Args:
        model: what to draw.
        x: samples, as for Model.fit; no iterable.
        y: their labels.
        title: of the picture.
        **settings: ``loss``, ``count``, ``seed`` and ``device``, as
            :func:`blobnet.inspection.layer_statistics.layer_spreads` takes them, which gives the numbers.
    """
    return draw_network(layer_spreads(model, x, y, **settings), title)


def draw_network(found: ModelSpreads, title: str = "") -> Figure:
    """The picture of what was found inside a model."""
    panels = ["weights", *(["values", "gradients"] if found.samples else [])]
    edges = _lanes(found.layers)
    lanes = max((lane for *_, lane in edges), default=-1) + 1
    longest = min(max(len(layer.title) for layer in found.layers), _MAX_CHARACTERS)
    names = _NAMES + longest * _CHARACTER + lanes * _LANE
    width = names + len(panels) * (_PANEL + _GAP) + _GAP
    rows = len(found.layers) * _ROW
    filters = None if found.filters is None else _as_pictures(found.filters[:_MAX_FILTERS])
    step = sum(_filter_size(found))
    across = int((width - 2 * _GAP) / step)
    below = 0.0 if filters is None else _TITLE + -(-len(filters) // across) * step + _GAP
    height = _TOP + rows + _BOTTOM + below
    figure = new_figure(width, height, "")
    figure.set_layout_engine("none")
    figure.suptitle(text(title), y=1 - 0.1 / height, va="top", fontsize=11)
    base = below + _BOTTOM
    graph = figure.add_axes((0, base / height, names / width, rows / height))
    _draw_graph(graph, found.layers, edges, lanes, names)
    for number, panel in enumerate(panels):
        left = names + number * (_PANEL + _GAP) + _GAP / 2
        axes = figure.add_axes((left / width, base / height, _PANEL / width, rows / height))
        _draw_spreads(axes, found.layers, panel)
    if filters is not None:
        _draw_filters(figure, filters, found, across, below - _GAP / 2)
    return figure


# -- the graph ---------------------------------------------------------------------------------------------------------


def _lanes(layers: Sequence[LayerSpread]) -> list[tuple[int, int, int]]:
    """The connections that pass over layers, (from, to, lane): those that overlap have different lanes."""
    long = [(source, row) for row, layer in enumerate(layers) for source in layer.inputs if source < row - 1]
    found: list[tuple[int, int, int]] = []
    for source, row in sorted(set(long), key=lambda edge: (edge[1] - edge[0], edge)):
        taken = {lane for first, last, lane in found if first < row and source < last}
        found.append((source, row, next(lane for lane in range(len(found) + 1) if lane not in taken)))
    return found


def _draw_graph(
    axes: Axes, layers: Sequence[LayerSpread], edges: Sequence[tuple[int, int, int]], lanes: int, width: float
) -> None:
    """A row for each layer: its place in the graph, its name, shape and parameters."""
    axes.set_xlim(0, width)
    axes.set_ylim(len(layers) - 0.5, -0.5)
    axes.axis("off")
    stem = 0.25 + lanes * _LANE
    for row, layer in enumerate(layers):
        if row - 1 in layer.inputs:
            axes.plot([stem, stem], [row - 1, row], color="gray", linewidth=1, zorder=1)
        axes.plot(
            stem, row, "o", markersize=5, color="#1f4e79", markerfacecolor="#1f4e79" if layer.parameter else "white"
        )
        parameters = f"{layer.parameters:,}" if layer.parameters else ""
        axes.text(stem + 0.15, row, text(layer.title, _MAX_CHARACTERS), va="center", fontsize=_FONT)
        axes.text(width - 1.0, row, str(layer.shape), va="center", ha="right", fontsize=_FONT, color="dimgray")
        axes.text(width - 0.1, row, parameters, va="center", ha="right", fontsize=_FONT)
    for name, place in (("output", width - 1.0), ("parameters", width - 0.1)):
        axes.text(place, -0.9, name, ha="right", va="bottom", fontsize=_FONT + 1, clip_on=False)
    for source, row, lane in edges:
        side = stem - (lane + 1) * _LANE
        axes.plot(
            [stem, side, side, stem], [source, source + 0.45, row - 0.45, row], color="gray", linewidth=1, zorder=1
        )


# -- spreads -----------------------------------------------------------------------------------------------------------


def _draw_spreads(axes: Axes, layers: Sequence[LayerSpread], panel: str) -> None:
    """A bar for each layer: from 5 to 95 % of the values, darker from 25 to 75 %, a line in the middle."""
    is_logarithmic = panel == "gradients"
    colour = _COLOURS[panel]
    spreads: list[Spread | None] = [getattr(layer, panel) for layer in layers]
    for row, spread in enumerate(spreads):
        if row % 2:
            axes.axhspan(row - 0.5, row + 0.5, color="0.96", zorder=0)
        if spread is None:
            continue
        marks = spread.magnitudes if is_logarithmic else spread.quantiles
        if marks:
            low, first, middle, third, high = marks
            axes.plot([low, high], [row, row], color=colour, linewidth=5, alpha=0.35, solid_capstyle="butt")
            axes.plot([first, third], [row, row], color=colour, linewidth=5, solid_capstyle="butt")
            axes.plot([middle, middle], [row - 0.3, row + 0.3], color="black", linewidth=1)
    axes.set_xscale("log" if is_logarithmic else "linear")
    axes.set_ylim(len(layers) - 0.5, -0.5)
    axes.set_yticks([])
    if not is_logarithmic:
        axes.axvline(0, color="black", linewidth=0.5, alpha=0.5, zorder=1)
    style: dict[str, Any] = {"va": "center", "ha": "right", "fontsize": _FONT - 1, "color": _FAULT}
    for row, layer in enumerate(layers):
        axes.text(0.99, row, _remark(layer, panel), transform=axes.get_yaxis_transform(), **style)
    axes.tick_params(labelsize=_FONT)
    axes.grid(axis="x", alpha=0.3)
    titles = {"weights": "weights", "values": "values, for a batch", "gradients": "gradients of weights, magnitudes"}
    axes.set_title(titles[panel], fontsize=_FONT + 1.5)
    axes.set_xlabel("5 %, 25 %, middle, 75 %, 95 %", fontsize=_FONT - 1)


def _remark(layer: LayerSpread, panel: str) -> str:
    """Return a remark on what is wrong with a layer."""
    spread = getattr(layer, panel)
    if spread is not None and spread.broken:
        return f"{spread.broken:,} not finite"
    if panel == "values" and layer.dead:
        return f"{len(layer.dead)} dead"
    if panel == "weights" and layer.unconnected:
        return f"{len(layer.unconnected)} all 0"
    if panel == "gradients" and spread is not None and not spread.magnitudes:
        return "all 0"
    return ""


# -- filters -----------------------------------------------------------------------------------------------------------


def _filter_size(found: ModelSpreads) -> tuple[float, float]:
    """The inches of a filter, and between two."""
    return _LARGE_FILTER if found.filters is not None and found.filters.shape[1] not in (1, 3) else _FILTER


def _as_pictures(filters: FloatArray) -> FloatArray:
    """(M, height, width[, 3]) from 0 to 1, for filters (M, units, height, width); the value 0 is in the middle."""
    largest = np.abs(np.nan_to_num(filters)).max(axis=(1, 2, 3), keepdims=True)
    shaded = np.clip(0.5 + filters / np.where(largest > 0, 2 * largest, 1), 0, 1).astype(np.float32)
    if filters.shape[1] == 3:
        return np.moveaxis(shaded, 1, -1)
    return shaded[:, 0] if filters.shape[1] == 1 else side_by_side(shaded)


def _draw_filters(figure: Figure, pictures: FloatArray, found: ModelSpreads, across: int, top: float) -> None:
    """The filters in rows, below ``top`` inches from the bottom."""
    width, height = figure.get_size_inches()
    assert found.filters is not None
    side, gap = _filter_size(found)
    shown, count = len(pictures), len(found.filters)
    what = f"{f'the first {shown} of ' if shown < count else ''}{count} filters of {found.filters_of}"
    size = "x".join(map(str, found.filters.shape[1:]))
    figure.text(_GAP / width, (top - 0.1) / height, text(f"{what}, {size}; gray is 0"), fontsize=_FONT + 1.5, va="top")
    for index, picture in enumerate(pictures):
        row, column = divmod(index, across)
        left = _GAP + column * (side + gap)
        bottom = top - _TITLE - row * (side + gap) - side
        axes = figure.add_axes((left / width, bottom / height, side / width, side / height))
        axes.imshow(picture, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        axes.axis("off")
