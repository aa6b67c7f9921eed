"""The parts that tables and JSON of ``blobnet bench`` share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from blobnet.bench.timing import Result
from blobnet.examination.layer_cases import Case, Work
from blobnet.launch.kernel_call import KernelCall

#: Macros that say how a kernel divides its work, by the beginning of their names.
_TILE_MACROS = ("BLOCK_", "TILE_", "LANES", "SPLITS", "STRIP", "CHANNELS", "POSITIONS", "UNROLL")


def tile(call: KernelCall) -> dict[str, Any]:
    """The macros that say how a kernel divides its work."""
    named = {**call.macros, **call.tunables}
    return {name: value for name, value in named.items() if name.startswith(_TILE_MACROS)}


def kernel_text(call: KernelCall) -> str:
    """The kernel's name without its family, and the values of its tile."""
    return " ".join([call.kernel.partition("/")[2], "x".join(map(str, tile(call).values()))]).rstrip()


def tile_legend(results: Iterable[Result]) -> list[str]:
    """Return the legend of the numbers after the names of kernels."""
    tiles = {item.main.kernel: " x ".join(tile(item.main)) for item in results if tile(item.main)}
    return [f"{kernel}: {names}" for kernel, names in sorted(tiles.items())]


def work_text(case: Case, work: Work) -> str:
    """A case and what a phase of it comes to."""
    often = f" ({case.count} times)" if case.count > 1 else ""
    flops, size = _scaled(work.flops, "flop"), _scaled(work.bytes, "B")
    return f"{case}{often}: {flops}, {size}, {short(work.flops / work.bytes)} flop/byte"


def result_record(item: Result) -> dict[str, Any]:
    """A result as JSON has it."""
    return {
        "shape": str(item.case),
        "count": item.case.count,
        "direction": item.direction,
        "ms": 1e3 * item.seconds,
        "wall_ms": 1e3 * item.timing.wall,
        "device_ms": 1e3 * item.timing.on_device,
        "flops": item.work.flops,
        "bytes": item.work.bytes,
        "flops_per_byte": item.work.flops / item.work.bytes,
        "gflops": item.work.flops / item.seconds / 1e9,
        "gb_per_s": item.work.bytes / item.seconds / 1e9,
        "floor_ms": 1e3 * item.floor,
        "floor_part": item.floor / item.seconds,
        "bound": item.bound,
        "kernel": item.main.kernel,
        "tile": tile(item.main),
        "work_items": item.work_items,
        "launches": [
            {"label": call.label, "kernel": call.kernel, "ms": 1e3 * seconds, "tunables": dict(call.tunables)}
            for call, seconds in zip(item.calls, item.timing.launches, strict=True)
        ],
        "torch_ms": None if item.timing.torch is None else 1e3 * item.timing.torch,
        "ratio": item.timing.ratio,
    }


def short(value: float) -> str:
    """A number in at most 7 characters, with three digits that count, or two of very large ones."""
    if value >= 1e7:
        return f"{value:.1e}"
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}" if value >= 100 else f"{value:.3g}"


def _scaled(value: float, unit: str) -> str:
    """A count with the prefix that fits it."""
    for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{short(value / factor)} {prefix}{unit}"
    return f"{value:.0f} {unit}"
