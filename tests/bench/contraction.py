"""Compiled contractions against the hand-written convolutions, phase by phase, burst by burst in turn.

    python tests/bench/contraction.py CASE... [--phase forward] [--device NAME] [--batch-size 8] [--repeats 5] [--show]

A case is as for `blobnet bench conv`: a suite (anchors) or a shape (64x56x56:64k3p1). A ratio above 1 means that the
compiled kernels are faster. `first` is the time from the contraction's text to its kernels being ready.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from single_layers import CaseBench, geometric_mean

from blobnet.bench.timing import alternate, burst_length, values_like
from blobnet.contraction import function
from blobnet.contraction.derivatives import differentiate
from blobnet.contraction.form import Program
from blobnet.contraction.schedule import Schedule
from blobnet.device.device import Device
from blobnet.errors import BlobnetError
from blobnet.examination import layer_cases
from blobnet.execution.contractions import Compiled, compiled
from blobnet.implementations.base import BACKWARD_DATA, BACKWARD_WEIGHTS, FORWARD

PHASES = (FORWARD, BACKWARD_DATA, BACKWARD_WEIGHTS)


def pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)


def program(case: layer_cases.Case, batch_size: int, phase: str) -> Program:
    """One phase of a convolution as a contraction: plain, or depthwise."""
    layer: Any = case.layer
    taps, stride, padding = pair(layer.kernel_size), pair(layer.stride), pair(layer.padding)
    group, unit = ("", "i") if layer.groups == 1 else ("o, ", "o")
    if layer.groups > 1 and not layer.groups == case.input.units == case.output.units:
        raise SystemExit(f"{case}: groups of several units are not written here")
    sizes = f"N, O, {case.output.height}, {case.output.width}"
    place = f"{stride[0]}*y + a - {padding[0]}, {stride[1]}*x + b - {padding[1]}"
    weight = "F[O, A, B]" if group else "F[O, C, A, B]"
    element = "F[o, a, b]" if group else "F[o, i, a, b]"
    inputs = f"I[N, {'O' if group else 'C'}, H, W], {weight}"
    f = function(f"function ({inputs}) -> (R) {{ R[n, o, y, x : {sizes}] = +(I[n, {unit}, {place}] * {element}); }}")
    units = () if group else (case.input.units,)
    forward = f.program(
        I=(batch_size, case.input.units, case.input.height, case.input.width), F=(case.output.units, *units, *taps)
    )
    return forward if phase == FORWARD else differentiate(forward, ["I" if phase == BACKWARD_DATA else "F"])


class Rival:
    """The compiled kernels of a program, with several sets of buffers that take turns."""

    def __init__(self, device: Device, text: Program, sets: int, forced: str | None) -> None:
        def choose(table: Any) -> Schedule:
            return Schedule.parse(forced or "")

        start = time.perf_counter()
        first = compiled(device, text, choose if forced else None)
        self.first = time.perf_counter() - start
        self.device = device
        self.sets: list[Compiled] = [first] + [Compiled(device, first.lowered) for _ in range(sets - 1)]
        for item in self.sets:
            item.write({tensor.name: values_like(tensor.elements).reshape(tensor.shape) for tensor in text.inputs})

    def burst(self, length: int) -> float:
        """Seconds of one of so many repeats."""
        self.sets[-1].launch()
        self.device.queue.finish()
        start = time.perf_counter()
        for repeat in range(length):
            self.sets[repeat % len(self.sets)].launch()
        self.device.queue.finish()
        return (time.perf_counter() - start) / length


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="+")
    parser.add_argument("--phase", choices=PHASES)
    parser.add_argument("--device")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--sets", type=int, default=3)
    parser.add_argument("--schedule", help="instead of the one that is chosen")
    parser.add_argument("--show", action="store_true", help="print schedules")
    options = parser.parse_args()
    device = Device(options.device)
    ratios: dict[str, list[float]] = {}
    for case in [case for name in options.cases for case in layer_cases.named(name)]:
        try:
            hand = CaseBench(device, case, options.batch_size)
        except BlobnetError as error:
            print(f"{case!s:28} FAILED {str(error)[:300]}", flush=True)
            continue
        for phase in PHASES if options.phase is None else (options.phase,):
            try:
                mine = Rival(
                    device, program(case, options.batch_size, phase), min(hand.sets, options.sets), options.schedule
                )
                length = burst_length(mine.burst(1), device)
                ours, theirs = alternate(
                    lambda mine=mine, length=length: mine.burst(length),
                    lambda hand=hand, phase=phase, length=length: hand.burst(phase, length),
                    options.repeats,
                )
            except BlobnetError as error:
                print(f"{case!s:28} {phase:17} FAILED {str(error)[:300]}", flush=True)
                continue
            ratio = statistics.median(b / a for a, b in zip(ours, theirs, strict=True))
            ratios.setdefault(phase, []).append(ratio)
            rate = case.work(phase, options.batch_size).flops / 1e9
            print(
                f"{case!s:28} {phase:17} {min(ours) * 1e3:9.3f} ms {rate / min(ours):7.0f} GFLOPS; hand-written "
                f"{min(theirs) * 1e3:9.3f} ms {rate / min(theirs):7.0f}; ratio {ratio:5.2f}; first {mine.first:.2f} s",
                flush=True,
            )
            if options.show:
                for step in mine.sets[0].lowered.steps:
                    print(f"    {step.schedule}", flush=True)
    for phase, values in ratios.items():
        print(f"{phase}: {len(values)} cases, geometric mean {geometric_mean(values):.3f}, least {min(values):.2f}")


if __name__ == "__main__":
    main()
