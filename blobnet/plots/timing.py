"""The picture of a training step: where its time goes, against what the device can do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from blobnet.plots.drawing import new_figure, text
from blobnet.plots.measured import draw_roofline
from blobnet.support.tables import ABOVE_FLOOR, floor_percent

if TYPE_CHECKING:
    from blobnet.bench.network import KernelShare
    from blobnet.bench.roofline import Roofline

#: Kernels that have a bar each.
_MAX_KERNELS = 20
#: Of what a kernel takes, and of what the roofline needs for it, by what bounds it.
_COLOURS = {"memory": ("#b8cce4", "#1f4e79"), "compute": ("#fbdcaa", "#c07000")}
_OTHERS = ("0.85", "0.85")


def step(
    shares: Sequence[KernelShare], points: Mapping[str, Sequence[tuple[float, float]]], top: Roofline, title: str = ""
) -> Figure:
    """A bar for each kernel, its part that the roofline needs darker, beside the roofline with the layers' phases.

    Args:
        shares: of the kernels, as :func:`blobnet.bench.network.kernel_shares` gives them.
        points: (operations a byte, operations a second) of the phases, by the name of their group.
        top: what was measured of the device.
        title: of the picture.
    """
    rows = min(len(shares), _MAX_KERNELS + 1)
    figure = new_figure(15, max(4.5, 1.6 + 0.26 * rows), title)
    bars, roof = figure.subplots(1, 2, width_ratios=(3, 2))
    _draw_bars(bars, shares)
    draw_roofline(roof, points, top.flops, top.bandwidth)
    roof.set_title(f"layers: {top.flops / 1e9:,.0f} GFLOPS, {top.bandwidth / 1e9:,.0f} GB/s measured", fontsize=10)
    return figure


def _draw_bars(axes: Axes, shares: Sequence[KernelShare]) -> None:
    total = sum(share.seconds for share in shares)
    # The dark parts: kernels whose data stay in a cache pass their floor, but save no time of others.
    floor = sum(min(share.seconds, share.floor) for share in shares)
    rows = [(share.kernel, share.launches, share.seconds, share.floor, _COLOURS[share.bound]) for share in shares]
    if len(rows) > _MAX_KERNELS + 1:
        rest = rows[_MAX_KERNELS:]
        launches = sum(row[1] for row in rest)
        seconds, floors = sum(row[2] for row in rest), sum(row[3] for row in rest)
        rows = [*rows[:_MAX_KERNELS], (f"{len(rest)} others", launches, seconds, floors, _OTHERS)]
    longest = max(seconds for _, _, seconds, *_ in rows)
    for place, (_, launches, seconds, least, (light, dark)) in enumerate(rows):
        axes.barh(place, 1e3 * seconds, color=light)
        axes.barh(place, 1e3 * min(seconds, least), color=dark)
        words = f"{seconds / total:.1%}, {launches}x, floor {floor_percent(least, seconds)} %"
        axes.text(1e3 * (seconds + 0.01 * longest), place, words, va="center", fontsize=8)
    axes.set_yticks(range(len(rows)), [text(name, 48) for name, *_ in rows], fontsize=8)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, 1.3e3 * longest)
    is_above = any(least > seconds for _, _, seconds, least, _ in rows)
    axes.set_xlabel("ms of a step, all launches of a kernel" + (f"\n{ABOVE_FLOOR}" if is_above else ""))
    axes.grid(axis="x", alpha=0.3)
    axes.set_title(f"kernels: {1e3 * total:.4g} ms, of which the roofline needs {1e3 * floor:.4g} ms", fontsize=10)
    handles = [Patch(color=dark, label=f"the floor, by {bound}") for bound, (_, dark) in _COLOURS.items()]
    axes.legend(handles=handles, loc="lower right", fontsize=8)
