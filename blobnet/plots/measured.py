"""Pictures of what was measured: a training's curves, a confusion matrix, a device's roofline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from blobnet.errors import OptionError
from blobnet.metrics.naming import panels
from blobnet.plots.drawing import new_figure, text

_MAX_COLUMNS = 3
#: The most classes of a matrix whose cells, and whose rows, are labelled.
_MAX_NUMBERS, _MAX_NAMES = 30, 100
_COLOURS = {"training": "tab:blue", "validation": "tab:orange"}


def curves(history: Mapping[str, Sequence[float]], title: str = "") -> Figure:
    """The loss of every epoch and, where there are some, the accuracies and what else was measured on validation data.

    Of several outputs also their losses.

    Args:
        history: values an epoch, by name, as Model.fit returns them.
        title: of the picture.

    Raises:
        OptionError: there is no loss and no accuracy.
    """
    found = panels(history)
    if not found:
        rule, hint = "the history must have a loss or an accuracy of every epoch", "Model.fit returns one."
        raise OptionError("plots.curves", rule, names=", ".join(map(str, history)) or "none", hint=hint)
    columns = min(len(found), _MAX_COLUMNS)
    rows = -(-len(found) // columns)
    figure = new_figure(5 * columns, 4 * rows, title)
    places = figure.subplots(rows, columns, squeeze=False).reshape(-1)
    for axes in places[len(found) :]:
        axes.set_axis_off()
    for axes, (name, parts) in zip(places, found.items(), strict=False):
        for part, values in parts.items():
            axes.plot(range(1, len(values) + 1), values, marker="o", markersize=4, color=_COLOURS[part], label=part)
        axes.set_title(text(name.replace("_", " ")))
        axes.set_xlabel("epoch")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.grid(alpha=0.3)
        axes.legend()
    return figure


def learning_rates(rates: npt.ArrayLike, losses: npt.ArrayLike, suggestion: float, title: str = "") -> Figure:
    """The losses of a training whose learning rate grows, and the rate that it suggests.

    Args:
        rates: of each step; :func:`blobnet.find_learning_rate` finds them, and the rest.
        losses: of each step.
        suggestion: a rate.
        title: of the picture.
    """
    figure = new_figure(6, 4, title)
    axes = figure.subplots()
    axes.plot(np.asarray(rates), np.asarray(losses), color=_COLOURS["training"])
    axes.axvline(suggestion, color=_COLOURS["validation"], label=f"suggestion {suggestion:.2g}")
    axes.set_xscale("log")
    axes.set_xlabel("learning rate")
    axes.set_ylabel("loss, running mean")
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def confusion(matrix: npt.NDArray[np.int64], class_names: Sequence[str], title: str = "") -> Figure:
    """A confusion matrix, its colours by the part of each class's samples.

    Args:
        matrix: how many of each class (row) were taken for each class (column): ``matrix`` of Model.report.
        class_names: a name for each class.
        title: of the picture.
    """
    classes = len(matrix)
    parts = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    side = min(max(5.0, 0.5 * classes), 20.0)
    figure = new_figure(side, side, title)
    axes = figure.subplots()
    axes.imshow(parts, cmap="Blues", vmin=0, vmax=1)
    if classes <= _MAX_NUMBERS:
        for row, column in np.ndindex(matrix.shape):
            colour = "white" if parts[row, column] > 0.5 else "black"
            axes.text(column, row, str(matrix[row, column]), ha="center", va="center", color=colour, fontsize=8)
    if classes <= _MAX_NAMES:
        names = [text(name) for name in class_names]
        axes.set_xticks(range(classes), names, rotation=90 if max(map(len, names)) > 3 else 0)
        axes.set_yticks(range(classes), names)
    axes.set_xlabel("taken for")
    axes.set_ylabel("class")
    return figure


def roofline(
    points: Mapping[str, Sequence[tuple[float, float]]], flops: float, bandwidth: float, title: str = ""
) -> Figure:
    """Draw the measured speeds below the device's roofline, both axes logarithmic.

    Args:
        points: (operations a byte, operations a second), by the name of their group.
        flops: the device's peak, operations a second.
        bandwidth: bytes a second.
        title: of the picture.
    """
    figure = new_figure(8, 4, title)
    draw_roofline(figure.subplots(), points, flops, bandwidth)
    return figure


def draw_roofline(
    axes: Axes, points: Mapping[str, Sequence[tuple[float, float]]], flops: float, bandwidth: float
) -> None:
    """Draw :func:`roofline` on the axes of another figure."""
    ridge = flops / bandwidth
    reached = [intensity for values in points.values() for intensity, _ in values if intensity > 0]
    left, right = min([*reached, ridge]) / 2, max([*reached, ridge]) * 2
    axes.plot([left, ridge, right], [left * bandwidth / 1e9, flops / 1e9, flops / 1e9], color="black")
    for (name, values), marker in zip(points.items(), "osv^D*" * len(points), strict=False):
        shown = [(intensity, rate / 1e9) for intensity, rate in values if intensity > 0]
        if shown:
            axes.plot(*zip(*shown, strict=True), marker, markersize=5, alpha=0.7, label=name)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("flops per byte, each byte moved once")
    axes.set_ylabel("GFLOPS")
    axes.grid(alpha=0.3)
    axes.legend()
