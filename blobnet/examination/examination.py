"""Running a check, in the process that may die of it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from blobnet.device.device import Device
from blobnet.errors import BuildError, DeviceError, KernelError, PromiseError
from blobnet.examination.checks import ARRANGEMENTS, PHASE_OF, Check
from blobnet.examination.layer_references import Backward, Float64Array, Reference, reference_of
from blobnet.examination.measured import PHASES, Arrangement, Bench, Problem, bits, make_problem
from blobnet.launch.kernel_call import KernelCall, Tuning
from blobnet.launch.task import TunedChoices

#: Verdicts: all but the first two are failures, and all but NOT_HERE and FAILED say that something must not be used.
OK, NOT_HERE = "ok", "not here"
WRONG, STRAY_WRITE, NOT_REPEATABLE = "wrong", "stray write", "not repeatable"
NOT_BUILT, CRASHED, HUNG, FAILED = "not built", "crashed", "hung", "failed"

#: What results may differ by at most, over their root mean square, by the precision of the candidate. In fp32: sums of
#: another order, or products of another form. In tf32 a factor is off by at most 2^-11 of itself, a product by 2^-10.
#: The numbers here have a mean of 0, so errors of products add up as the products do, to 2^-10 of the root mean square;
#: hardly one of 1e8 results is off by more than six times that.
TOLERANCES = {"fp32": 5e-4, "tf32": 6 * 2.0**-10}
#: The same of layers that are no products, whose functions drivers may compute to some units in the last place.
_OTHER_TOLERANCE = 5e-5
#: Results smaller than this part of the others of a phase are 0 but for rounding.
_NOTHING = 1e-9
#: Runs that are timed, of which the fastest counts.
_TIMED = 5


@dataclass(frozen=True)
class Finding:
    """The result of a check.

    Attributes:
        verdict: one of those above.
        kernel: what was launched, the first of it.
        way: the variant with its tile.
        error: the worst of all numbers, over the root mean square of their array; None where none was computed.
        ms: of the launches of the check.
        note: what is wrong.
        is_certain: whether the check itself is to blame: one that crashes a process only after others may not be.
    """

    verdict: str
    kernel: str = ""
    way: str = ""
    error: float | None = None
    ms: float | None = None
    note: str = ""
    is_certain: bool = True

    @property
    def is_failure(self) -> bool:
        """True if something is wrong."""
        return self.verdict not in (OK, NOT_HERE)

    @property
    def condemns(self) -> bool:
        """True if the variant must not be used; FAILED may also mean that the device has no room."""
        return self.is_failure and self.verdict != FAILED and self.is_certain

    def as_json(self) -> dict[str, Any]:
        """Plain data for a report; numbers that are not finite as words."""
        values = asdict(self)
        error = values["error"]
        return values | {"error": error if error is None or math.isfinite(error) else str(error)}


def examine(device: Device, check: Check) -> Finding:
    """Run a check on a device and return its finding."""
    bench = _bench(device.at(check.precision), check)
    if bench is None:
        return Finding(NOT_HERE, way=str(check.way), note="there is no such way to compute this layer here")
    calls = [call for phase in _phases(check) for call in bench.calls.get(phase, ())]
    main = next((call for call in calls if call.way and call.way.variant == check.way.variant), calls[0])
    known = Finding(OK, _kernel_of(main, calls, check), str(main.way or ""))
    try:
        return _examine(bench, check, known)
    except PromiseError as error:
        return replace(known, verdict=STRAY_WRITE, note=str(error))
    except (BuildError, KernelError) as error:
        return replace(known, verdict=NOT_BUILT, note=str(error))
    except DeviceError as error:
        return replace(known, verdict=FAILED, note=str(error))


def compared(
    where: str,
    run: Callable[[bool], Mapping[str, np.ndarray[Any, Any]]],
    expected: Callable[[], Iterable[tuple[str, Float64Array]]],
    tolerance: float,
) -> Finding:
    """Compare two runs of a network, the first of them in debug mode, with expected arrays by name."""
    try:
        first, second = run(True), run(False)
    except PromiseError as error:
        return Finding(STRAY_WRITE, note=str(error))
    except (BuildError, KernelError) as error:
        return Finding(NOT_BUILT, note=str(error))
    except DeviceError as error:
        return Finding(FAILED, note=str(error))
    wanted = dict(expected())
    largest = max(map(_size, wanted.values()))
    worst, at = max((difference(first[name], values, largest), name) for name, values in wanted.items())
    if worst > tolerance:
        return Finding(WRONG, error=worst, note=f"{where}: {at} {too_far(worst, tolerance)}")
    for name, values in first.items():
        if np.any(bits(values) != bits(second[name])):
            return Finding(NOT_REPEATABLE, error=worst, note=f"{where}: {name} differs between two runs")
    return Finding(OK, error=worst)


def _kernel_of(main: KernelCall, calls: list[KernelCall], check: Check) -> str:
    """The kernel of the way that computes: what copies and packs stands before it."""
    own = [call.kernel for call in calls if call.way == main.way]
    computing = f"{check.family}/{check.direction.removesuffix('s').replace(' ', '_')}"
    return next((name for name in own if name.startswith(computing)), own[0])


def _phases(check: Check) -> tuple[str, ...]:
    return (PHASE_OF[check.direction],) if check.direction else PHASES


def _bench(device: Device, check: Check) -> Bench | None:
    """The layer in the first arrangement, of the check's and the others, in which there is such a way to compute it."""
    names = [check.arrangement, *(name for name in ARRANGEMENTS if name != check.arrangement)]
    shapes = [(check.odd,), check.shapes] if check.odd else [check.shapes]
    for own in shapes:
        problem = make_problem(check.layer, own, count=check.count, seed=check.seed)
        for name in names:
            bench = _bench_of_way(device, check, problem, Arrangement(name, **ARRANGEMENTS[name]))
            if bench is not None:
                return bench
    return None


