"""Finding the fastest candidate for each task of a network: measured in turn, and checked before it is believed."""

from __future__ import annotations

import contextlib
import math
import statistics
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from blobnet.bench import shapes
from blobnet.bench.shapes import Case
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
from blobnet.blob import FloatArray, Shape
from blobnet.device import Device
from blobnet.errors import BuildError, DeviceError, PromiseError, ShapeError, warn
from blobnet.executor import MOST_CAUSE, Launch, build
from blobnet.graph import Graph
from blobnet.kernel_call import Array, KernelCall, Tuning
from blobnet.layers.candidates import Candidate, choose, is_broken, variant_of
from blobnet.losses import MeanSquaredError
from blobnet.planner import READ_OVERRUN, make_plan
from blobnet.tuning import LEVELS, Winner

#: For each level: the cheapest candidates to measure at least, and the cost, over the cheapest's, up to which to.
_REACH = {"fast": (4, 1.0), "wide": (4, 2.0)}
#: After a first look: rounds of all that are within this factor of the fastest.
_ROUNDS, _HOPEFUL = 7, 1.3
#: By how much a candidate must be faster than the default to take its place: less may be chance.
_MARGIN = 0.02
#: The longest run of a candidate on a GPU, in launches: its own clock needs no more.
_LONGEST_RUN = 20
#: What results may differ by at most, over their root mean square: sums of another order, or products of another form.
TOLERANCE = 5e-4
#: Samples of the plan in which a candidate is checked on other planes, and of the batch.
_ODD_BATCH, _ODD_COUNT = 3, 2
#: Others that say something else until a candidate is wrong, and those that are asked: some may not build.
_WITNESSES, _REFERENCES = 2, 4
#: The class of devices whose kernels run on any.
_PLAIN = "cpu"
#: The part of a device's memory that the scratch memory of a candidate may take.
_SCRATCH_PART = 8


@dataclass(frozen=True)
class Task:
    """One direction of a layer; ``name`` as in Tuning.choices, ``count``: how often the network has it."""

    name: str
    case: Case
    count: int


def tasks_of(graph: Graph, batch_size: int, training: bool, tuning: Tuning, *, input_delta: bool = False) -> list[Task]:
    """The distinct tasks of a network that there are several ways for, in the order of their layers."""
    loss = MeanSquaredError() if training else None
    wanted = training and input_delta
    plan = make_plan(graph, batch_size, loss=loss, training=training, tuning=tuning, input_delta=wanted)
    counts: Counter[str] = Counter()
    cases: dict[str, Case] = {}
    for vertex in graph.vertices:
        for name, candidates in vertex.layer.alternatives(plan.sites[vertex.name]).items():
            if len(candidates) > 1:
                counts[name] += 1
                cases.setdefault(name, shapes.of_vertex(graph, vertex))
    return [Task(name, cases[name], count) for name, count in counts.items()]


def tasks_of_cases(cases: Iterable[Case], batch_size: int, training: bool, tuning: Tuning) -> list[Task]:
    """The tasks of single layers, with the delta of their inputs."""
    graphs = [case_graph(case) for case in cases]
    found = [task for graph in graphs for task in tasks_of(graph, batch_size, training, tuning, input_delta=True)]
    return list({task.name: task for task in found}.values())


