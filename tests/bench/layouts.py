"""Blobs that lie otherwise, against those of a plain plan, in turns: aligned rows and planes, halves between layers.

    python tests/bench/layouts.py lenet5 fashion_cnn resnet18:64 64x56x56:128k3p1 --align 4 16 --device Intel
    python tests/bench/layouts.py resnet50:224 --storage float16 --batch-size 64 --device NVIDIA

Subjects are networks, with the size of their images behind a colon, and shapes or suites that ``blobnet bench conv``
takes. For each phase a line: the milliseconds of a plain plan, and the median of how many times faster each of the
others was, round by round. A second process finds programs in caches: the first one may be run before the machine is
quiet.
"""

from __future__ import annotations

import argparse
import re
import statistics
from collections.abc import Callable, Iterator
from functools import partial

from single_layers import CaseBench, geometric_mean

from blobnet.bench.network import NetworkBench, burst
from blobnet.bench.timing import burst_length
from blobnet.command_line.model_argument import find_model
from blobnet.device.device import Device
from blobnet.examination.layer_cases import Case, named
from blobnet.memory.blob import FLOAT32, Padding, storage_type

#: Takes a length, and returns the seconds of one of so many repeats.
Run = Callable[[int], float]


def devices(options: argparse.Namespace) -> dict[str, Device]:
    """A device for every way to lie, by what is special; the plain one is the first."""
    plain = Device(options.device).at(options.precision)
    found = {"plain": plain}
    for align in options.align:
        found[f"align {align}"] = plain.at(options.precision)
        found[f"align {align}"].padding = Padding(align=align)
    for storage in options.storage:
        found[storage] = plain.at(options.precision, storage_type(storage).name)
    return found


def network_runs(subject: str, device: Device, batch_size: int) -> Iterator[tuple[str, Run]]:
    """The steps of a network. What training keeps is always float32."""
    name, _, size = subject.partition(":")
    shape = (3, int(size), int(size)) if size else (1, 28, 28)
    bench = NetworkBench(device, find_model(name).build(shape, 1000 if size == "224" else 10, (), 0), batch_size)
    if device.storage == FLOAT32:
        yield "training", partial(burst, bench.train, device.queue.finish)
    yield "inference", partial(burst, bench.predict, device.queue.finish)


def case_runs(case: Case, device: Device, batch_size: int) -> Iterator[tuple[str, Run]]:
    """The phases of a layer, planned for training."""
    bench = CaseBench(device, case, batch_size)
    for direction in bench.calls:
        yield direction, partial(bench.burst, direction)


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("subjects", nargs="+")
    parser.add_argument("--align", type=int, nargs="*", default=[])
    parser.add_argument("--storage", nargs="*", default=[])
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--device")
    options = parser.parse_args()
    known = devices(options)
    print(f"{known['plain'].info}, batch {options.batch_size}")
    ratios: dict[str, list[float]] = {}
    for subject in options.subjects:
        is_network = re.fullmatch(r"[a-z]\w*(:\d+)?", subject) and subject != "anchors"
        items: list[tuple[str, Callable[[Device], Iterator[tuple[str, Run]]]]] = [
            (subject, partial(network_runs, subject, batch_size=options.batch_size))
        ]
        if not is_network:
            found = named(subject)
            items = [(str(case), partial(case_runs, case, batch_size=options.batch_size)) for case in found]
        for label, make in items:
            runs = {name: dict(make(device)) for name, device in known.items()}
            for phase, plain in runs["plain"].items():
                others = {name: own[phase] for name, own in runs.items() if phase in own and name != "plain"}
                length = burst_length(plain(1), known["plain"])
                rounds = [
                    {name: run(length) for name, run in {"plain": plain, **others}.items()}
                    for _ in range(options.repeats + 1)
                ][1:]
                middle = statistics.median(times["plain"] for times in rounds)
                texts = []
                for name in others:
                    ratio = statistics.median(times["plain"] / times[name] for times in rounds)
                    ratios.setdefault(f"{name}, {phase}", []).append(ratio)
                    texts.append(f"{name} {ratio:.2f}")
                print(f"{label} {phase}: {middle * 1e3:.3f} ms; {', '.join(texts)}", flush=True)
    for name, values in ratios.items():
        print(f"{name}: {geometric_mean(values):.3f} over {len(values)}")


if __name__ == "__main__":
    main()
