"""Pictures: a training's curves, a device's roofline. matplotlib is imported when it is asked for."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from blobnet.errors import FileError, OptionError

#: What matplotlib draws without a screen or further programs.
SUFFIXES = (".png", ".pdf", ".svg")
_PANELS = ("loss", "accuracy")
#: The most classes of a matrix whose cells, and whose rows, are labelled.
_MOST_NUMBERS, _MOST_NAMES = 30, 100
_COLOURS = {"training": "tab:blue", "validation": "tab:orange"}


def check(path: str | os.PathLike[str], option: str = "--plot") -> None:
    """Finds out before a long run whether the functions below will be able to draw.

    Args:
        path: of the picture.
        option: what errors call it.

    Raises:
        OptionError: matplotlib is not installed, or the file's name does not end in one of SUFFIXES.
    """
    if Path(path).suffix.lower() not in SUFFIXES:
        rule = f"the file's name must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"
        raise OptionError(option, rule, file=path)
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        hint = 'pip install "blobnet[plots]"'
        raise OptionError(option, "drawing needs matplotlib", cause=error, hint=hint) from error


def save_curves(path: str | os.PathLike[str], history: Mapping[str, Sequence[float]], title: str) -> None:
    """Draws the loss and, where there is one, the accuracy of every epoch; the file is replaced whole.

    Args:
        path: a file that ends in one of SUFFIXES.
        history: values an epoch, by name, as Model.fit returns them.
        title: of the picture.

    Raises:
        FileError: the file cannot be written.
    """
    from matplotlib.ticker import MaxNLocator

    names = [name for name in _PANELS if name in history]
    figure = _figure(5 * len(names), title)
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        for part, values in (("training", history[name]), ("validation", history.get(f"validation_{name}", ()))):
            if len(values):
                axes.plot(range(1, len(values) + 1), values, marker="o", markersize=4, color=_COLOURS[part], label=part)
        axes.set_title(name)
        axes.set_xlabel("epoch")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.grid(alpha=0.3)
        axes.legend()
    _save(figure, path)


def save_matrix(
    path: str | os.PathLike[str], matrix: npt.NDArray[np.int64], class_names: Sequence[str], title: str
) -> None:
    """Draws a confusion matrix, its colours by the part of each class's samples; the file is replaced whole.

    Args:
        path: a file that ends in one of SUFFIXES.
        matrix: how many of each class (row) were taken for each class (column).
        class_names: a name for each class.
        title: of the picture.

    Raises:
        FileError: the file cannot be written.
    """
    classes = len(matrix)
    parts = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    side = min(max(5.0, 0.5 * classes), 20.0)
    figure = _figure(side, title, side)
    axes = figure.subplots()
    axes.imshow(parts, cmap="Blues", vmin=0, vmax=1)
    if classes <= _MOST_NUMBERS:
        for row, column in np.ndindex(matrix.shape):
            colour = "white" if parts[row, column] > 0.5 else "black"
            axes.text(column, row, str(matrix[row, column]), ha="center", va="center", color=colour, fontsize=8)
    if classes <= _MOST_NAMES:
        # NOTE: a dollar sign would begin a formula.
        names = [name.replace("$", r"\$") for name in class_names]
        axes.set_xticks(range(classes), names, rotation=90 if max(map(len, names)) > 3 else 0)
        axes.set_yticks(range(classes), names)
    axes.set_xlabel("taken for")
    axes.set_ylabel("class")
    _save(figure, path)


def save_roofline(
    path: str | os.PathLike[str],
    points: Mapping[str, Sequence[tuple[float, float]]],
    flops: float,
    bandwidth: float,
    title: str,
) -> None:
    """Draws what was reached below what the device can do, both axes logarithmic; the file is replaced whole.

    Args:
        path: a file that ends in one of SUFFIXES.
        points: (operations a byte, operations a second), by the name of their group.
        flops: the device's peak, operations a second.
        bandwidth: bytes a second.
        title: of the picture.

    Raises:
        FileError: the file cannot be written.
    """
    figure = _figure(8, title)
    axes = figure.subplots()
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
    _save(figure, path)


def _figure(width: float, title: str, height: float = 4) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    return figure


def _save(figure: Any, path: str | os.PathLike[str]) -> None:
    target = Path(path)
    temporary = target.with_name(f".{os.getpid()}-{target.name}")
    try:
        figure.savefig(temporary, dpi=120)
        temporary.replace(target)
    except OSError as error:
        raise FileError(str(path), f"the picture cannot be written: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)
