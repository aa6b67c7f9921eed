"""Finding the fastest candidate for each task of a network: measured in turn, and checked before it is believed."""

from __future__ import annotations

import contextlib
import statistics
import textwrap
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from blobnet.bench.timing import (
    CASE_LAYER,
    CASE_SETTINGS,
    burst_length,
    burst_seconds,
    case_graph,
    count_sets,
    filled_executor,
    launch_seconds,
)
from blobnet.device.device import Device
from blobnet.device.tuning import LEVELS, Winner
from blobnet.errors import BuildError, DeviceError, OutOfMemoryError, PromiseError, ShapeError, warn
from blobnet.examination import layer_cases
from blobnet.examination.examination import TOLERANCES, difference
from blobnet.examination.layer_cases import Case
from blobnet.execution.executor import MAX_CAUSE, Launch, build
from blobnet.hardware.device_model import DeviceModel
from blobnet.implementations.base import Implementation, choose
from blobnet.launch.kernel_call import Array, ArrayHandle, ArrayKind, KernelCall, Tuning, for_model
from blobnet.launch.task import BrokenVariant, Task, TunedChoices, Variant, is_broken
from blobnet.losses import MeanSquaredError
from blobnet.memory.blob import AXES, FloatArray, Shape
from blobnet.network.graph import Graph
from blobnet.network.parameters import READ_OVERRUN
from blobnet.planning import make_plan

#: For each level: the cheapest candidates to measure at least, and the cost, over the cheapest's, up to which to.
_REACH = {"fast": (4, 1.0), "wide": (4, 2.0)}
#: After a first look: rounds of all that are within this factor of the fastest.
_ROUNDS, _HOPEFUL = 7, 1.3
#: By how much a candidate must be faster than the default to take its place: less may be chance.
_MARGIN = 0.02
#: The longest run of a candidate on a GPU, in launches: its own clock needs no more.
_LONGEST_RUN = 20
#: Samples of the plan in which a candidate is checked on other planes, and of the batch.
_ODD_BATCH, _ODD_COUNT = 3, 2
#: Others that say something else until a candidate is wrong, and those that are asked: some may not build.
_WITNESSES, _REFERENCES = 2, 4
#: The part of a device's memory that the scratch memory of a candidate may take.
_SCRATCH_PART = 8


@dataclass(frozen=True)
class Job:
    """A task to tune, with a layer that has it; ``count``: how often the network has it."""

    task: Task
    case: Case
    count: int


def jobs_of(graph: Graph, batch_size: int, training: bool, tuning: Tuning, *, input_delta: bool = False) -> list[Job]:
    """The distinct tasks of a network that there are several ways for, in the order of their layers."""
    loss = (MeanSquaredError(),) * len(graph.exits) if training else None
    wanted = training and input_delta
    # NOTE: what is measured are layers alone, whose blobs have numbers.
    tuning = replace(tuning, cells=None)
    plan = make_plan(graph, batch_size, loss=loss, training=training, tuning=tuning, input_delta=wanted)
    counts: Counter[Task] = Counter()
    cases: dict[Task, Case] = {}
    for vertex in graph.vertices:
        for task, candidates in vertex.layer.alternatives(plan.sites[vertex.name]).items():
            if len(candidates) > 1:
                counts[task] += 1
                cases.setdefault(task, layer_cases.of_vertex(graph, vertex))
    return [Job(task, cases[task], count) for task, count in counts.items()]


def jobs_of_cases(cases: Iterable[Case], batch_size: int, training: bool, tuning: Tuning) -> list[Job]:
    """The tasks of single layers, with the delta of their inputs."""
    graphs = [case_graph(case) for case in cases]
    found = [job for graph in graphs for job in jobs_of(graph, batch_size, training, tuning, input_delta=True)]
    return list({job.task: job for job in found}.values())


