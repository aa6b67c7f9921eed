"""The picture of a training: loss and accuracy over the epochs. matplotlib is imported when it is asked for."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from blobnet.errors import FileError, OptionError

#: What matplotlib draws without a screen or further programs.
SUFFIXES = (".png", ".pdf", ".svg")
_PANELS = ("loss", "accuracy")
_COLOURS = {"training": "tab:blue", "validation": "tab:orange"}


def check(path: str | os.PathLike[str]) -> None:
    """Finds out before a training whether :func:`save_curves` will be able to draw.

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
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    names = [name for name in _PANELS if name in history]
    figure = Figure(figsize=(5 * len(names), 4), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        for part, values in (("training", history[name]), ("validation", history.get(f"validation_{name}", ()))):
            if len(values):
                axes.plot(range(1, len(values) + 1), values, marker="o", markersize=4, color=_COLOURS[part], label=part)
        axes.set_title(name)
        axes.set_xlabel("epoch")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.grid(alpha=0.3)
        axes.legend()
    target = Path(path)
    temporary = target.with_name(f".{os.getpid()}-{target.name}")
    try:
        figure.savefig(temporary, dpi=120)
        temporary.replace(target)
    except OSError as error:
        raise FileError(str(path), f"the picture cannot be written: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)
