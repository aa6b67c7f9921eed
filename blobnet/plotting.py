"""Pictures: a training's curves, a device's roofline. matplotlib is imported when it is asked for."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from blobnet.errors import FileError, OptionError

#: What matplotlib draws without a screen or further programs.
SUFFIXES = (".png", ".pdf", ".svg")
_PANELS = ("loss", "accuracy")
_COLOURS = {"training": "tab:blue", "validation": "tab:orange"}


def check(path: str | os.PathLike[str]) -> None:
    """Finds out before a long run whether the functions below will be able to draw.

    Raises:
        OptionError: matplotlib is not installed, or the file's name does not end in one of SUFFIXES.
    """
    if Path(path).suffix.lower() not in SUFFIXES:
        rule = f"the file's name must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"
        raise OptionError("--plot", rule, file=path)
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        hint = 'pip install "blobnet[plots]"'
        raise OptionError("--plot", "drawing needs matplotlib", cause=error, hint=hint) from error


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


def _figure(width: float, title: str) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, 4), layout="constrained")
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
