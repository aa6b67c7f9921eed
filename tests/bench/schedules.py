"""The ladders of the seeds (docs/sources.md) as schedules of the contraction compiler, against what a device could do.

    python tests/bench/schedules.py [CASE...] [--seed 000 002 004] [--device NAME] [--batch-size 1] [--show]
    python tests/bench/schedules.py 64x57x57:50k5s2p2 --seed 000 --bias position --activation "P > 0 ? P : P / 8"

A case is as for `blobnet bench conv`; each seed has its own by default, 002 the suite unet1d. A rung is a schedule, in
the layout of its seed: 000 has weights as [i, o, a, b], 004 units innermost. Beside it stand its time, the rates at
which it computes and moves each byte once, the part that this is of the device's roofline (theory, measured before),
and how many times as fast it is as the rung before (step) and as the first (climb). Then come the schedule that the
compiler chooses, and the kernels of a Conv layer (production). Sets of buffers take turns, so that caches do not
flatter; on GPUs times are the device's own.

Seed 002 ends with its table: for every shape the best of its rungs, in theory and actually.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from blobnet.bench import timing
from blobnet.bench.roofline import Roofline, measure
from blobnet.command_line.bench import short
from blobnet.contraction import function
from blobnet.contraction.calls import launches
from blobnet.contraction.form import Program
from blobnet.contraction.lowering import lower
from blobnet.contraction.schedule import Schedule
from blobnet.contraction.search import best_schedule
from blobnet.contraction.table import Table
from blobnet.device.device import Device
from blobnet.errors import BlobnetError
from blobnet.examination import layer_cases
from blobnet.execution.contractions import Compiled, compiled
from blobnet.hardware.device_model import DeviceModel
from blobnet.implementations.base import FORWARD
from blobnet.launch.kernel_call import Array
from blobnet.memory.windows import WindowAxis
from blobnet.support.tables import Table as Lines

CASES = {"000": ["64x56x56:64k3p1"], "002": ["unet1d"], "004": ["240x28x28:240k1"]}
TITLES = {
    "000": "portable convolution layers",
    "002": "1-D convolution, channels a thread",
    "004": "1x1 convolution as an outer product",
}
#: Work-items side by side along the columns, or the units; units that one makes in seed 000, and in seed 004.
SIDE_BY_SIDE, BLOCK, VECTOR = 32, 16, 4
#: Seed 002: input units a work-item; positions of a group; work-items of it; bytes of its local memory.
CHANNELS, POSITIONS, MAX_ITEMS, LOCAL_BYTES = (1, 2, 4, 8, 16), 8, 1024, 48 << 10
#: Buffers that take turns at most.
MAX_SETS = 12


@dataclass(frozen=True)
class Rung:
    """A schedule, and what it does that those before do not."""

    name: str
    adds: str
    schedule: str


def obstacle(seed: str, case: layer_cases.Case) -> str | None:
    """Why a seed has no rungs for a case; None if it has."""
    layer: Any = case.layer
    if layer.kind not in layer_cases.CONVOLUTIONS or layer.groups > 1:
        return "it must be a convolution of one group"
    if seed == "002" and layer.rank != 1:
        return "a convolution must have 1 axis"
    if seed == "004" and any(axis.kernel > 1 for axis in axes(case)):
        return "a filter must have 1 tap"
    return None


def program(
    seed: str,
    case: layer_cases.Case,
    batch_size: int,
    bias: str = "",
    activation: str = "",
    preactivation: bool = False,
) -> Program:
    """A convolution's forward pass in the layout of a seed: R of the input I, the weights W and the bias B.

    Args:
        seed: whose layout.
        case: the convolution, of one or two axes.
        batch_size: samples.
        bias: "", "unit" or "position".
        activation: of P, which is the sum and its bias; "": none.
        preactivation: whether P is an output as well.
    """
    layer: Any = case.layer
    rank = layer.rank
    names = ["y", "x"][-rank:]
    windows = axes(case)
    taps = [axis.kernel for axis in windows]
    places = [
        f"{axis.stride}*{name} + {axis.dilation}*{tap} - {axis.padding[0]}"
        for name, tap, axis in zip(names, "ab", windows, strict=False)
    ]
    tap_names, output = list("ab"[:rank]), case.output
    sizes = dict(zip(["o", *names], output.dimensions, strict=True))
    cell = ["n", *names, "o"] if seed == "004" else ["n", "o", *names]
    read = ["n", *places, "i"] if seed == "004" else ["n", "i", *places]
    units = ["i", "o"] if seed == "000" else ["o", "i"]
    extents = [str(sizes[name]) for name in cell[1:]]
    total = f"S[{', '.join(cell)} : {batch_size}, {', '.join(extents)}] = "
    total += f"+(I[{', '.join(read)}] * W[{', '.join([*units, *tap_names])}])"
    shape = list(case.input.dimensions)
    known = {
        "I": (batch_size, *(shape[1:] + shape[:1] if seed == "004" else shape)),
        "W": (*[{"i": case.input.units, "o": output.units}[name] for name in units], *taps),
    }
    if bias:
        flat = {"unit": [sizes[name] if name == "o" else 1 for name in cell[1:]]}
        known["B"] = tuple(flat.get(bias, [sizes[name] for name in cell[1:]]))
    heads = {"I": cell, "W": [*units, *tap_names], "B": cell[1:]}
    inputs = ", ".join(f"{name}[{', '.join(f'{name}{axis}' for axis, _ in enumerate(heads[name]))}]" for name in known)
    outputs = "R, P" if preactivation else "R"
    steps = [total, f"P = S{' + B' if bias else ''}", f"R = {activation or 'P'}"]
    return function(f"function ({inputs}) -> ({outputs}) {{ {'; '.join(steps)}; }}").program(**known)


def axes(case: layer_cases.Case) -> tuple[WindowAxis, ...]:
    """The window along each axis."""
    layer: Any = case.layer
    return layer.windows(case.input)  # type: ignore[no-any-return]


def rungs(seed: str, case: layer_cases.Case, model: DeviceModel) -> Iterator[Rung]:
    """The rungs of a seed for a case on a device, in the order of the seed; each is built on the one before."""
    layer: Any = case.layer
    width, units, outputs = case.output.width, case.input.units, case.output.units
    taps = " ".join("ab"[: layer.rank])
    columns = f"tile x {min(width, SIDE_BY_SIDE)}x1x1"
    if seed == "000":
        block = f"tile o 1x1x{min(outputs, BLOCK)}"
        pairs = f"tile x {min(max(1, width // 2), SIDE_BY_SIDE)}x1x{min(width, 2)}"
        lanes = f"tile o 1x1x{BLOCK}; vector o {BLOCK}; pack W"
        yield Rung("concise", "a work-item an output value", columns)
        yield Rung("weight vectors", "weights of an input unit as vectors", f"{columns}; unroll {taps}; wide W")
        yield Rung("input vectors", "rows of the input as vectors", f"{columns}; unroll {taps}; wide W I")
        yield Rung("16 units", "loads across depths", f"{columns}; {block}; unroll {taps}; wide W I")
        yield Rung("16 units, 2 columns", "2 columns a work-item", f"{pairs}; {block}; unroll {taps}; wide W I")
        yield Rung("packed", "lanes side by side in memory", f"{pairs}; {lanes}; unroll {taps}")
    elif seed == "004":
        vectors = max(1, outputs // VECTOR)
        count = max(count for count in range(1, SIDE_BY_SIDE + 1) if vectors % count == 0)
        block = f"tile o {count}x1x{VECTOR}; vector o {VECTOR}; pack W"
        pairs = f"{block}; tile x 1x1x{min(width, 2)}"
        step = next(size for size in (4, 3, 2, 1) if units % size == 0)
        yield Rung("concise", "a work-item an output value", f"tile o {min(outputs, SIDE_BY_SIDE)}x1x1")
        yield Rung("4 units", "4 output units a work-item", block)
        yield Rung("4 units, 2 columns", "2 columns a work-item: an outer product", pairs)
        steps = f"{pairs}; cut i {step}; unroll i/cut; wide I"
        yield Rung(f"{step} input units a step", "the loop over input units unrolled, inputs as vectors", steps)
    else:
        positions = f"tile x 1x1x{min(width, POSITIONS)}"
        items = min(units, model.group_size, MAX_ITEMS)
        beside = f"tile o {min(outputs, SIDE_BY_SIDE)}x1x1; tile x {min(width, POSITIONS)}x1x1"
        yield Rung("concise", "a work-item an output value", beside)
        shared = f"{positions}; share i {items}; unroll {taps}"
        yield Rung("shared units", "a group an output unit, an item an input one", shared)
        for channels in CHANNELS:
            if units % channels == 0:
                name, adds = f"{channels} channels", f"{channels} input units a work-item"
                if channels == 1:
                    name, adds = "local memory", "both come through local memory"
                yield Rung(name, adds, f"{positions}; {staged(case, channels, model)}; unroll i/cut {taps}; local I W")


def staged(case: layer_cases.Case, channels: int, model: DeviceModel) -> str:
    """How work-items share ``channels`` input units each, as many at a time as local memory has room for."""
    (axis,) = axes(case)
    positions = min(case.output.width, POSITIONS)
    run = (positions - 1) * axis.stride + axis.span
    each = (channels * (run | 1) | 1) + (channels * (axis.kernel | 1) | 1)
    room, turns = min(model.local_memory, LOCAL_BYTES) // 4 - 64, case.input.units // channels
    items = min(turns, model.group_size, MAX_ITEMS)
    while items > 1 and items * (each + positions) > room:
        items //= 2
    chunk = min(turns, max(1, (room - items * positions) // each // items) * items)
    return f"cut i {channels}; share i {items}" + (f"; chunk i {chunk}" if chunk < turns else "")


def chooser(schedule: str, model: DeviceModel) -> Callable[[Table], Schedule]:
    """What gives the sum a schedule, if there is one, and other tables the compiler's own."""
    forced = Schedule.parse(schedule)
    return lambda table: forced if schedule and table.reductions else best_schedule(table, model)