class Tuner:
    """Measures tasks on a device, and keeps each winner in the device's tunings as soon as it is known.

    Args:
        device: where to measure.
        tasks: what.
        batch_size: samples of the tasks.
        level: how many candidates to measure, see blobnet.tuning.LEVELS.
        again: measure also what is known.
    """

    def __init__(
        self, device: Device, tasks: Sequence[Task], batch_size: int, level: str, *, again: bool = False
    ) -> None:
        self.device, self.batch_size, self.level = device, batch_size, level
        known = {} if again else device.tunings.winners
        done = {name for name, winner in known.items() if LEVELS.index(winner.level) >= LEVELS.index(level)}
        self.tasks = [task for task in tasks if level in _REACH and task.name not in done]
        # A winner is compared with what ships, or else the cost model's choice: not with an earlier winner.
        self._tuning = replace(device.tuning, choices=device.tunings.shipped)
        self._problems: dict[Case, _Problem] = {}
        self._selected = {task.name: self._select(task) for task in self.tasks}

    @property
    def measurements(self) -> int:
        """Candidates to be measured."""
        return sum(map(len, self._selected.values()))

    def run(self, advance: Callable[[str, str], object]) -> Iterator[Task]:
        """Measures all tasks, and yields each when its winner is kept; a task without any sound candidate is left out.

        Args:
            advance: called with the names of the task and of the candidate before each is measured.

        Raises:
            DeviceError: the device has no room for a task.
        """
        by_case: dict[Case, list[Task]] = {}
        for task in self.tasks:
            by_case.setdefault(task.case, []).append(task)
        for pending in by_case.values():
            while pending:
                try:
                    yield from self._run_case(pending, advance)
                except _LostError:
                    tunings, self.device = self.device.tunings, Device(self.device.info)
                    self.device.tunings = tunings

    def _run_case(self, pending: list[Task], advance: Callable[[str, str], object]) -> Iterator[Task]:
        """Takes the tasks of one case off the list, one by one."""
        problem = self._problem(pending[0].case)
        arena = _Arena(self.device, problem, {task.name: self._selected[task.name] for task in pending})
        while pending:
            winner = self._measure(arena, pending[0].name, advance)
            task = pending.pop(0)
            if winner is not None:
                self.device.tunings.record(task.name, winner)
                yield task

    # -- choosing what to measure ------------------------------------------------------------------------------------

    def _problem(self, case: Case) -> _Problem:
        if case not in self._problems:
            self._problems[case] = _Problem(case, self.batch_size, self._tuning)
        return self._problems[case]

    def _select(self, task: Task) -> list[str]:
        """The default, the cheapest candidate of each variant, and as many more as the level says."""
        problem = self._problem(task.case)
        candidates = sorted(problem.candidates[task.name], key=lambda item: item.cost)
        least, factor = _REACH[self.level]
        chosen = {choose(self._tuning, task.name, candidates): None}
        variants: set[str] = set()
        for rank, candidate in enumerate(candidates):
            is_first = candidate.variant not in variants
            variants.add(candidate.variant)
            if is_first or rank < least or candidate.cost <= factor * candidates[0].cost:
                chosen[candidate] = None
        room = min(self.device.info.memory // _SCRATCH_PART, self.device.info.largest_allocation)
        return [
            item.name
            for item in chosen
            if not is_broken(item.name, self.device.tunings.broken) and problem.scratch_of(item) <= room
        ]

    # -- measuring ---------------------------------------------------------------------------------------------------

    def _measure(self, arena: _Arena, task: str, advance: Callable[[str, str], object]) -> Winner | None:
        """All candidates of a task once, then the hopeful ones in turn; the fastest that computes the right thing."""
        first: dict[str, float] = {}
        for name in self._selected[task]:
            if not is_broken(name, self.device.tunings.broken):
                advance(task, name)
                with self._blaming(name):
                    first[name] = arena.seconds(task, name)
        while first:
            winner = self._race(arena, task, first)
            with self._blaming(winner.candidate):
                arena.verify(task, winner.candidate)
                return winner
            del first[winner.candidate]
        return None

    def _race(self, arena: _Arena, task: str, first: Mapping[str, float]) -> Winner:
        """The fastest of those whose first times are hopeful; the default, where none is clearly faster."""
        tuning = replace(self._tuning, broken=self.device.tunings.broken)
        default = choose(tuning, task, [arena.problem.candidate(task, name) for name in first]).name
        limit = _HOPEFUL * min(first.values())
        hopeful = [name for name, seconds in first.items() if seconds <= limit or name == default]
        rounds = [{name: arena.seconds(task, name) for name in hopeful} for _ in range(_ROUNDS)]
        medians, least = (
            {name: 1e3 * measure(times[name] for times in rounds) for name in hopeful}
            for measure in (statistics.median, min)
        )
        # On a busy machine a median may say anything, but hardly the least time as well.
        faster = [name for name in hopeful if all(ms[name] <= (1 - _MARGIN) * ms[default] for ms in (medians, least))]
        best = min(faster, key=lambda name: medians[name], default=default)
        return Winner(best, medians[best], default, medians[default], self.level)

    @contextlib.contextmanager
    def _blaming(self, name: str) -> Iterator[None]:
        """Marks a candidate as broken if it does not build, launch or compute the right thing, and goes on.

        Raises:
            _LostError: it did not launch, and may have taken the device's context with it.
        """
        try:
            yield
        except (BuildError, PromiseError, _WrongError, DeviceError) as error:
            self.device.tunings.mark_broken(name)
            rule = f"{self.device.info.name} must build and run this candidate, which is left out from now on"
            hint = f"to try it again, delete {self.device.tunings.path}."
            warn(name, rule, cause=textwrap.shorten(str(error), MOST_CAUSE).rstrip("."), hint=hint)
            if isinstance(error, DeviceError):
                raise _LostError from error


class _LostError(Exception):
    """The device's context may be lost."""


class _WrongError(Exception):
    """A candidate computes something else than the plain kernels."""


class _Problem:
    """A case, planned alone, with the candidates of its tasks, which keep their own memory in ``scratch`` arrays.

    Attributes:
        candidates: by task.
        plain: by task, what computes the same on any device, the cheapest first: the candidates of CPUs.
    """

    def __init__(self, case: Case, batch_size: int, tuning: Tuning) -> None:
        self.case, self.tuning = case, tuning
        self.plan = make_plan(case_graph(case), batch_size, tuning=tuning, **CASE_SETTINGS)
        self.candidates = self._alternatives(tuning)
        plain = self._alternatives(replace(tuning, device_class=_PLAIN)).values()
        self.plain = {
            task: sorted((item for item in found if not item.is_guess), key=lambda item: item.cost)
            for task, found in zip(self.candidates, plain, strict=True)
        }

    def _alternatives(self, tuning: Tuning) -> dict[str, list[Candidate]]:
        site = self.plan.sites[CASE_LAYER]

        def array(kind: str, name: str, elements: int, per_sample: int) -> Array:
            # Not the plan's: candidates ask for different amounts by the same name.
            is_scratch = kind == "memory"
            return Array(f"scratch {name}", elements, per_sample) if is_scratch else site.array(kind, name, 0, 0)

        return self.case.layer.alternatives(replace(site, array=array, tuning=tuning))

    def candidate(self, task: str, name: str) -> Candidate:
        """The candidate of a name."""
        return next(item for item in self.candidates[task] if item.name == name)

    def references(self, task: str, name: str) -> list[Candidate]:
        """What to compare a candidate with, in this order: the cheapest of each other variant, then what else there is.

        Tiles of its own variant come last: what is wrong with one may be so with all.
        """
        # For a GPU's candidate, one of its name among those of CPUs is another one.
        is_own = self.tuning.device_class == _PLAIN
        others = [item for item in self.plain[task] if item.name != name or not is_own]
        firsts = {item.variant: item for item in reversed(others)}
        rank = {item.name: index for index, item in enumerate(others)}

        def preference(item: Candidate) -> tuple[bool, bool, int]:
            return item.variant == variant_of(name), firsts[item.variant] is not item, rank[item.name]

        return sorted(others, key=preference)[:_REFERENCES]

    def scratch(self, calls: Iterable[KernelCall]) -> dict[str, int]:
        """Bytes of each scratch array that calls need."""
        sizes: dict[str, int] = {}
        count = self.plan.batch_size
        for call in calls:
            ends = {array.storage: array.end(count) for array in call.arrays.values() if not array.persistent}
            memory = [blob for blob in call.blobs.values() if blob.is_memory]
            ends |= {blob.storage: count * blob.layout.memory_elements for blob in memory}
            for storage, end in ends.items():
                sizes[storage] = max(4 * (end + READ_OVERRUN), sizes.get(storage, 0))
        return sizes

    def scratch_of(self, candidate: Candidate) -> int:
        """Bytes of all scratch that a candidate needs."""
        return sum(self.scratch(candidate.launches()).values())

    @cached_property
    def odd(self) -> list[_Problem]:
        """The same on planes of odd sizes, larger and smaller ones, for a few samples."""
        found = []
        for step in (1, -1):
            shape = _odd_shape(self.case.input, step)
            with contextlib.suppress(ShapeError):  # The filter does not fit.
                found.append(_Problem(replace(self.case, input=shape), _ODD_BATCH, self.tuning))
        return found


def _odd_shape(shape: Shape, step: int) -> Shape:
    """Another plane of odd height and width, larger or smaller."""
    if not shape.rank:
        return shape
    height = 1 if shape.rank == 1 else max(1, shape.height + step * (1 + shape.height % 2))
    return replace(shape, height=height, width=max(1, shape.width + step * (3 + shape.width % 2)))


class _Arena:
    """Memory for some candidates of a problem, in sets that take turns.

    Args:
        device: where.
        problem: what is computed.
        names: the candidates, by task.
        debug: one set alone, with a check of every launch, to see what is computed and not how fast.
    """

    def __init__(
        self, device: Device, problem: _Problem, names: Mapping[str, Iterable[str]], *, debug: bool = False
    ) -> None:
        self.device, self.problem = device, problem
        self._calls = {(task, name): problem.candidate(task, name).launches() for task in names for name in names[task]}
        every = [*self._calls.values()]
        every += [other.launches() for key in self._calls for other in problem.references(*key)]
        scratch = problem.scratch(call for calls in every for call in calls)
        sets = 1 if debug else count_sets(device, problem.case, problem.plan, sum(scratch.values()))
        self._executors = [filled_executor(device, problem.plan, scratch, debug=debug) for _ in range(sets)]
        self._bound: dict[tuple[str, str], list[list[Launch]]] = {}
        self._lengths: dict[tuple[str, str], int] = {}

    def seconds(self, task: str, name: str) -> float:
        """How long a candidate takes: on a CPU in wall time, on a GPU by its own clock."""
        key, device, count = (task, name), self.device, self.problem.plan.batch_size
        if key not in self._bound:
            for call in self._calls[key]:
                build(device, call)
            bound = [executor.bind(self._calls[key], count) for executor in self._executors]
            self._lengths[key] = burst_length(burst_seconds(device, bound, 1), device)
            self._bound[key] = bound
        bound, length = self._bound[key], self._lengths[key]
        if device.kind == "cpu":
            return burst_seconds(device, bound, length)
        return sum(launch_seconds(device, bound, min(length, _LONGEST_RUN)))

    def verify(self, task: str, name: str) -> None:
        """Compares what a candidate computes with what others do: on planes of odd sizes, and on its own.

        Raises:
            _WrongError: it is something else.
            BuildError, DeviceError, PromiseError: it does not run, or writes where it must not.
        """
        counts = [self.problem.plan.batch_size]
        for odd in self.problem.odd:
            other = dict(zip(self.problem.candidates, odd.candidates, strict=True))[task]
            if name in [item.name for item in odd.candidates[other]]:
                _Arena(self.device, odd, {other: [name]}, debug=True)._compare(other, name, _ODD_COUNT)
                break
        else:
            counts.append(max(1, counts[0] - 1))  # It is not for other planes: a short batch of its own ones.
        for count in counts:
            self._compare(task, name, count)

    def _compare(self, task: str, name: str, count: int) -> None:
        """Raises _WrongError if the candidate agrees with neither of two others."""
        found = self._results(self._calls[task, name], count)
        differences = []
        for other in self.problem.references(task, name):
            if is_broken(other.name, self.device.tunings.broken):
                continue
            with contextlib.suppress(BuildError, PromiseError):
                difference = _difference(self._results(other.launches(), count), found)
                if not difference:
                    return
                differences.append(difference)
            if len(differences) == _WITNESSES:
                break
        if differences:
            raise _WrongError(f"{task}, {count} samples: {differences[-1]}")

    def _results(self, calls: Sequence[KernelCall], count: int) -> dict[str, FloatArray]:
        """What calls leave, apart from scratch, where there were zeros before, by the name of its place."""
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
                        self.device.read, *place, offset=4 * array.offset
                    )
        for storage in storages:
            buffer = executor.buffers[self.problem.plan.placed[storage]]
            self.device.fill_zero(buffer, buffer.size)
        executor.launch(executor.bind(calls, count), count)
        self.device.finish()
        return {name: read() for name, read in readers.items()}


def _difference(wanted: Mapping[str, FloatArray], found: Mapping[str, FloatArray]) -> str:
    """What is wrong with results; empty if nothing is."""
    if wanted.keys() != found.keys():
        return f"it must write {', '.join(wanted)}, and writes {', '.join(found) or 'nothing'}"
    for name, values in wanted.items():
        scale = math.sqrt(float(np.mean(np.square(values, dtype=np.float64)))) or 1.0
        error = float(np.abs(found[name] - values).max(initial=0)) / scale
        if not error <= TOLERANCE:
            return f"{name} is wrong by {error:.2g} of its root mean square"
    return ""
