"""What a phase of a layer takes where launches follow one another, as in a network, and no host is waited for.

`blobnet bench` prints the device's events, which count the beginning and the end of each launch. Here a launch that
takes milliseconds goes first, so that the host is done before the device gets to the rest; what 300 repeats take longer
than 100 is divided by 200. Sets of buffers take turns, as in `blobnet bench`.

    python tests/bench/back_to_back.py CASE [--phase forward] [--batch-size 1] [--device NAME] [--with-events]
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
from single_layers import CaseBench

from blobnet.device.device import Device
from blobnet.examination import layer_cases
from blobnet.implementations.base import BACKWARD_DATA, BACKWARD_WEIGHTS, FORWARD

_SPIN = """
__kernel void spin(__global float *value, const int rounds)
{
    for (int i = 0; i < rounds; i++) {
        value[0] = value[0] * 1.0001f + 0.5f;
    }
}
"""
_SPIN_SECONDS = 0.02
_SHORT, _LONG, _REPEATS = 100, 300, 7


def main() -> None:
    """Prints medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", help="as for blobnet bench conv")
    parser.add_argument("--phase", default=FORWARD, choices=(FORWARD, BACKWARD_DATA, BACKWARD_WEIGHTS))
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--device")
    parser.add_argument("--with-events", action="store_true", help="ask for an event of each launch, as pyopencl does")
    arguments = parser.parse_args()

    device = Device(arguments.device)
    if arguments.with_events:
        device.queue._enqueue = None
    bench = CaseBench(device, layer_cases.parse(arguments.case), arguments.batch_size)
    spin = device.programs.kernel(_SPIN, "spin", "the launch that goes first")
    value = device.memory.allocate(4)

    def seconds(rounds: int, repeats: int) -> tuple[float, float]:
        """Wall seconds in all, and until the host was done."""
        spin.set_args(value, np.int32(rounds))
        device.queue.finish()
        start = time.perf_counter()
        device.queue.prepare(spin, (1,), (1,))()
        for index in range(repeats):
            bench.launch(arguments.phase, index)
        enqueued = time.perf_counter() - start
        device.queue.finish()
        return time.perf_counter() - start, enqueued

    seconds(1000, 1)
    spinning = int(1000 * _SPIN_SECONDS / seconds(1000, 0)[0])
    while (alone := seconds(spinning, 0)[0]) < _SPIN_SECONDS:
        spinning *= 2
    times, late = [], 0
    for _ in range(_REPEATS):
        short, (long, enqueued) = seconds(spinning, _SHORT)[0], seconds(spinning, _LONG)
        times.append((long - short) / (_LONG - _SHORT))
        late += enqueued > alone
    events = sum(bench.launches(arguments.phase, 4 * _REPEATS))
    print(f"{device.info}\n{arguments.case} {arguments.phase}, batch {arguments.batch_size}:", end=" ")
    print(f"{1e6 * statistics.median(times):.2f} us back to back, {1e6 * events:.2f} us by events")
    if late:
        print(f"The host was too slow in {late} of {_REPEATS} repeats: the first figure counts it.")


if __name__ == "__main__":
    main()
