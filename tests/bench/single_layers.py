"""Single layers against what the device can do, and PyTorch: `blobnet bench conv` and `blobnet bench layer`.

A layer is timed as training runs it: by the launches of a real plan, in memory that no cache holds.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from blobnet import plots
from blobnet.bench.roofline import Roofline
from blobnet.bench.timing import (
    CASE_LAYER,
    CASE_SETTINGS,
    burst_length,
    burst_seconds,
    case_graph,
    count_sets,
    filled_executor,
    launch_seconds,
    race,
)
from blobnet.command_line.bench import rates_of, short
from blobnet.command_line.model_argument import ModelSource, build_for, find_model, known_models
from blobnet.device.device import Device
from blobnet.errors import OptionError, near_matches
from blobnet.examination import layer_cases
from blobnet.examination.layer_cases import Case, Work
from blobnet.execution.executor import Launch, plan_for
from blobnet.launch.kernel_call import KernelCall
from blobnet.layers import Conv2D, GlobalAveragePool, Input
from blobnet.layers.base import Layer
from blobnet.memory.blob import Shape
from blobnet.network.graph import Graph, from_nodes
from blobnet.planning import Plan
from blobnet.support.tables import floor_percent, row_text

#: The columns of the table of layers.
_COLUMNS = (
    *("  {:<16}", "{:>9}", "{:>8}", "{:>7}", "{:>9}", "{:>5}"),
    *(" {:<8}", "{:>3}", "{:>9}", "{:>9}", "{:>6}", "  {:<28}"),
)
_LEGEND = """\
floor: bytes once at the measured bandwidth, or flops at the measured peak; %: floor/ms, >100 where it was none: data
stayed in a cache, or minimal filtering needs fewer flops (then sums of floors take ms instead); n: launches. One that
packs weights, or adds up splits, of several layers counts for one of them alone"""
#: Macros that say how a kernel divides its work, by the beginning of their names.
_TILE_MACROS = ("BLOCK_", "TILE_", "LANES", "SPLITS", "STRIP", "CHANNELS", "POSITIONS", "UNROLL")


#: A blob of fewer units is the network's input, and has no cells.
_FEW = 8
#: Units of the input of a network around a layer: whole cells of any type.
_INPUT_UNITS = 16


# -- measuring ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Timing:
    """Seconds of one phase.

    ``wall``: what the host waits, a burst of the phase divided by its length; ``launches``: each launch's own time, as
    the device tells it; medians both. ``torch``: the wall time of the same phase in PyTorch, where it was measured, and
    ``ratio`` the median of PyTorch's over blobnet's, burst by burst: above 1, blobnet is faster.
    """

    wall: float
    launches: tuple[float, ...]
    torch: float | None = None
    ratio: float | None = None

    @property
    def on_device(self) -> float:
        """Seconds of all launches, without what is between them."""
        return sum(self.launches)


@dataclass(frozen=True)
class Result:
    """A phase of a case: what it came to, on what kernels."""

    case: Case
    direction: str
    work: Work
    timing: Timing
    seconds: float
    floor: float
    bound: str
    calls: tuple[KernelCall, ...]
    work_items: int

    @property
    def main(self) -> KernelCall:
        """The launch that takes longest."""
        return self.calls[max(range(len(self.calls)), key=lambda index: self.timing.launches[index])]


class CaseBench:
    """A layer after an input, or between others, planned for training, with several sets of buffers on a device.

    Args:
        device: where to run.
        case: what to measure.
        batch_size: samples.

    Raises:
        BuildError: the driver refuses a kernel.
        DeviceError: the device has no room for the buffers, or refuses a launch.
    """

    def __init__(self, device: Device, case: Case, batch_size: int) -> None:
        self.device, self.case, self.batch_size = device, case, batch_size
        # Processors train on blobs of numbers.
        in_cells = device.tuning.cells and not device.is_host and case.layer.kind == "Conv2D"
        graph = _between(case) if in_cells else case_graph(case)
        self.plan = plan_for(device, graph, batch_size, **CASE_SETTINGS)
        self.calls = _calls(self.plan, case)
        self.sets = count_sets(device, case, self.plan)
        launches = [call for calls in self.calls.values() for call in calls]
        self._executors = executors = [filled_executor(device, self.plan) for _ in range(self.sets)]  # own the buffers
        self._bound: dict[str, list[list[Launch]]] = {
            direction: [executor.bind(calls, batch_size) for executor in executors]
            for direction, calls in self.calls.items()
        }
        for executor in executors:  # In the order of training, since backward reads what forward left.
            executor.launch(executor.bind(launches, batch_size), batch_size)
        device.queue.finish()

    def burst(self, direction: str, length: int) -> float:
        """Seconds of one of ``length`` repeats: see :func:`burst_seconds`."""
        return burst_seconds(self.device, self._bound[direction], length)

    def launch(self, direction: str, repeat: int) -> None:
        """Enqueues a phase, with the set of buffers whose turn it is."""
        for item in self._bound[direction][repeat % self.sets]:
            item.enqueue()

    def launches(self, direction: str, repeats: int) -> tuple[float, ...]:
        """The median seconds of every launch, as the device tells them."""
        return launch_seconds(self.device, self._bound[direction], repeats)

    def work(self, direction: str) -> Work:
        """Operations and bytes of one phase."""
        return self.case.work(direction, self.batch_size)

    def work_items(self, direction: str) -> int:
        """Work-items of all launches."""
        return sum(math.prod(item.global_size) for item in self._bound[direction][0])


def _between(case: Case) -> Graph:
    """The layer between two others, so that its blobs have cells where they would within a network.

    The ends of a network have numbers. They are joined to the layer by layers of little work, so that its own time
    decides whether there are cells.
    """
    node = first = Input(*case.input.dimensions)()
    if case.input.units >= _FEW:
        node = Input(_INPUT_UNITS, *case.input.dimensions[1:])()
        first = Conv2D(case.input.units, 1, name="before")(node)
    return from_nodes(node, GlobalAveragePool(name="after")(replace(case.layer, name=CASE_LAYER)(first)))


def measure(
    bench: CaseBench,
    direction: str,
    roofline: Roofline,
    repeats: int,
    rival: Callable[[int], float] | None = None,
) -> Result:
    """One phase of a case, its bursts in turn with those of ``rival``, which takes a length and returns seconds."""
    device, case = bench.device, bench.case
    length = burst_length(bench.burst(direction, 1), device)
    wall, torch, ratio = race(lambda: bench.burst(direction, length), rival and (lambda: rival(length)), repeats)
    timing = Timing(wall, bench.launches(direction, repeats), torch, ratio)
    work = bench.work(direction)
    floor, bound = roofline.floor(work.flops, work.bytes)
    return Result(
        case=case,
        direction=direction,
        work=work,
        timing=timing,
        # On a CPU host and device are one, and starting a launch is part of its cost.
        seconds=timing.wall if device.is_host else timing.on_device,
        floor=floor,
        bound=bound,
        calls=tuple(bench.calls[direction]),
        work_items=bench.work_items(direction),
    )


def geometric_mean(ratios: Sequence[float]) -> float:
    """The geometric mean, in which half as fast and twice as fast cancel."""
    return math.exp(statistics.fmean(math.log(ratio) for ratio in ratios))


def _calls(plan: Plan, case: Case) -> dict[str, list[KernelCall]]:
    """The layer's calls of each phase."""
    found: dict[str, list[KernelCall]] = {direction: [] for direction in case.directions}
    layer = plan.request.graph.vertex(CASE_LAYER, "case").index
    for _, call in plan.calls:
        # An Add's backward copies, if any, are its neighbours' doing.
        if call.vertex == layer and case.phase(call.direction) in found:
            found[case.phase(call.direction)].append(call)
    return {direction: calls for direction, calls in found.items() if calls}


