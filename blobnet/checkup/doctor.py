"""``blobnet doctor``: whether blobnet computes rightly on the devices of this machine, and what it does without."""

from __future__ import annotations

import contextlib
import math
import platform
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import blobnet
from blobnet.checkup.chains import checks_of_chains
from blobnet.checkup.steps import checks_of_steps
from blobnet.device.discovery import DeviceInfo, choose, devices, no_platform_error, products_on
from blobnet.device.tuning import Tunings
from blobnet.errors import BlobnetError, FileError
from blobnet.examination import layer_cases
from blobnet.examination.checks import Check, Examinable, check_of_way, checks_of_implementations, checks_of_layers
from blobnet.examination.children import LIMIT, examine_all
from blobnet.examination.examination import OK, Finding
from blobnet.examination.verification import judge
from blobnet.launch.kernel_call import PRECISIONS, Tuning
from blobnet.launch.task import BrokenVariant

#: Random layers for each variant and direction, and tuned entries, in a quick check; and layers in a thorough one.
_LAYERS, _TUNED, _MORE_LAYERS = 2, 8, 5
_ROW = "{:<28} {:<21} {:>8} {:>7}  {:<14} {}"
_HEADER = _ROW.format("what", "variant", "error", "ms", "verdict", "kernel")
#: Characters of what is wrong that a line of the table has room for, and the lines that the report has of it.
_WIDTH, _NOTE_LINES = 92, 8


@dataclass(frozen=True)
class Row:
    """A check with what it has shown."""

    check: Examinable
    finding: Finding

    def __str__(self) -> str:
        finding = self.finding
        error = "" if finding.error is None else "NaN" if math.isinf(finding.error) else f"{finding.error:.1e}"
        ms = "" if finding.ms is None else f"{finding.ms:.3g}"
        row = _ROW.format(self.check.title, finding.way, error, ms, finding.verdict, finding.kernel).rstrip()
        return "\n".join([row, *self._note()])

    def _note(self) -> list[str]:
        """Return the note below a row: what is wrong."""
        if not self.finding.is_failure:
            return []
        lines = [part for line in self.finding.note.splitlines() for part in textwrap.wrap(line, _WIDTH)]
        cut = lines[:_NOTE_LINES] + ["..."] * (len(lines) > _NOTE_LINES)
        return [f"    {line}" for line in cut]

    def as_json(self) -> dict[str, Any]:
        """Plain data: the arguments of the check, and what it has shown."""
        return self.check.as_json() | {"family": self.check.family} | self.finding.as_json()


@dataclass
class Patient:
    """A device with what its checks have shown.

    Attributes:
        rows: in the order in which they came.
        denied: what the planner does without from now on.
        tuned: entries of the tuning cache, of which ``tuned_checked`` were checked.
        problem: why the list of what is denied could not be kept.
    """

    info: DeviceInfo
    rows: list[Row] = field(default_factory=list)
    denied: list[BrokenVariant] = field(default_factory=list)
    tuned: int = 0
    tuned_checked: int = 0
    problem: str = ""

    @property
    def failures(self) -> list[Row]:
        """The rows that failed."""
        return [row for row in self.rows if row.finding.is_failure]

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        info = self.info
        named = {name: getattr(info, name) for name in ("address", "name", "kind", "platform", "driver")}
        counts = {"tuned": self.tuned, "tuned_checked": self.tuned_checked, "problem": self.problem}
        return {
            **named,
            **counts,
            "denied": [str(fault) for fault in self.denied],
            "checks": [row.as_json() for row in self.rows],
        }


@dataclass
class Report:
    """The findings of the doctor; as text what ``blobnet doctor`` prints.

    Attributes:
        patients: the devices.
        is_thorough, seed: of the checks.
        seconds: that they took.
    """

    patients: list[Patient]
    is_thorough: bool
    seed: int
    seconds: float = 0.0

    @property
    def failures(self) -> list[Row]:
        """The rows that failed, of all devices."""
        return [row for patient in self.patients for row in patient.failures]

    @property
    def is_well(self) -> bool:
        """True if no row failed."""
        return not self.failures

    def as_json(self) -> dict[str, Any]:
        """Plain data, of which ``failed`` is the number of failures."""
        settings = {"thorough": self.is_thorough, "seed": self.seed, "seconds": round(self.seconds, 1)}
        return {
            **_surroundings(),
            **settings,
            "failed": len(self.failures),
            "devices": [patient.as_json() for patient in self.patients],
        }

    def __str__(self) -> str:
        parts = []
        for patient in self.patients:
            parts += [heading(patient.info), *map(str, patient.rows), ""]
        return "\n".join([*parts, self.summary()])

    def summary(self) -> str:
        """The conclusion and, if something is wrong, what to do and what to paste into a bug report."""
        rows = [row for patient in self.patients for row in patient.rows]
        where = f"{len(self.patients)} device{'s' * (len(self.patients) != 1)}"
        lines = []
        for patient in self.patients:
            if patient.tuned_checked < patient.tuned:
                checked = f"{patient.tuned_checked} of {patient.tuned} tuned entries checked"
                lines.append(f"{patient.info.address}: {checked}; --thorough checks all")
            if patient.problem:
                lines.append(f"{patient.info.address}: {patient.problem}")
        if self.is_well:
            return "\n".join([*lines, f"all right: {len(rows)} checks on {where} in {self.seconds:.0f} s"])
        lines.append(f"{len(self.failures)} of {len(rows)} checks failed, on {where} in {self.seconds:.0f} s")
        for patient in self.patients:
            if patient.denied:
                names = "; ".join(map(str, patient.denied))
                lines.append(f"{patient.info.address}: from now on plans do without {names}")
        hint = "to have them used again: a later 'blobnet doctor' in which they pass, or 'blobnet doctor --clear'"
        lines += [hint] if any(patient.denied for patient in self.patients) else []
        return "\n".join([*lines, "", "for a bug report:", "", self.block()])

    def block(self) -> str:
        """The text to paste into a bug report."""
        surroundings = ", ".join(f"{name} {value}" for name, value in _surroundings().items())
        options = [" --thorough"] * self.is_thorough + [f" --seed {self.seed}"] * bool(self.seed)
        lines = ["```", surroundings, f"$ blobnet doctor{''.join(options)}"]
        for patient in self.patients:
            right = sum(row.finding.verdict == OK for row in patient.rows)
            lines += [str(patient.info), f"{right} of {len(patient.rows)} checks are right"]
            for row in patient.failures:
                lines += [str(row), f"    {row.check}"]
        return "\n".join([*lines, "```"])


