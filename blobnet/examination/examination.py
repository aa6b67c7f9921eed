"""Running a check, in the process that may die of it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from blobnet.device.device import Device
from blobnet.errors import BuildError, DeviceError, KernelError, PromiseError
from blobnet.examination.checks import ARRANGEMENTS, PHASE_OF, Check
from blobnet.examination.layer_references import Float64Array, reference_of
from blobnet.examination.measured import PHASES, Arrangement, Bench, Problem, bits, make_problem
from blobnet.launch.kernel_call import KernelCall, Tuning
from blobnet.launch.task import TunedChoices
from blobnet.memory.blob import CELLS_OF

#: Verdicts: all but the first two are failures, and all but NOT_HERE and FAILED say that something must not be used.
OK, NOT_HERE = "ok", "not here"
WRONG, STRAY_WRITE, NOT_REPEATABLE = "wrong", "stray write", "not repeatable"
NOT_BUILT, CRASHED, HUNG, FAILED = "not built", "crashed", "hung", "failed"

#: What results may differ by at most, over their root mean square, by the precision of the candidate. In fp32: sums of
#: another order, or products of another form. In tf32 a factor is off by at most 2^-11 of itself, a product by 2^-10.
#: The numbers here have a mean of 0, so errors of products add up as the products do, to 2^-10 of the root mean square;
#: hardly one of 1e8 results is off by more than six times that.
TOLERANCES = {"fp32": 5e-4, "tf32": 6 * 2.0**-10, "bf16": 6 * 2.0**-7, "fp16": 6 * 2.0**-10}
#: The same of layers that are no products, whose functions drivers may compute to some units in the last place.
_OTHER_TOLERANCE = 5e-5
#: Results smaller than this part of the others of a check are 0 but for rounding.
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
    tolerance = TOLERANCES[check.precision] if check.direction else _OTHER_TOLERANCE
    times = list[float]()

    def run(debug: bool) -> dict[str, np.ndarray[Any, Any]]:
        """All phases: all memory after each, and its results."""
        found: dict[str, np.ndarray[Any, Any]] = {}
        bench.load()
        for phase in _phases(check):
            if phase == "backward parameters" or (check.direction and phase != "forward"):
                bench.load_deltas()
            bench.run(phase, debug=debug)
            found |= {f"{phase}: {name}": values for name, values in bench.mirror.items()}
            found |= _results(bench, phase)
        if not debug:
            times.extend(_seconds(bench, check) for _ in range(_TIMED))
        return found

    finding = compared(bench.name, run, lambda: _expected(bench, _phases(check)), tolerance)
    ms = 1e3 * min(times) if finding.verdict == OK else None
    return replace(finding, kernel=_kernel_of(main, calls, check), way=str(main.way or ""), ms=ms)


def compared(
    where: str,
    run: Callable[[bool], Mapping[str, np.ndarray[Any, Any]]],
    expected: Callable[[], Iterable[tuple[str, Float64Array]]],
    tolerance: float,
) -> Finding:
    """Compare two runs with expected arrays by name; in the first one all memory is checked after every launch."""
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
        cells = int(np.count_nonzero(bits(values) != bits(second[name])))
        if cells:
            note = f"{where}: {name}: {cells} cells differ between two runs on the same data"
            return Finding(NOT_REPEATABLE, error=worst, note=note)
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
        if check.in_cells:
            problem = replace(problem, storage=CELLS_OF[check.precision])
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
    numbers leave, the root mean square of others that the check computes.
    """
    size = _size(wanted)
    scale = (size if size > _NOTHING * largest else largest) or 1.0
    error = float(np.abs(actual.astype(np.float64) - wanted.reshape(actual.shape)).max(initial=0.0)) / scale
    return math.inf if math.isnan(error) else error


def too_far(error: float, tolerance: float) -> str:
    """Describe an array whose :func:`difference` is above the tolerance."""
    amount = "not a number" if math.isinf(error) else f"off by {error:.2g} of its root mean square"
    return f"is {amount}, where {tolerance:.2g} is the most"


def _results(bench: Bench, phase: str) -> dict[str, np.ndarray[Any, Any]]:
    """All that a phase has computed."""
    if phase == "forward":
        return {"output": bench.values(bench.output)}
    if phase == "backward parameters":
        names = [spec.name for spec in bench.problem.specs if spec.trainable]
        return {f"gradient of {name}": bench.parameter("gradients", name) for name in names}
    return {f"delta of input {place}": bench.values(blob) for place, blob in enumerate(bench.input_deltas) if blob}


def _expected(bench: Bench, phases: Sequence[str]) -> Iterator[tuple[str, Float64Array]]:
    """Yield what the phases should compute, in float64."""
    problem = bench.problem
    reference = reference_of(problem.layer, problem.shapes)
    inputs = [values.astype(np.float64) for values in problem.inputs]
    parameters = {name: values.astype(np.float64) for name, values in problem.parameters.items()}
    if "forward" in phases:
        yield "output", reference.forward(inputs, parameters)
    if phases == ("forward",):
        return
    deltas, gradients = reference.backward(inputs, parameters, problem.delta.astype(np.float64))
    if "backward parameters" in phases:
        yield from ((f"gradient of {name}", values) for name, values in gradients.items())
    if "backward data" in phases:
        for place, (delta, old) in enumerate(zip(deltas, problem.old_deltas, strict=True)):
            yield f"delta of input {place}", delta.reshape(old.shape) + old * bench.arrangement.accumulate