# -- the command -------------------------------------------------------------------------------------------------------


def from_graph(graph: Graph, kinds: Iterable[str]) -> list[Case]:
    """The distinct layers of some kinds in a network, in order of first use, with how often each occurs.

    A layer's name, its first weights and an activation after it do not make it distinct.
    """
    wanted, found = set(kinds), dict[tuple[Layer, Shape], int]()
    for vertex in graph.vertices:
        if vertex.layer.kind in wanted:
            case = layer_cases.of_vertex(graph, vertex)
            found[case.layer, case.input] = found.get((case.layer, case.input), 0) + 1
    return [Case(layer, shape, count) for (layer, shape), count in found.items()]


def find_cases(options: argparse.Namespace) -> list[Case]:
    """The layers that the command line names; raises OptionError where there are none."""
    kinds = layer_cases.CONVOLUTIONS if options.what == "conv" else layer_cases.OTHERS
    cases = _cases(options.subject or "resnet50", kinds, options.size)
    if options.direction and not any(options.direction in case.directions for case in cases):
        known = sorted({direction for case in cases for direction in case.directions})
        raise OptionError(
            "--direction", "it must be one that the layers have", direction=options.direction, known=known
        )
    return cases


def _cases(subject: str, kinds: Sequence[str], size: int | None) -> list[Case]:
    """The cases of a suite, of a network, or the one that is written out."""
    cases = layer_cases.named(subject)
    if not cases:
        known = [*layer_cases.SUITES, *known_models()]
        if not (".py" in subject or "/" in subject) and subject not in known:
            hint = near_matches(subject, known)
            rule = "it must be a suite, a network, or a shape such as 64x56x56:64k3p1"
            raise OptionError("SUBJECT", rule, name=subject, hint=hint)
        return _network_cases(find_model(subject), kinds, size)
    if size is not None:
        raise OptionError("--size", "only networks are built for a size", given=subject)
    wrong = [str(case) for case in cases if case.layer.kind not in kinds]
    if wrong:
        other = "layer" if "Conv2D" in kinds else "conv"
        raise OptionError("SUBJECT", "these layers are not of the kind to measure", layers=wrong[:3],
                          hint=f"blobnet bench {other} measures them.")  # fmt: skip
    return cases


