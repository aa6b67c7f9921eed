"""The progress of a training on a terminal or in a notebook: a bar that is gone when it ends, and a row an epoch."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from blobnet.support.build_progress import is_watched
from blobnet.support.tables import terminal_width

#: What a bar shows; with the metrics it fits 80 columns.
_BAR = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}, {rate_fmt}{postfix}"


@cache
def _tqdm() -> Any:
    """The bars of tqdm, which who shows none need not wait for."""
    from tqdm import TqdmWarning

    with warnings.catch_warnings():
        # It chooses a widget in a notebook that has ipywidgets; that it may, and that there are none, needs no word.
        warnings.simplefilter("ignore", TqdmWarning)
        from tqdm.autonotebook import tqdm
    return tqdm


def bar(title: str, total: int | None, verbose: bool, done: int = 0) -> Any:
    """A progress bar over samples that is gone when it ends: on a terminal, or a widget in a notebook; else none.

    ``done`` samples were done before.
    """
    settings = {"unit": " img", "unit_scale": True, "bar_format": _BAR, "dynamic_ncols": True, "leave": False}
    shown = _tqdm()(total=total, initial=done, desc=title, disable=not (verbose and is_watched()), **settings)
    # NOTE: tqdm looks at the clock on the wall, and where that was put back, shows nothing until it is there again.
    shown._time = time.monotonic
    shown.start_t = shown.last_print_t = time.monotonic()
    return shown


def shown(record: Mapping[str, float]) -> str:
    """Metrics as a bar shows them."""
    return ", ".join(f"{name} {_short(value)}" for name, value in record.items() if "top_5" not in name)


def _short(value: float) -> str:
    """A number in at most 6 characters or so."""
    return f"{value:.4f}" if abs(value) < 10 else f"{value:.4g}"


class Table:
    """The table of a training: a row an epoch, below a header; without further metrics it fits 80 columns.

    ``more`` are the names in the history of metrics that were asked for.
    """

    def __init__(self, epochs: int, has_accuracy: bool, has_validation: bool, more: Sequence[str] = ()) -> None:
        metrics = ["loss", "accuracy"] if has_accuracy else ["loss"]
        names = [*metrics, *(f"validation_{name}" for name in metrics if has_validation), *more]
        columns = {"epoch": "epoch", "time": "time", "speed": "img/s", "rate": "rate"}
        columns |= {name: name.replace("validation_", "val. ") for name in names}
        self.epochs = epochs
        widths = {"epoch": len(f"{epochs}/{epochs}"), "time": 7, "speed": 6, "rate": 7}
        self._widths = {name: max(len(title), widths.get(name, 6)) for name, title in columns.items()}
        room = terminal_width()
        for name in ("speed", "rate", "time"):  # What a narrow terminal goes without.
            if room and sum(self._widths.values()) + 2 * len(self._widths) - 2 > room:
                del self._widths[name]
        self.header = self._line(columns)

    def row(self, epoch: int, seconds: float, samples: int, learning_rate: float, record: Mapping[str, float]) -> str:
        """The row of an epoch that took ``seconds`` without its validation; the learning rate is the last step's."""
        cells = {name: _short(value) for name, value in record.items() if name in self._widths}
        cells["epoch"] = f"{epoch}/{self.epochs}"
        cells["time"] = f"{seconds:.1f} s" if seconds < 100 else _tqdm().format_interval(seconds)
        cells["speed"] = f"{samples / seconds:.0f}"
        cells["rate"] = f"{learning_rate:.2g}"
        return self._line(cells)

    def _line(self, cells: Mapping[str, str]) -> str:
        return "  ".join(f"{cells[name]:>{width}}" for name, width in self._widths.items())