class Bench:
    """A program under a schedule, or the compiler's own, with several sets of buffers that take turns."""

    def __init__(self, device: Device, text: Program, sets: int, schedule: str) -> None:
        first = compiled(device, text, chooser(schedule, device.model))
        self.device = device
        self.sets = [first] + [Compiled(device, first.lowered) for _ in range(sets - 1)]
        values = {tensor.name: timing.values_like(tensor.elements).reshape(tensor.shape) for tensor in text.inputs}
        for item in self.sets:
            item.write(values)

    def seconds(self, repeats: int) -> float:
        """Those of a pass, the median: of the wall on a CPU, else the device's own."""
        rounds = [item.launches for item in self.sets]
        if not self.device.is_host:
            timing.burst_seconds(self.device, rounds, len(rounds))
            return sum(timing.launch_seconds(self.device, rounds, repeats))
        length = timing.burst_length(timing.burst_seconds(self.device, rounds, 1), self.device)
        return statistics.median(timing.burst_seconds(self.device, rounds, length) for _ in range(repeats))


def build(device: Device, programs: Iterable[tuple[Program, str]]) -> None:
    """Builds programs under schedules side by side; those that do not fit are left for who measures them."""
    sources = []
    for text, schedule in programs:
        with contextlib.suppress(BlobnetError):
            lowered = lower(text, chooser(schedule, device.model))
            operands = {name: Array(name, size) for name, size in lowered.elements.items()}
            names = ", ".join(tensor.name for tensor in text.outputs)
            sources += [call.assemble() for call in launches(lowered, operands, f"contraction {names}")]
    device.programs.build_ahead(dict.fromkeys(sources))


