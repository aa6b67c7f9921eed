"""All pictures that blobnet draws. Each function returns a matplotlib Figure; ``save`` writes it to a file.

>>> from blobnet import plots
>>> figure = plots.curves(model.fit(x, y, epochs=5), "a training")
>>> plots.save(figure, "curves.png")

What a picture shows comes as plain data from elsewhere (each function names the place); here it is only drawn.
matplotlib, the extra ``plot``, is imported when the first figure is asked for.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blobnet.errors import OptionError, extra

if TYPE_CHECKING:
    from blobnet.plots.drawing import save
    from blobnet.plots.measured import confusion, curves, learning_rates, roofline
    from blobnet.plots.model import draw_network, network
    from blobnet.plots.plan import memory
    from blobnet.plots.sheet import draw_mistakes, draw_sheet, mistakes, samples
    from blobnet.plots.timing import step

#: The formats that matplotlib draws without a screen or further programs.
SUFFIXES = (".png", ".pdf", ".svg")
#: The module of each function. No file has the name of a function: importing the one would hide the other.
_MODULES = {
    "save": "drawing",
    "step": "timing",
    "draw_mistakes": "sheet",
    "draw_network": "model",
    "draw_sheet": "sheet",
    "memory": "plan",
    "mistakes": "sheet",
    "network": "model",
    "samples": "sheet",
    "confusion": "measured",
    "curves": "measured",
    "learning_rates": "measured",
    "roofline": "measured",
}
__all__ = [
    "SUFFIXES",
    "check",
    "confusion",
    "curves",
    "draw_mistakes",
    "draw_network",
    "draw_sheet",
    "learning_rates",
    "memory",
    "mistakes",
    "network",
    "roofline",
    "samples",
    "save",
    "step",
]


def check(path: str | os.PathLike[str], option: str = "--plot") -> None:
    """Finds out before a long run whether the functions of this package will be able to draw.

    Args:
        path: of the picture.
        option: what errors call it.

    Raises:
        OptionError: matplotlib is not installed, or the file's name does not end in one of SUFFIXES.
    """
    if Path(path).suffix.lower() not in SUFFIXES:
        rule = f"the file's name must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"
        raise OptionError(option, rule, file=path)
    _check_matplotlib(option)


def _check_matplotlib(subject: str) -> None:
    try:
        importlib.import_module("matplotlib.figure")
    except ImportError as error:
        raise OptionError(subject, "drawing needs matplotlib", cause=error, hint=extra("plot")) from error


def __getattr__(name: str) -> Any:
    """Imports a function, and matplotlib with it, when it is first used."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    _check_matplotlib(f"plots.{name}")
    value = getattr(importlib.import_module(f"blobnet.plots.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
