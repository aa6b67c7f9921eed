"""The tests on every driver there is, and how far apart drivers are.

    python tests/bench/drivers.py test [--device DEVICE ...] [--sample] [--kernels TEXT] [-- PYTEST ARGUMENTS]

runs the whole suite on each device that OpenCL lists, or on those named, in turn, and all kernels in Oclgrind if it is
installed (tests/oclgrind_smoke.py). Behind what they say comes a table for docs/drivers.md; the status is 1 if anything
failed. With --sample it is a sample of each, Oclgrind's with --quick; with --kernels of Oclgrind's those configurations
alone whose text contains this; what stands behind -- goes to pytest:

    python tests/bench/drivers.py test --sample --kernels loss -- -n 1 tests/layers

How far apart drivers are after the same steps of lenet5, on the same data, from the same weights:

    python tests/bench/drivers.py write intel.npz --device Intel
    python tests/bench/drivers.py write pocl.npz --device PoCL
    python tests/bench/drivers.py compare intel.npz pocl.npz [...]

The data are the real digits, each enlarged three times to lenet5's 28x28; 100 steps of 64 samples with SGD (rate
0.02, momentum 0.9) and, anew, with Adam (rate 0.001), of its usual epsilon and of another. A file holds the weights and
losses after 1, 10 and 100 steps. For each pair of files and each of these it prints the largest difference of a weight,
by the largest weight of its parameter, with the parameter's name, and that of the losses, by the loss. Files of one
device must agree in every bit.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import numpy.typing as npt

from blobnet import datasets, models
from blobnet.device.device import Device
from blobnet.device.discovery import DeviceInfo, choose, devices
from blobnet.losses import CrossEntropy
from blobnet.optimizers import SGD, Adam, Optimizer
from blobnet.training.settings import TrainingSettings
from blobnet.training.step_plan import StepContext
from blobnet.training.training_step import TrainingStep

ROOT = Path(__file__).resolve().parents[2]
BATCH, STEPS = 64, (1, 10, 100)
OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": SGD(0.02, momentum=0.9),
    "adam": Adam(0.001),
    "adam, epsilon 1e-6": Adam(0.001, epsilon=1e-6),
}
_LOSS = "the loss"


def trained(device: Device, optimizer: Optimizer) -> dict[str, npt.NDArray[Any]]:
    """``steps/parameter`` to weights, and ``steps/the loss``."""
    split = datasets.load("digits").train
    x = np.pad(np.kron(np.asarray(split.x), np.ones((3, 3), np.uint8)), ((0, 0), (0, 0), (2, 2), (2, 2)))
    y = np.asarray(split.y, np.int32)
    model = models.lenet5((1, 28, 28), 10)
    model.set_normalization([x.mean()], [x.std()])
    settings = TrainingSettings(loss=CrossEntropy(), optimizer=optimizer, batch_size=BATCH)
    step = TrainingStep(device, model.graph, model.weights, settings, StepContext(sample_type="uint8"))
    order = np.random.default_rng(0).permutation(np.arange(BATCH * max(STEPS)) % len(x))
    found: dict[str, npt.NDArray[Any]] = {}
    for number, rows in enumerate(np.split(order, max(STEPS)), 1):
        step.reset_totals()
        step.compute_gradients(step.load_batch(x[rows], y[rows]))
        step.update(optimizer.schedule.value(number - 1, max(STEPS), 1))
        if number in STEPS:
            found |= {f"{number}/{name}": values for name, values in step.parameters.read().items()}
            found[f"{number}/{_LOSS}"] = step.totals()[:1] / BATCH
    return found


def furthest(one: Mapping[str, Any], other: Mapping[str, Any], start: str) -> tuple[float, str]:
    """The largest difference of a weight by the largest of its parameter, and which parameter that is."""
    names = [name for name in one if name.startswith(start) and not name.endswith(_LOSS)]
    found = [(np.abs(one[name] - other[name]).max() / np.abs(one[name]).max(), name) for name in names]
    return max(found)


def compare(paths: list[Path]) -> None:
    """Prints a row for each pair of files."""
    files = {path.stem: np.load(path) for path in paths}
    for pair in itertools.combinations(files, 2):
        one, other = (files[name] for name in pair)
        for start in (f"{name}/{steps}/" for name in OPTIMIZERS for steps in STEPS):
            largest, name = furthest(one, other, start)
            losses = [float(each[start + _LOSS][0]) for each in (one, other)]
            difference = abs(losses[0] - losses[1]) / losses[0]
            at = f" at {name.removeprefix(start)}" if largest else ""
            print(f"{' / '.join(pair)} {start} weights {largest:.1e}{at}, loss {losses[0]:.6f} {difference:.1e}")


# -- the tests ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What came of the tests on a driver; ``error`` says why they did not end, where they did not."""

    driver: str
    device: str
    tests: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    error: str = ""
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    @property
    def is_well(self) -> bool:
        return not self.failed and not self.error

    @property
    def cells(self) -> tuple[str, ...]:
        """Of its row in the table."""
        counts = (self.error, "", "") if self.error else [f"{n:,}" for n in (self.passed, self.failed, self.skipped)]
        return self.driver, self.device, self.tests, *counts, f"{self.seconds:,.0f}", f"{self.cpu_seconds:,.0f}"