def _bench_of_way(device: Device, check: Check, problem: Problem, arrangement: Arrangement) -> Bench | None:
    """Return a bench of the variant; None if the layer in this arrangement has no such variant."""
    if not check.direction:
        bench = Bench(device, problem, arrangement, as_planned=True)
        return bench if any(bench.calls.values()) else None
    variant = frozenset({check.way.variant})

    def bench_for(choices: TunedChoices) -> Bench:
        # What is known as broken may have been mended.
        tuning: Tuning = replace(device.tuning, choices=choices)
        return Bench(device, problem, arrangement, tuning, as_planned=True)

    bench = bench_for(TunedChoices(only=variant))
    tasks = problem.layer.alternatives(bench.site)
    task = next((task for task in tasks if task.direction == check.direction), None)
    ways = [item.way for item in tasks.get(task, ())] if task else []
    if task is None or check.way.variant not in {way.variant for way in ways}:
        return None
    if not check.way.tile:
        return bench
    return bench_for(TunedChoices(({task: check.way},), only=variant)) if check.way in ways else None


def _examine(bench: Bench, check: Check, known: Finding) -> Finding:
    """Two runs against the reference, the first of them with a look at all memory after every launch."""
    expected = _Expected(reference_of(check.layer, bench.problem.shapes), bench)
    worst, where = 0.0, ""
    memories = []
    for debug in (True, False):
        found: dict[str, Any] = {}
        bench.load()
        for phase in _phases(check):
            if phase == "backward parameters" or (check.direction and phase != "forward"):
                bench.load_deltas()
            bench.run(phase, debug=debug)
            results = list(expected.results(phase))
            largest = max((_size(wanted) for _, _, wanted in results), default=0.0)
            for name, actual, wanted in results:
                error = difference(actual, wanted, largest)
                if error > worst:
                    worst, where = error, name
            found |= {f"{phase}: {name}": values for name, values in bench.mirror.items()}
        memories.append(found)
    tolerance = TOLERANCES[check.precision] if check.direction else _OTHER_TOLERANCE
    known = replace(known, error=worst)
    if worst > tolerance:
        return replace(known, verdict=WRONG, note=f"{bench.name}: {where} {too_far(worst, tolerance)}")
    for name, first in memories[0].items():
        second = memories[1][name]
        cells = int(np.count_nonzero(bits(first) != bits(second)))
        if cells:
            note = f"{bench.name}: {name}: {cells} cells differ between two runs on the same data"
            return replace(known, verdict=NOT_REPEATABLE, note=note)
    return replace(known, ms=1e3 * min(_seconds(bench, check) for _ in range(_TIMED)))


def _seconds(bench: Bench, check: Check) -> float:
    begin = time.perf_counter()
    for phase in _phases(check):
        bench.executor.run(phase, check.count)
    bench.device.queue.finish()
    return time.perf_counter() - begin


def _size(values: Float64Array) -> float:
    """The root mean square."""
    return math.sqrt(float(np.mean(np.square(values))))


def difference(actual: np.ndarray[Any, Any], wanted: Float64Array, largest: float = 0.0) -> float:
    """The largest difference over the root mean square of what is wanted; infinite where there is NaN.

    What is 0 but for rounding (the keys' bias of an attention, which its softmax ignores) is what sums of ``largest``
    numbers leave, the root mean square of others that the phase computes.
    """
    size = _size(wanted)
    scale = (size if size > _NOTHING * largest else largest) or 1.0
    error = float(np.abs(actual.astype(np.float64) - wanted.reshape(actual.shape)).max(initial=0.0)) / scale
    return math.inf if math.isnan(error) else error


def too_far(error: float, tolerance: float) -> str:
    """Describe an array whose :func:`difference` is above the tolerance."""
    amount = "not a number" if math.isinf(error) else f"off by {error:.2g} of its root mean square"
    return f"is {amount}, where {tolerance:.2g} is the most"


class _Expected:
    """The expected results of a bench's layer, in float64."""

    def __init__(self, reference: Reference, bench: Bench) -> None:
        self._bench, problem = bench, bench.problem
        self._inputs = [values.astype(np.float64) for values in problem.inputs]
        self._parameters = {name: values.astype(np.float64) for name, values in problem.parameters.items()}
        self._reference = reference
        self._backward: Backward | None = None

    def results(self, phase: str) -> Iterator[tuple[str, np.ndarray[Any, Any], Float64Array]]:
        """(what, as it is, as it should be) of all that a phase computes."""
        bench, problem = self._bench, self._bench.problem
        if phase == "forward":
            wanted = self._reference.forward(self._inputs, self._parameters)
            yield "output", bench.values(bench.output), wanted
            return
        if self._backward is None:
            delta = problem.delta.astype(np.float64)
            self._backward = self._reference.backward(self._inputs, self._parameters, delta)
        deltas, gradients = self._backward
        if phase == "backward parameters":
            for name, values in gradients.items():
                yield f"gradient of {name}", bench.parameter("gradients", name), values
            return
        for position, blob in enumerate(bench.input_deltas):
            assert blob is not None
            actual, values = bench.values(blob), deltas[position]
            old = problem.old_deltas[position] if bench.arrangement.accumulate else 0.0
            yield f"delta of input {position}", actual, values.reshape(actual.shape) + old