def _network_cases(source: ModelSource, kinds: Sequence[str], size: int | None) -> list[Case]:
    cases = from_graph(build_for(source, size, None).graph, kinds)
    if not cases:
        raise OptionError("SUBJECT", "the network must have layers to measure", kinds=", ".join(kinds))
    return cases


def run(options: argparse.Namespace, top: Roofline, say: Callable[[str], None]) -> dict[str, Any]:
    """Measures and prints a line a phase, and what they come to; all of it as JSON has it."""
    device, batch_size, where = options.opened, options.samples, options.where
    titles = ["", "ms", "GFLOPS", "GB/s", "floor ms", "%", "bound", "n", "items", "torch ms", "ratio", "kernel"]
    if where is None:
        titles[9:11] = "", ""
    say("\n" + row_text(_COLUMNS, titles, gap=""))
    results: list[Result] = []
    for case in options.cases:
        bench = CaseBench(device, case, batch_size)
        twin = options.twin.CaseTwin(case, batch_size, bench.sets, where) if where else None
        say(work_text(case, case.work(case.directions[0], batch_size)))
        for direction in bench.calls:
            if options.direction in (None, direction):
                rival = partial(twin.burst, direction) if twin is not None else None
                results.append(measure(bench, direction, top, options.repeats, rival))
                say(_result_line(results[-1]))
    means = _means(results)
    say("\n" + "\n".join([_LEGEND, *tile_legend(results)]))
    for direction, total in _totals(results).items():
        mean = f"; geometric mean of the ratios {means[direction]:.2f}" if direction in means else ""
        part = f"floor {short(total['floor_ms'])} ms, {floor_percent(total['floor_ms'], total['ms'])} %"
        say(f"{direction}: {short(total['ms'])} ms for all, each as often as it occurs; {part}{mean}")
    if options.plot is not None:
        title = f"{options.subject or 'resnet50'}, batch {batch_size}, {device.info.name}"
        plots.save(plots.roofline(rates_of(results), top.flops, top.bandwidth, title), options.plot)
    return {
        "results": [result_record(item) for item in results],
        "totals": _totals(results),
        "geometric_means": means,
    }


def _result_line(item: Result) -> str:
    torch = ("", "") if item.timing.torch is None else (short(1e3 * item.timing.torch), f"{item.timing.ratio:.2f}")
    cells = (
        item.direction,
        short(1e3 * item.seconds),
        short(item.work.flops / item.seconds / 1e9),
        short(item.work.bytes / item.seconds / 1e9),
        short(1e3 * item.floor),
        floor_percent(item.floor, item.seconds),
        item.bound,
        len(item.calls),
        item.work_items,
        *torch,
        kernel_text(item.main),
    )
    return row_text(_COLUMNS, cells, gap="")


def _totals(results: Iterable[Result]) -> dict[str, dict[str, float]]:
    totals: dict[str, dict[str, float]] = {}
    for item in results:
        total = totals.setdefault(item.direction, {"ms": 0.0, "floor_ms": 0.0})
        total["ms"] += 1e3 * item.case.count * item.seconds
        # What passes its floor saves no time of others.
        total["floor_ms"] += 1e3 * item.case.count * min(item.floor, item.seconds)
    return totals


def _means(results: Iterable[Result]) -> dict[str, float]:
    ratios: dict[str, list[float]] = {}
    for item in results:
        if item.timing.ratio is not None:
            ratios.setdefault(item.direction, []).append(item.timing.ratio)
    return {direction: geometric_mean(values) for direction, values in ratios.items()}


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


def _scaled(value: float, unit: str) -> str:
    """A count with the prefix that fits it."""
    for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{short(value / factor)} {prefix}{unit}"
    return f"{value:.0f} {unit}"