def counted(report: Path) -> dict[str, int]:
    """What pytest's JUnit file says of passed, failed and skipped tests."""
    suites = [*ElementTree.parse(report).getroot().iter("testsuite")]
    every, failures, errors, skipped = (
        sum(int(suite.get(name, 0)) for suite in suites) for name in ("tests", "failures", "errors", "skipped")
    )
    return {"passed": every - failures - errors - skipped, "failed": failures + errors, "skipped": skipped}


def pytest_counts(arguments: Sequence[str], environment: Mapping[str, str]) -> dict[str, Any]:
    """Runs pytest; what it counts, or why it did not end."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *arguments]
        status = subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}).returncode
        if status not in (0, 1) or not report.exists():
            return {"error": f"pytest ended with status {status}"}
        return counted(report)


def oclgrind_counts(arguments: Sequence[str]) -> dict[str, Any]:
    """Runs the kernels in Oclgrind: configurations without a finding, and findings."""
    command = [sys.executable, "-m", "tests.oclgrind_smoke", *arguments]
    lines = list[str]()
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    return counted_findings(lines, process.returncode)


def counted_findings(lines: Sequence[str], status: int) -> dict[str, Any]:
    """What Oclgrind's run has printed, as counts; an error if it did not get to the end."""
    text = "".join(lines)
    findings = re.search(r"^(\d+) findings$", text, re.MULTILINE)
    if findings is None:
        last = lines[-1].strip() if lines else "it printed nothing"
        return {"error": last if status == 0 else f"ended with status {status}: {last}"}
    configurations = sum(map(int, re.findall(r"^(\d+) configurations$", text, re.MULTILINE)))
    if not configurations:
        return {"error": "no configuration was run"}
    wrong = len({*re.findall(r"^\S.*\n(?=    )", text, re.MULTILINE)})
    return {"passed": configurations - wrong, "failed": int(findings[1])}


def oclgrind_version() -> str:
    """Of Oclgrind, if it is there."""
    try:
        said = subprocess.run(["oclgrind", "--version"], capture_output=True, text=True).stdout
    except OSError:
        return ""
    found = re.search(r"[\d.]+", said)
    return found[0] if found else ""


def outcomes(infos: Sequence[DeviceInfo], sample: bool, kernels: str, arguments: Sequence[str]) -> Iterator[Outcome]:
    """The tests on each device, then Oclgrind's."""
    own = [*["--sample"] * sample, *arguments]
    runs = [
        (
            f"{info.platform} {info.driver}",
            info.name,
            " ".join(own) or "all",
            pytest_counts,
            (own, {"BLOBNET_DEVICE": info.address}),
        )
        for info in infos
    ]
    version, of_grind = oclgrind_version(), [*["--quick"] * sample, *(["--only", kernels] if kernels else [])]
    if version:
        runs += [(f"Oclgrind {version}", "", " ".join(["every kernel", *of_grind]), oclgrind_counts, (of_grind,))]
    for driver, device, tests, run, given in runs:
        print(f"-- {driver} {device}", flush=True)
        begin, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        found = run(*given)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        yield Outcome(driver, device, tests, **found, seconds=time.monotonic() - begin, cpu_seconds=used)


def table(rows: Sequence[Outcome]) -> str:
    """As it stands in docs/drivers.md."""
    header = ("driver", "device", "tests", "passed", "failed", "skipped", "seconds", "CPU seconds")
    every = [header, ("---",) * len(header), *(row.cells for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in every)


def main() -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tasks = parser.add_subparsers(dest="task", required=True)
    test = tasks.add_parser("test")
    test.add_argument("--device", action="append")
    test.add_argument("--sample", action="store_true")
    test.add_argument("--kernels", default="")
    test.add_argument("arguments", nargs="*")
    write = tasks.add_parser("write")
    write.add_argument("file", type=Path)
    write.add_argument("--device")
    tasks.add_parser("compare").add_argument("files", nargs="+", type=Path)
    options = parser.parse_args()
    if options.task == "test":
        found = [info for info in devices() if info.kind != "other"]
        infos = [choose(name) for name in options.device] if options.device else found
        rows = list(outcomes(infos, options.sample, options.kernels, options.arguments))
        print(table(rows))
        return 0 if all(row.is_well for row in rows) else 1
    if options.task == "compare":
        compare(options.files)
        return 0
    device = Device(options.device)
    print(device.info)
    found = {kind: trained(device, optimizer) for kind, optimizer in OPTIMIZERS.items()}
    arrays: dict[str, Any] = {f"{kind}/{name}": values for kind, own in found.items() for name, values in own.items()}
    np.savez(options.file, **arrays)
    return 0


if __name__ == "__main__":
    sys.exit(main())