class Tuner:
    """Measures tasks on a device, and keeps each winner in the device's tunings as soon as it is known.

    Args:
        device: where to measure, and in which precision.
        jobs: what.
        batch_size: samples of the tasks.
        level: how many candidates to measure, see blobnet.device.tuning.LEVELS.
        again: measure also what is known.
    """

    def __init__(
        self, device: Device, jobs: Sequence[Job], batch_size: int, level: str, *, again: bool = False
    ) -> None:
        self.device, self.batch_size, self.level = device, batch_size, level
        known = {} if again else device.tunings.winners
        done = {task for task, winner in known.items() if LEVELS.index(winner.level) >= LEVELS.index(level)}
        self.jobs = [job for job in jobs if level in _REACH and job.task not in done]
        # A winner is compared with what ships, or else the cost model's choice: not with an earlier winner.
        self._tuning = replace(device.tuning, choices=TunedChoices(device.tunings.shipped, device.tunings.broken))
        self._problems: dict[Case, _Problem] = {}
        self._selected = {job.task: self._select(job) for job in self.jobs}

    @property
    def measurements(self) -> int:
        """Implementations to be measured."""
        return sum(map(len, self._selected.values()))

    def run(self, advance: Callable[[Task, Variant], object]) -> Iterator[Job]:
        """Measures all tasks, and yields each when its winner is kept; a task without any sound candidate is left out.

        Args:
            advance: called with the task and the way of the candidate before each is measured.

        Raises:
            DeviceError: the device has no room for a task.
        """
        by_case: dict[Case, list[Job]] = {}
        for job in self.jobs:
            by_case.setdefault(job.case, []).append(job)
        for pending in by_case.values():
            while pending:
                try:
                    yield from self._run_case(pending, advance)
                except _LostError:
                    tunings, precision = self.device.tunings, self.device.precision
                    self.device = Device(self.device.info).at(precision)
                    self.device.tunings = tunings

    def _run_case(self, pending: list[Job], advance: Callable[[Task, Variant], object]) -> Iterator[Job]:
        """Takes the tasks of one case off the list, one by one."""
        problem = self._problem(pending[0].case)
        self.device.programs.build_ahead(
            call.assemble() for job in pending for call in problem.needed(job.task, self._selected[job.task])
        )
        arena = _Arena(self.device, problem, {job.task: self._selected[job.task] for job in pending})
        while pending:
            winner = self._measure(arena, pending[0].task, advance)
            job = pending.pop(0)
            if winner is not None:
                self.device.tunings.record(job.task, winner)
                yield job

    # -- choosing what to measure ------------------------------------------------------------------------------------

    def _problem(self, case: Case) -> _Problem:
        if case not in self._problems:
            self._problems[case] = _Problem(case, self.batch_size, self._tuning)
        return self._problems[case]

    def _select(self, job: Job) -> list[Variant]:
        """The default, the cheapest candidate of each variant, and as many more as the level says."""
        problem, broken = self._problem(job.case), self.device.tunings.broken
        every = problem.candidates[job.task]
        candidates = sorted(every, key=lambda item: (item.doubt, item.cost))
        least, factor = _REACH[self.level]
        # What is always preferred costs nothing, and says nothing of the others.
        reach = factor * next((item.cost for item in candidates if item.cost), 0.0)
        chosen = {choose(self._tuning.choices, job.task, every): None}
        variants: set[str] = set()
        for rank, candidate in enumerate(candidates):
            is_first = candidate.way.variant not in variants
            variants.add(candidate.way.variant)
            if is_first or rank < least or candidate.cost <= reach:
                chosen[candidate] = None
        room = min(self.device.info.memory // _SCRATCH_PART, self.device.info.largest_allocation)
        return [
            item.way
            for item in chosen
            if not is_broken(job.task, item.way, broken) and problem.scratch_of(item) <= room
        ]

    # -- measuring ---------------------------------------------------------------------------------------------------

    def _measure(self, arena: _Arena, task: Task, advance: Callable[[Task, Variant], object]) -> Winner | None:
        """All candidates of a task once, then the hopeful ones in turn; the fastest that computes the right thing."""
        first: dict[Variant, float] = {}
        for way in self._selected[task]:
            if not is_broken(task, way, self.device.tunings.broken):
                advance(task, way)
                with self._blaming(task, way):
                    first[way] = arena.seconds(task, way)
        while first:
            winner = self._race(arena, task, first)
            with self._blaming(task, winner.candidate):
                arena.verify(task, winner.candidate)
                return winner
            del first[winner.candidate]
        return None

    def _race(self, arena: _Arena, task: Task, first: Mapping[Variant, float]) -> Winner:
        """The fastest of those whose first times are hopeful; the default, where none is clearly faster."""
        choices = replace(self._tuning.choices, broken=self.device.tunings.broken)
        default = choose(choices, task, [arena.problem.candidate(task, way) for way in first]).way
        limit = _HOPEFUL * min(first.values())
        hopeful = [way for way, seconds in first.items() if seconds <= limit or way == default]
        rounds = [{way: arena.seconds(task, way) for way in hopeful} for _ in range(_ROUNDS)]
        medians, least = (
            {way: 1e3 * measure(times[way] for times in rounds) for way in hopeful}
            for measure in (statistics.median, min)
        )
        # On a busy machine a median may say anything, but hardly the least time as well.
        faster = [way for way in hopeful if all(ms[way] <= (1 - _MARGIN) * ms[default] for ms in (medians, least))]
        best = min(faster, key=lambda way: medians[way], default=default)
        return Winner(best, medians[best], default, medians[default], self.level)

    @contextlib.contextmanager
    def _blaming(self, task: Task, way: Variant) -> Iterator[None]:
        """Marks a candidate as broken if it does not build, launch or compute the right thing, and goes on.

        Where there is no room to run it or to check it, that is not its fault: it goes without a mark.

        Raises:
            _LostError: it did not launch, and may have taken the device's context with it.
        """
        fault, where = BrokenVariant.of(task, way), self.device.info.name
        try:
            yield
        except OutOfMemoryError as error:
            rule = f"{where} must have room to measure and check this candidate, which is left out this time"
            warn(str(fault), rule, task=task, cause=_cause(error), hint="use a smaller --batch-size.")
        except (BuildError, PromiseError, _WrongError, DeviceError) as error:
            self.device.tunings.mark_broken(fault)
            rule = f"{where} must build and run this candidate, which is left out from now on"
            warn(str(fault), rule, cause=_cause(error), hint=f"to try it again, delete {self.device.tunings.path}.")
            if isinstance(error, DeviceError):
                raise _LostError from error


def _cause(error: Exception) -> str:
    """An error as part of a warning."""
    return textwrap.shorten(str(error), MAX_CAUSE).rstrip(".")


class _LostError(Exception):
    """The device's context may be lost."""


class _WrongError(Exception):
    """A candidate computes something else than the plain kernels."""


def _calls_of(candidate: Implementation) -> list[KernelCall]:
    """Return the calls of a candidate, as in the plans for its device."""
    return for_model(candidate.calls(), candidate.operation.tuning.model)


def _plain(model: DeviceModel) -> DeviceModel:
    """A device of the same size that gets the kernels for work-items with loops, which run anywhere."""
    return replace(model, is_simt=False)


class _Problem:
    """A case, planned alone, with the candidates of its tasks, which keep their own memory in ``scratch`` arrays.

    Attributes:
        candidates: by task.
        plain: by task, what computes the same on any device, the cheapest first: the candidates of CPUs.
    """

    def __init__(self, case: Case, batch_size: int, tuning: Tuning) -> None:
        self.case, self.tuning = case, tuning
        self.plan = make_plan(case_graph(case), batch_size, tuning=tuning, every_halo=True, **CASE_SETTINGS)
        self.candidates = self._alternatives(tuning)
        plain = self._alternatives(replace(tuning, model=_plain(tuning.model), precision="fp32")).values()
        self.plain = {
            task: sorted((item for item in found if item.doubt == 0), key=lambda item: item.cost)
            for task, found in zip(self.candidates, plain, strict=True)
        }

    def _alternatives(self, tuning: Tuning) -> dict[Task, list[Implementation]]:
        site = self.plan.sites[CASE_LAYER]

        def array(handle: ArrayHandle) -> Array:
            if handle.kind is ArrayKind.MEMORY:
                # Not the plan's: candidates ask for different amounts by the same name.
                return Array(f"scratch {handle.name}", handle.elements, handle.per_sample)
            return site.array(handle)

        return self.case.layer.alternatives(replace(site, array=array, tuning=tuning))

    @property
    def is_plain(self) -> bool:
        """True if the device's own candidates are the plain ones."""
        return not self.tuning.model.is_simt

    def candidate(self, task: Task, way: Variant) -> Implementation:
        """The candidate of a way."""
        return next(item for item in self.candidates[task] if item.way == way)

    def references(self, task: Task, way: Variant) -> list[Implementation]:
        """Return the candidates to compare one with: first the cheapest of each other variant, then the rest.

        Tiles of its own variant come last: what is wrong with one may be so with all.
        """
        # For a GPU's candidate, one of the same way among those of CPUs is another one.
        others = [item for item in self.plain[task] if item.way != way or not self.is_plain]
        firsts = {item.way.variant: item for item in reversed(others)}
        rank = {item.way: index for index, item in enumerate(others)}

        def preference(item: Implementation) -> tuple[bool, bool, int]:
            return item.way.variant == way.variant, firsts[item.way.variant] is not item, rank[item.way]

        return sorted(others, key=preference)[:_REFERENCES]

    def needed(self, task: Task, ways: Collection[Variant]) -> Iterator[KernelCall]:
        """Return the calls that measure candidates and compare one with the first of its references."""
        for problem in (self, *self.odd[:1]):
            own = problem.of_direction(task.direction)
            for candidate in problem.candidates[own]:
                if candidate.way in ways:
                    for item in (candidate, *problem.references(own, candidate.way)[:1]):
                        yield from _calls_of(item)

    def of_direction(self, direction: str) -> Task:
        """The task of a direction."""
        return next(task for task in self.candidates if task.direction == direction)

    def scratch(self, calls: Iterable[KernelCall]) -> dict[str, int]:
        """Bytes of each scratch array that calls need."""
        sizes: dict[str, int] = {}
        count = self.plan.batch_size
        for call in calls:
            arrays = [array for array in call.arrays.values() if not array.persistent]
            blobs = [blob for blob in call.blobs.values() if blob.is_memory]
            ends = [(array.storage, array.type, array.end(count)) for array in arrays]
            ends += [(blob.storage, blob.type, count * blob.layout.memory_elements) for blob in blobs]
            for storage, kind, end in ends:
                sizes[storage] = max(kind.itemsize * (end + READ_OVERRUN), sizes.get(storage, 0))
        return sizes

    def scratch_of(self, candidate: Implementation) -> int:
        """Bytes of all scratch that a candidate needs."""
        return sum(self.scratch(_calls_of(candidate)).values())

    @cached_property
    def odd(self) -> list[_Problem]:
        """The same problem on planes of odd sizes, larger and smaller, for a few samples."""
        found = []
        for step in (1, -1):
            shape = _odd_shape(self.case.input, step)
            with contextlib.suppress(ShapeError):  # The filter does not fit.
                found.append(_Problem(replace(self.case, input=shape), _ODD_BATCH, self.tuning))
        return found


#: Functions that make the sizes of depth, height and width odd, if these do not become too many cells.
_ODDER = (1, 1, 3)


def _odd_shape(shape: Shape, step: int) -> Shape:
    """Another plane of odd height and width, larger or smaller."""
    sizes = (
        max(1, size + step * (more + size % 2))
        for size, more in zip(shape.sizes, _ODDER[AXES - shape.rank :], strict=True)
    )
    return Shape(shape.units, *sizes)


class _Arena:
    """Memory for some candidates of a problem, in sets that take turns.

    Args:
        device: where.
        problem: what is computed.
        ways: the candidates, by task.
        debug: one set alone, with a check of every launch, to see what is computed and not how fast.
    """

    def __init__(
        self, device: Device, problem: _Problem, ways: Mapping[Task, Iterable[Variant]], *, debug: bool = False
    ) -> None:
        self.device, self.problem = device, problem
        self._calls = {(task, way): _calls_of(problem.candidate(task, way)) for task in ways for way in ways[task]}
        every = [*self._calls.values()]
        every += [_calls_of(other) for key in self._calls for other in problem.references(*key)]
        scratch = problem.scratch(call for calls in every for call in calls)
        sets = 1 if debug else count_sets(device, problem.case, problem.plan, sum(scratch.values()))
        self._executors = [filled_executor(device, problem.plan, scratch, debug=debug) for _ in range(sets)]
        self._bound: dict[tuple[Task, Variant], list[list[Launch]]] = {}
        self._lengths: dict[tuple[Task, Variant], int] = {}

    def seconds(self, task: Task, way: Variant) -> float:
        """Return the seconds of a candidate: wall time on a CPU, the device's clock on a GPU."""
        key, device, count = (task, way), self.device, self.problem.plan.batch_size
        if key not in self._bound:
            for call in self._calls[key]:
                build(device, call, call.assemble())
            bound = [executor.bind(self._calls[key], count) for executor in self._executors]
            self._lengths[key] = burst_length(burst_seconds(device, bound, 1), device)
            self._bound[key] = bound
        bound, length = self._bound[key], self._lengths[key]
        if device.is_host:
            return burst_seconds(device, bound, length)
        return sum(launch_seconds(device, bound, min(length, _LONGEST_RUN)))

    def verify(self, task: Task, way: Variant) -> None:
        """Compares what a candidate computes with what others do: on planes of odd sizes, and on its own.

        Raises:
            _WrongError: it is something else.
            BuildError, DeviceError, PromiseError: it does not run, or writes where it must not.
        """
        counts = [self.problem.plan.batch_size]
        for odd in self.problem.odd:
            other = odd.of_direction(task.direction)
            if way in [item.way for item in odd.candidates[other]]:
                _Arena(self.device, odd, {other: [way]}, debug=True)._compare(other, way, _ODD_COUNT)
                break
        else:
            counts.append(max(1, counts[0] - 1))  # It is not for other planes: a short batch of its own ones.
        for count in counts:
            self._compare(task, way, count)

    def _compare(self, task: Task, way: Variant, count: int) -> None:
        """Raises _WrongError if the candidate agrees with neither of two others."""
        found = self._results(self._calls[task, way], count)
        tolerance = TOLERANCES[self.problem.candidate(task, way).precision]
        differences = []
        for other in self.problem.references(task, way):
            if self.problem.is_plain and is_broken(task, other.way, self.device.tunings.broken):
                continue
            with contextlib.suppress(BuildError, PromiseError):
                difference = _difference(self._results(_calls_of(other), count), found, tolerance)
                if not difference:
                    return
                differences.append(difference)
            if len(differences) == _WITNESSES:
                break
        if differences:
            raise _WrongError(f"{task}, {count} samples: {differences[-1]}")

    def _results(self, calls: Sequence[KernelCall], count: int) -> dict[str, FloatArray]:
        """Run calls on zeroed memory and return what they leave, by the name of its place, without scratch."""
        executor = self._executors[0]
        storages: set[str] = set()
        readers: dict[str, Callable[[], FloatArray]] = {}
        for call in calls:
            for role, blob in call.blobs.items():
                if call.source.blobs[role] != "read" and not blob.is_memory:
                    storages.add(blob.storage)
                    readers[blob.storage] = partial(executor.read_blob, blob, count)
            for role, array in call.arrays.items():
                if call.source.arrays[role] != "read" and array.persistent:
                    storages.add(array.storage)
                    place = executor.buffers[array.storage], array.elements
                    readers[f"{array.storage} from {array.offset} on"] = partial(
                        self.device.memory.read, *place, array.type.name, offset=array.type.itemsize * array.offset
                    )
        for storage in storages:
            buffer = executor.buffers[self.problem.plan.placed[storage]]
            self.device.memory.fill_zero(buffer, buffer.size)
        executor.launch(executor.bind(calls, count), count)
        self.device.queue.finish()
        return {name: read() for name, read in readers.items()}


def _difference(wanted: Mapping[str, FloatArray], found: Mapping[str, FloatArray], tolerance: float) -> str:
    """Describe what is wrong with results; empty if nothing is."""
    if wanted.keys() != found.keys():
        return f"it must write {', '.join(wanted)}, and writes {', '.join(found) or 'nothing'}"
    for name, values in wanted.items():
        error = difference(found[name], values.astype(np.float64))
        if error > tolerance:
            return f"{name} is wrong by {error:.2g} of its root mean square"
    return ""
