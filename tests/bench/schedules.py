"""The ideas of the seeds (docs/sources.md) as schedules of the contraction compiler, against what a device could do.

    python tests/bench/schedules.py [CASE...] [--seed 000 002 004] [--device NAME] [--batch-size 1] [--show]

A case is as for `blobnet bench conv`; each seed has its own by default: 002 the suite unet1d. Beside every schedule
stand its time, the rates at which it computes and moves each byte once, and the part that this is of the device's
roofline (theory), measured before; the last line of a case is the schedule that the compiler chooses.

What the ladder (`blobnet bench ladder`) has and schedules do not: partial sums that are exchanged within a work-group
(here they go through memory: `split`), and input units unrolled by 4.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

from blobnet.bench import shapes
from blobnet.bench.roofline import Roofline, measure
from blobnet.contraction import function
from blobnet.contraction.execution import Compiled, compiled
from blobnet.contraction.form import Program
from blobnet.contraction.schedule import Schedule
from blobnet.device import Device
from blobnet.errors import BlobnetError

CASES = {"000": ["64x56x56:64k3p1"], "002": ["unet1d"], "004": ["240x28x28:240k1"]}
#: Work-items side by side along the columns, or the units.
SIDE_BY_SIDE = 32


def program(case: shapes.Case, batch_size: int) -> Program:
    """A convolution's forward pass, along its own axes."""
    layer: Any = case.layer
    names = "yx"[-layer.rank :]
    taps, strides, paddings = (
        [value] * layer.rank if isinstance(value, int) else list(value)
        for value in (layer.kernel_size, layer.stride, layer.padding)
    )
    window = zip(strides, names, "ab", paddings, strict=False)
    place = ", ".join(f"{stride}*{name} + {tap} - {before}" for stride, name, tap, before in window)
    own = ", ".join("ab"[: layer.rank])
    sizes = ", ".join(map(str, case.output.dimensions))
    outer = ", ".join(names)
    text = f"R[n, o, {outer} : {batch_size}, {sizes}] = +(I[n, i, {place}] * W[o, i, {own}])"
    shape = (case.output.units, case.input.units, *taps)
    return function(text).program(I=(batch_size, *case.input.dimensions), W=shape)


def ideas(seed: str, case: shapes.Case) -> dict[str, str]:
    """The schedules of a seed, by what each adds."""
    layer: Any = case.layer
    width, units = case.output.width, case.input.units
    taps = " ".join("ab"[: layer.rank])
    columns = f"tile x {min(width, SIDE_BY_SIDE)}x1x1"
    pairs = f"tile x {max(1, min(width // 2, SIDE_BY_SIDE))}x1x2"
    if seed == "000":
        found = {"a value an item": columns, "filters in registers": f"{columns}; unroll {taps}"}
        for lanes in (2, 4):
            vector = f"tile x {max(1, min(width // lanes, SIDE_BY_SIDE))}x1x{lanes}; vector x {lanes}"
            found[f"{lanes} columns as a vector"] = f"{vector}; unroll {taps}"
        block = f"tile o 1x1x16; vector o 16; pack W; unroll {taps}"
        return found | {"16 units": f"{columns}; {block}", "16 units, 2 columns": f"{pairs}; {block}"}
    if seed == "004":
        block = f"tile o 1x1x4; vector o 4; pack W; unroll {taps}"
        outer = {"4 units": f"{columns}; {block}", "4 units, 2 columns": f"{pairs}; {block}"}
        return {"a value an item": columns, **outer}
    tile = f"tile o {min(case.output.units, SIDE_BY_SIDE)}x1x1; tile x 1x1x{min(width, 8)}; unroll {taps}"
    parts = [units // channels for channels in (8, 16, 32, 64, 128, 256) if units % channels == 0]
    return {f"{units // count} units an item": f"{tile}; split i {count}" for count in parts if count > 1} | {
        f"{units} units an item": tile
    }


def seconds(made: Compiled, repeats: int) -> float:
    """The least time of one launch of all, of bursts of 5."""
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        for _ in range(5):
            made.launch()
        made.device.finish()
        times.append((time.perf_counter() - start) / 5)
    return min(times[1:])


def report(device: Device, roof: Roofline, seed: str, case: shapes.Case, options: argparse.Namespace) -> None:
    """Prints a table of a case."""
    work = case.work("forward", options.batch_size)
    floor, limit = roof.floor(work.flops, work.bytes)
    print(f"\nseed {seed}, {case}: {work.flops / 1e6:.4g} MFLOP, {work.bytes / 1e6:.4g} MB", end="")
    print(f", in theory {floor * 1e6:.1f} us ({limit})")
    text = program(case, options.batch_size)
    rng = np.random.default_rng(0)
    arrays = {tensor.name: rng.standard_normal(tensor.shape) for tensor in text.inputs}
    for name, schedule in [*ideas(seed, case).items(), ("chosen", "")]:
        forced = Schedule.parse(schedule)
        try:
            made = compiled(device, text, (lambda _, forced=forced: forced) if schedule else None)
        except BlobnetError as error:
            print(f"  {name:26} {str(error)[:120]}")
            continue
        made.write(arrays)
        took = seconds(made, options.repeats)
        rates = f"{work.flops / took / 1e9:8.1f} GFLOPS {work.bytes / took / 1e9:8.1f} GB/s"
        print(f"  {name:26} {took * 1e6:10.1f} us {rates} {floor / took:6.1%} of theory", flush=True)
        if options.show:
            print("".join(f"      {step.schedule}\n" for step in made.lowered.steps), end="")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--seed", nargs="+", choices=sorted(CASES), default=sorted(CASES))
    parser.add_argument("--device")
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--show", action="store_true", help="print schedules")
    options = parser.parse_args()
    device = Device(options.device)
    roof = measure(device)
    print(f"{device.info}: {roof.flops / 1e9:.0f} GFLOPS, {roof.bandwidth / 1e9:.1f} GB/s")
    for seed in options.seed:
        for case in [case for name in options.cases or CASES[seed] for case in shapes.named(name)]:
            report(device, roof, seed, case, options)


if __name__ == "__main__":
    main()
