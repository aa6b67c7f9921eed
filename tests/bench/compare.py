"""The time of a layer's phase in a revision against the working tree, burst by burst in turn.

Machines that others share change their speed within seconds, so that runs one after another tell little. Here two
processes, one for each tree, take turns burst by burst. What memory a process gets makes it faster or slower as long as
it lives, by 10 % where planes are read at a stride: so half of the bursts are those of two new processes, in the other
order. What is printed is the geometric mean of the two medians of the ratios of neighbours.

    python tests/bench/compare.py REVISION CASE... [--phase forward] [--batch-size 8] [--device NAME] [--repeats 15]

A case is as for `blobnet bench conv`: a shape, or a suite (anchors).
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

# NOTE: what workers import must be in every revision.
PHASES = ("forward", "backward data", "backward weights")
FOLDERS = ("blobnet", "kernels", "models", "datasets")
ROOT = Path(__file__).resolve().parents[2]


def work(arguments: argparse.Namespace) -> None:
    """In a process of one tree: for each case its kernels, then for each line of input, until an empty one, a number.

    Of a burst's length the seconds, of 0 the length that a burst should have.
    """
    from blobnet.bench import timing
    from blobnet.device.device import Device
    from blobnet.examination import layer_cases

    if not hasattr(timing, "CaseBench"):  # Revisions before 2026-11-27 have it there.
        timing = importlib.import_module("single_layers")
    device = Device(arguments.device)
    for case in arguments.cases:
        bench = timing.CaseBench(device, layer_cases.parse(case), arguments.batch_size)
        print(*(call.kernel for call in bench.calls[arguments.phase]), flush=True)
        while line := sys.stdin.readline().strip():
            length = int(line)
            seconds = bench.burst(arguments.phase, max(1, length))
            print(seconds if length else timing.burst_length(seconds, device), flush=True)


def unpack(revision: str, into: Path) -> None:
    """The package of a revision, or of the working tree if it is empty, as it is installed."""
    if revision:
        command = ["git", "archive", "--format=zip", revision, *FOLDERS]
        archive = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE)
        with zipfile.ZipFile(io.BytesIO(archive.stdout)) as files:
            files.extractall(into)
    else:
        for folder in FOLDERS:
            shutil.copytree(ROOT / folder, into / folder)
    for folder in FOLDERS[1:]:
        (into / folder).rename(into / "blobnet" / folder)


class Worker:
    """A process that measures with one tree."""

    def __init__(self, tree: Path, arguments: argparse.Namespace) -> None:
        command = [sys.executable, "-W", "ignore", __file__, "--worker", arguments.revision, *arguments.cases]
        command += ["--phase", arguments.phase, "--batch-size", str(arguments.batch_size)]
        command += ["--device", arguments.device] if arguments.device else []
        environment = {**os.environ, "PYTHONPATH": str(tree)}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def answer(self, number: int | str | None = None) -> str:
        """What it prints, when it is told a number if there is one."""
        if number is not None:
            self.tell(number)
        found = self._pipe(self._process.stdout).readline()
        if not found:
            sys.exit("a worker ended; what it said stands above")
        return found.strip()

    def tell(self, number: int | str) -> None:
        """Writes a line to it."""
        pipe = self._pipe(self._process.stdin)
        pipe.write(f"{number}\n")
        pipe.flush()

    def end(self) -> None:
        """Waits until it has ended; it has no more cases."""
        self._pipe(self._process.stdin).close()
        self._process.wait()

    @staticmethod
    def _pipe(pipe: IO[str] | None) -> IO[str]:
        assert pipe is not None
        return pipe


def measured(
    trees: Sequence[Path], arguments: argparse.Namespace, first: int
) -> Iterator[tuple[str, tuple[list[str], list[tuple[float, float]]]]]:
    """For each case the kernels in both trees, and pairs of seconds; the process of tree ``first`` comes first."""
    order = (first, 1 - first)
    workers = {number: Worker(trees[number], arguments) for number in order}
    for case in arguments.cases:
        kernels = {number: workers[number].answer() for number in order}
        length = int(workers[first].answer(0))
        bursts = [{n: float(workers[n].answer(length)) for n in order} for _ in range(-(-arguments.repeats // 2))]
        yield case, ([kernels[0], kernels[1]], [(burst[0], burst[1]) for burst in bursts])
        for worker in workers.values():
            worker.tell("")
    for worker in workers.values():
        worker.end()


def main() -> None:
    """Prints a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision", help="what git calls it")
    parser.add_argument("cases", nargs="+", metavar="CASE", help="as for blobnet bench conv")
    parser.add_argument("--phase", default=PHASES[0], choices=PHASES)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--device")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments)
        return
    from single_layers import geometric_mean

    from blobnet.examination import layer_cases

    arguments.cases = [str(case) for name in arguments.cases for case in layer_cases.named(name)]
    with tempfile.TemporaryDirectory() as folder:
        trees = [Path(folder) / name for name in ("old", "new")]
        for tree, revision in zip(trees, (arguments.revision, ""), strict=True):
            tree.mkdir()
            unpack(revision, tree)
        rounds = [dict(measured(trees, arguments, first)) for first in (0, 1)]
    ratios = []
    for case in arguments.cases:
        kernels, _ = rounds[0][case]
        every = [found[case][1] for found in rounds]
        before, after = (1e3 * statistics.median(times) for times in zip(*(every[0] + every[1]), strict=True))
        ratio = geometric_mean([statistics.median(first / second for first, second in pairs) for pairs in every])
        ratios.append(ratio)
        changed = "" if kernels[0] == kernels[1] else f" (before: {kernels[0]})"
        times = f"{before:.4g} to {after:.4g} ms, {ratio:.3f} times as fast"
        print(f"{case} {arguments.phase}: {times}; {kernels[1]}{changed}")
    print(f"{arguments.phase}: geometric mean of {len(ratios)} {geometric_mean(ratios):.3f}")


if __name__ == "__main__":
    main()