def heading(info: DeviceInfo) -> str:
    """The lines above a device's rows."""
    return f"{info}\n{_HEADER}"


def doctor(
    device: str | None = None,
    *,
    thorough: bool = False,
    seed: int = 0,
    limit: float = LIMIT,
    begin: Callable[[DeviceInfo, int], object] = lambda info, count: None,
    advance: Callable[[Row], object] = lambda row: None,
) -> Report:
    """Checks whether devices compute rightly, and notes what does not, which plans then do without.

    Each way to compute convolutions and dense layers, in each direction, other layers, and what was tuned runs on small
    random odd shapes in memory full of traps (blobnet/examination/measured.py), in processes that may crash or hang. So
    do chains of layers, and steps of a small network with each loss and optimizer, dropout, augmentation, weights of
    samples, and float16. Results are compared with float64 references, and with those of a second run.

    Args:
        device: as for ``--device``; None: all devices.
        thorough: more layers, and all that was tuned.
        seed: of shapes, memory and data.
        limit: seconds for a check.
        begin: told of each device, and how many checks it gets.
        advance: told of each finding.

    Raises:
        DeviceError: there is no device, or none of that name.
    """
    found = devices()
    if not found:
        raise no_platform_error()
    start = time.monotonic()
    report = Report([], thorough, seed)
    for info in [choose(device)] if device else found:
        patient = Patient(info)
        report.patients.append(patient)
        tunings = Tunings(info.identity, info.model.relatives)
        checks = _checks(info, tunings, patient, thorough, seed)
        begin(info, len(checks))
        for check, finding in examine_all(info.identity, checks, limit=limit):
            patient.rows.append(Row(check, finding))
            advance(patient.rows[-1])
        try:
            patient.denied = judge(tunings, [(row.check, row.finding) for row in patient.rows])
        except FileError as error:
            patient.problem = str(error)
    report.seconds = time.monotonic() - start
    return report


def _checks(info: DeviceInfo, tunings: Tunings, patient: Patient, thorough: bool, seed: int) -> list[Examinable]:
    """All for a device."""
    found: list[Examinable] = []
    model = info.model.measured(**tunings.speeds)
    for products in dict.fromkeys(products_on(model, precision) for precision in PRECISIONS):
        found += checks_of_implementations(Tuning(model, products), _MORE_LAYERS if thorough else _LAYERS, seed)
    found += checks_of_layers(thorough=thorough, seed=seed)
    found += checks_of_chains(thorough=thorough, seed=seed)
    found += checks_of_steps(seed)
    tuned = _checks_of_tuned(tunings)
    patient.tuned, patient.tuned_checked = len(tuned), len(tuned if thorough else tuned[:_TUNED])
    return found + tuned[: patient.tuned_checked]


def _checks_of_tuned(tunings: Tunings) -> list[Check]:
    """A check for each entry of the cache, those of different ways first."""
    first, others, seen = list[Check](), list[Check](), set[BrokenVariant]()
    for task, winner in tunings.winners.items():
        with contextlib.suppress(BlobnetError):  # A name that a later version gave, or an earlier one.
            case = layer_cases.parse(task.layer)
            check = check_of_way(case.layer, case.input, task, winner.candidate, "tuned")
            fault = BrokenVariant.of(task, winner.candidate)
            (others if fault in seen else first).append(check)
            seen.add(fault)
    return first + others


def _surroundings() -> dict[str, str]:
    """Return the facts of the machine that a driver's fault may depend on."""
    found = {"blobnet": blobnet.__version__, "Python": platform.python_version()}
    with contextlib.suppress(PackageNotFoundError):
        found["pyopencl"] = version("pyopencl")
    return {**found, "on": f"{platform.system()} {platform.release()} {platform.machine()}"}