_ROW = "  {:<22}{:>10}{:>9}{:>9}{:>7}{:>8}{:>8}  {}"


def report(device: Device, roof: Roofline, seed: str, case: layer_cases.Case, options: argparse.Namespace) -> list[str]:
    """Prints the ladder of a case; the line of its best rung for a table of theory and what is."""
    import single_layers  # Beside this script; tests take the rungs alone.

    work = case.work(FORWARD, options.batch_size)
    floor, limit = roof.floor(work.flops, work.bytes)
    print(f"\nseed {seed}, {TITLES[seed]}: {case}, batch {options.batch_size}")
    print(f"{work.flops / 1e6:.4g} MFLOP, {work.bytes / 1e6:.4g} MB, in theory {floor * 1e6:.1f} us ({limit})")
    print(_ROW.format("", "us", "GFLOPS", "GB/s", "theory", "step", "climb", "what it adds"))
    hand = single_layers.CaseBench(device, case, options.batch_size)
    text = program(seed, case, options.batch_size, options.bias, options.activation, options.preactivation)
    taken: list[tuple[float, str]] = []

    def line(name: str, took: float, remark: str) -> None:
        taken.append((took, name))
        gains = [f"{before / took:.2f}x" if len(taken) > 1 else "" for before, _ in (taken[-2:][0], taken[0])]
        rates = f"{took * 1e6:.1f}", f"{work.flops / took / 1e9:.1f}", f"{work.bytes / took / 1e9:.1f}"
        print(_ROW.format(name, *rates, f"{floor / took:.0%}", *gains, remark).rstrip(), flush=True)

    chosen = Rung("chosen", "by the compiler's model", "")
    best: tuple[float, str] = (float("inf"), "none")
    for rung in [*rungs(seed, case, device.model), chosen]:
        try:
            made = Bench(device, text, min(hand.sets, MAX_SETS), rung.schedule)
            line(rung.name, made.seconds(options.repeats), rung.adds)
        except BlobnetError as error:
            print(f"  {rung.name:<22}skipped: {str(error).splitlines()[0]}")
            continue
        best = min(best, taken[-1]) if rung is not chosen else best
        if options.show:
            print("".join(f"      {step.schedule}\n" for step in made.sets[0].lowered.steps), end="")
    result = single_layers.measure(hand, FORWARD, roof, options.repeats)
    line("production", result.seconds, result.main.kernel)
    took, name = best
    figures = work.flops / 1e6, work.bytes / 1e6, work.flops / work.bytes, floor * 1e6, took * 1e6
    rates = work.flops / took / 1e9, work.bytes / took / 1e9, 100 * floor / took
    return [str(case), name, *map(short, (*figures, *rates))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--seed", nargs="+", choices=sorted(CASES), default=sorted(CASES))
    parser.add_argument("--device")
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--bias", choices=("unit", "position"), default="")
    parser.add_argument("--activation", default="", metavar="TEXT", help="a function of P, in the compiler's language")
    parser.add_argument("--preactivation", action="store_true", help="also store P, what the activation is applied to")
    parser.add_argument("--show", action="store_true", help="print schedules")
    options = parser.parse_args()
    device = Device(options.device)
    roof = measure(device)
    print(f"{device.info}: {roof.flops / 1e9:.0f} GFLOPS, {roof.bandwidth / 1e9:.1f} GB/s")
    cases = {
        seed: [case for name in options.cases or CASES[seed] for case in layer_cases.named(name)]
        for seed in options.seed
    }
    epilogue = options.bias, options.activation, options.preactivation
    build(
        device,
        [
            (program(seed, case, options.batch_size, *epilogue), schedule)
            for seed, climbed in cases.items()
            for case in climbed
            if obstacle(seed, case) is None
            for schedule in ["", *(rung.schedule for rung in rungs(seed, case, device.model))]
        ],
    )
    for seed, climbed in cases.items():
        found = []
        for case in climbed:
            reason = obstacle(seed, case)
            if reason is None:
                found.append(report(device, roof, seed, case, options))
            else:
                print(f"\nseed {seed}: {case} skipped: {reason}")
        if found and seed == "002":
            header = ("shape", "best", "MFLOP", "MB", "flops/byte", "theory us", "actual us", "GFLOPS", "GB/s", "%")
            print(f"\n{Lines(header, found, '<<>>>>>>>>')}")


if __name__ == "__main__":
    main()
