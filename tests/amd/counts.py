"""What the launches of a training step do on an RDNA 3 GPU, counted in the interpreter, and the least clocks they take.

    python -m tests.amd.counts lenet5 --shape 1 28 28 --batch-size 64
    python -m tests.amd.counts resnet50 --shape 3 224 224 --batch-size 8 --sampled 50

The plan and the kernels are those for a Radeon RX 7600 (tests/amd/device.py). With --sampled 50 one group of fifty
runs, chosen at random, and counts are multiplied: what is computed is wrong then, but loops and addresses do not depend
on it. A line for each launch:

    instructions   of all waves, without those that only wait; in % of them:
      mad          what multiplies and adds in fp32
      vector       other arithmetic of lanes: addresses, comparisons, moves
      scalar       arithmetic that waves do once, loads of scalars, branches
      local        loads and stores of local memory
      memory       loads and stores of buffers
    bytes          that lanes load from buffers and store there
    used           what these are of the cache lines that each instruction touches; over 100 % where lanes share bytes
    conflicts      the part of the local memory's clocks that goes to words in the same bank
    clocks         thousands that the launch takes at least: those of the slowest of the GPU's parts
    bound          which one that is: vector (arithmetic), scalar, local, cache (the first one), or memory

A part's clocks, of a work-group processor: four SIMDs issue a vector and a scalar instruction each, two at once if they
are a pair, and one in four clocks that multiplies integers of 32 bits or is a reciprocal, root, exponential or
logarithm; each of the two halves of local memory serves 32 banks, and each of two caches reads a line. Groups share the
processors evenly: the launch takes as long as those of a processor that has most of them. Memory gives each byte of
the launch's blobs and arrays once. What waits for what is not known here, so nothing that is said is speed.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from blobnet.hardware.device_model import DeviceModel
from blobnet.launch.kernel_call import KernelCall
from blobnet.support.tables import Table
from tests.amd.device import MachineDevice
from tests.amd.instructions import MEMORY
from tests.amd.launch_by_launch import PHASES, executors
from tests.amd.launching import Counts

KINDS = ("mad", "vector", "scalar", "local", "memory")
_MULTIPLY_ADDS = re.compile(r"v_(fma|fmac|fmaak|fmamk|fma_mix)_f32")
#: What a SIMD takes so many clocks for: AMD, RDNA performance guide.
_SLOW, _SLOW_CLOCKS = re.compile(r"v_(mul_(lo|hi)_[iu]32|mad_[iu]64_[iu]32|(rcp|rcp_iflag|rsq|sqrt|exp|log)_f32)"), 4
#: Of a work-group processor: SIMDs, and the halves that local memory and caches come in.
_SIMDS, _HALVES = 4, 2
#: Bytes that memory gives in a clock: 288 GB/s at 2.25 GHz, as AMD says of the Radeon RX 7600.
_MEMORY_BYTES, _CLOCK = 128, 2.25e9


@dataclass(frozen=True)
class Cost:
    """What a launch costs, or several.

    Attributes:
        groups: of work-items.
        kinds: executed instructions of each of KINDS.
        traffic: what memory instructions cost (machine.Traffic).
        least: clocks, of each launch those of its slowest part.
        bound: that part; "" of several launches.
    """

    groups: int
    kinds: Counter[str]
    traffic: Counter[str]
    least: float
    bound: str = ""

    def __add__(self, other: Cost) -> Cost:
        kinds, traffic = self.kinds + other.kinds, self.traffic + other.traffic
        return Cost(self.groups + other.groups, kinds, traffic, self.least + other.least)


def kind_of(name: str) -> str:
    """Which of KINDS an instruction is."""
    if name in MEMORY:
        return "local" if MEMORY[name].space == "ds" else "memory"
    return "scalar" if name.startswith("s_") else "mad" if _MULTIPLY_ADDS.fullmatch(name) else "vector"


def cost(counts: Counts, memory_bytes: int, model: DeviceModel) -> Cost:
    """What a launch costs that did what is counted, and reads and writes so many bytes of memory at least."""
    kinds: Counter[str] = Counter()
    for name, count in counts.instructions.items():
        kinds[kind_of(name)] += count
    slow = sum(count for name, count in counts.instructions.items() if _SLOW.fullmatch(name))
    of_all = {
        "vector": (kinds["mad"] + kinds["vector"] - counts.pairs + (_SLOW_CLOCKS - 1) * slow) / _SIMDS,
        "scalar": kinds["scalar"] / _SIMDS,
        "local": counts.traffic["local_clocks"] / _HALVES,
        "cache": counts.traffic["lines"] / _HALVES,
    }
    share = -(-counts.groups // model.compute_units) / counts.groups
    clocks = {part: value * share for part, value in of_all.items()} | {"memory": memory_bytes / _MEMORY_BYTES}
    bound = max(clocks, key=lambda part: clocks[part])
    return Cost(counts.groups, kinds, Counter(counts.traffic), clocks[bound], bound)


def costs(name: str, shape: tuple[int, ...], batch_size: int, sampled: int) -> Iterator[tuple[KernelCall, Cost]]:
    """The launches of a training step in order."""
    device = MachineDevice()
    device.counts_traffic, device.sampled = True, sampled
    (executor,) = executors(name, shape, batch_size, (device,))
    for phase in PHASES:
        for launch in executor.bind(executor.plan.phase(phase), batch_size):
            launch.enqueue()
            assert device.counts
            yield launch.call, cost(device.counts, launch.call.bytes(batch_size), device.model)


def row(found: Cost, line: int) -> list[str]:
    """The numbers of a launch, or of several, with cache lines of so many bytes."""
    total, traffic = found.kinds.total(), found.traffic
    moved = traffic["loaded"] + traffic["stored"]
    parts = [(found.kinds[kind], total) for kind in KINDS]
    ends = [(moved, traffic["lines"] * line), (traffic["conflicts"], traffic["local_clocks"])]
    first, last = ([f"{100 * part / whole:.0f}" if whole else "-" for part, whole in some] for some in (parts, ends))
    return [f"{found.groups:,}", f"{total:,}", *first, f"{moved:,}", *last, f"{found.least / 1000:.1f}", found.bound]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--shape", type=int, nargs="+", default=(3, 16, 16))
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--sampled", type=int, default=1, help="one group of how many runs")
    arguments = parser.parse_args()
    shape, line = tuple(arguments.shape), MachineDevice().model.cache_line
    rows, total = [], Cost(0, Counter(), Counter(), 0)
    for call, found in costs(arguments.model, shape, arguments.batch_size, arguments.sampled):
        rows.append([call.kernel, call.label, *row(found, line)])
        total += found
    ends = ("bytes", "used", "conflicts", "clocks", "bound")
    header = ("kernel", "first use", "groups", "instructions", *KINDS, *ends)
    facts = {"least time": f"{1000 * total.least / _CLOCK:.3f} ms at {_CLOCK / 1e9} GHz"}
    print(Table(header, rows, "<<>>>>>>>>>>><", ["all", "", *row(total, line)], facts))


if __name__ == "__main__":
    main()
