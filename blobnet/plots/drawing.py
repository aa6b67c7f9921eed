"""The base of all pictures: figures without a screen, text of any kind, files that are replaced whole."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from blobnet.files import atomic
from blobnet.plots import check

#: Dots an inch of pictures in files.
DPI = 120


class Drawing(Figure):
    """A figure that notebooks show by themselves, without pyplot."""

    def _repr_png_(self) -> bytes:
        image = io.BytesIO()
        self.savefig(image, format="png", dpi=DPI)
        return image.getvalue()


def new_figure(width: float, height: float, title: str) -> Drawing:
    """An empty figure of so many inches."""
    figure = Drawing(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle("\n".join(map(text, title.split("\n"))))
    return figure


def text(words: str, most: int | None = None) -> str:
    """Text that matplotlib takes as it is, of at most so many characters."""
    printable = words if words.isprintable() else words.encode("unicode_escape").decode("ascii")
    if most is not None and len(printable) > most:
        printable = f"{printable[: max(1, most - 1)]}\N{HORIZONTAL ELLIPSIS}"
    return printable.replace("$", r"\$")  # A dollar sign would begin a formula.


def save(figure: Any, path: str | os.PathLike[str]) -> None:
    """Writes a figure to a file, which is replaced whole.

    Args:
        figure: of matplotlib.
        path: a file that ends in one of SUFFIXES.

    Raises:
        OptionError: its name ends in something else.
        FileError: the file cannot be written.
    """
    check(path, "plots.save")
    image = io.BytesIO()
    figure.savefig(image, format=Path(path).suffix[1:].lower(), dpi=DPI)
    atomic.write(path, image.getvalue())
