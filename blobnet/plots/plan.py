"""The picture of a plan's memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from blobnet.launch.kernel_call import KernelCall
from blobnet.planning import Plan
from blobnet.planning.timeline import KINDS, memory_schedule
from blobnet.plots.drawing import new_figure, text
from blobnet.support.formatting import format_bytes

#: One for each of KINDS: cold for what is always there, warm for what comes and goes.
_COLOURS = ("#1f4e79", "#4f81bd", "#95b3d7", "#c6d5ea", "#7f9f7f", "#f0b04a", "#d9603b", "#b9b9b9")
#: The part of all launches that a phase has at least, for its name to be written.
_MIN_PHASE = 0.05


def memory(
    plan: Plan, *, reserved: Mapping[str, int] | None = None, updates: Sequence[KernelCall] = (), title: str = ""
) -> Figure:
    """Draw the memory in use at each launch of a plan, stacked, below what is allocated.

    The numbers are those of :func:`blobnet.planning.timeline.memory_schedule`, which says what the arguments are.
    """
    found = memory_schedule(plan, reserved, updates)
    count, peak, total = len(found.launches), found.peak, found.total
    unit, divisor = _unit(found.allocated)
    figure = new_figure(11, 5.5, title)
    axes = figure.subplots()
    edges = np.arange(count + 1)
    colours = [_COLOURS[KINDS.index(kind)] for kind in found.held]
    stacked = [np.append(values, values[-1]) / divisor for values in found.held.values()]
    labels = [f"{kind}, {format_bytes(int(values.max()))}" for kind, values in found.held.items()]
    axes.stackplot(edges, *stacked, labels=labels, colors=colours, step="post", linewidth=0)
    axes.axhline(found.allocated / divisor, color="black", linestyle="--", linewidth=1)
    axes.set_xlim(0, count)
    axes.set_ylim(0, 1.3 * found.allocated / divisor)
    allocated = f"allocated: {format_bytes(found.allocated)}"
    # On the side where no line to the peak crosses it.
    end, side, shift = (count, "right", -4) if peak < count / 2 else (0, "left", 4)
    axes.annotate(allocated, (end, found.allocated / divisor), (shift, 3), textcoords="offset points", ha=side)
    where = f"most in use: {format_bytes(int(total[peak]))},\n{text(found.launches[peak], 60)}"
    axes.annotate(
        where,
        (peak + 0.5, total[peak] / divisor),
        (min(max(peak / count, 0.3), 0.7), 0.98),
        textcoords="axes fraction",
        ha="center",
        va="top",
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
        arrowprops={"arrowstyle": "-", "linewidth": 0.7, "shrinkA": 0, "relpos": (0.5, 0)},
    )
    _draw_phases(axes, found.phases)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("launch")
    axes.set_ylabel(unit)
    handles, names = axes.get_legend_handles_labels()
    # In the order in which they lie upon one another.
    figure.legend(handles[::-1], names[::-1], loc="outside right center", title="held by, at most")
    return figure


def _draw_phases(axes: Axes, phases: Sequence[str]) -> None:
    """A line where each phase begins, and its name above the picture, where there is room for it."""
    start, least = 0, len(phases) * _MIN_PHASE
    for name, members in groupby(phases):
        length = len(list(members))
        axes.axvline(start, color="black", linewidth=0.5, alpha=0.6)
        if length >= least or start + length == len(phases):
            axes.text(start, 1.01, f" {name}", transform=axes.get_xaxis_transform(), fontsize=9)
        start += length


def _unit(size: int) -> tuple[str, int]:
    """The unit in which so many bytes are read best, and its bytes."""
    power = min(max(size.bit_length() - 1, 10) // 10, 4)
    return f"{'KMGT'[power - 1]}iB", 1024**power
