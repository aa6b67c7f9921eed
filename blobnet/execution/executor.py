"""Runs a plan on a device: buffers, and a fixed list of launches with their arguments set once."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import textwrap
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from blobnet.device.child_builds import Trial
from blobnet.device.device import Device
from blobnet.device.memory import StagingRing
from blobnet.device.programs import Programs
from blobnet.errors import BuildError, FileError, OutOfMemoryError, PlanError, PromiseError, warn
from blobnet.launch.kernel_call import CONSTANT, TABLES, Array, Batch, Blob, KernelCall, Tuning
from blobnet.launch.task import BrokenVariant
from blobnet.memory.blob import FloatArray, StorageType
from blobnet.network.graph import Graph
from blobnet.planning import Plan, plan_cache
from blobnet.planning.plan import plan_of
from blobnet.planning.request import Request
from blobnet.support.build_progress import progress_line
from blobnet.support.lru import LRUCache

#: Characters of an error that a warning repeats.
MAX_CAUSE = 300
#: What was said of what is denied, by the device's name: models may be planned anew many times.
DENIALS_TOLD: set[tuple[str, BrokenVariant]] = set()
#: Programs that may be needed beside those of a plan: an optimizer's, sums', averages'. NOTE: were there room for one
#: less than are bound in turn, each would be forgotten right before it is asked for again.
_OTHER_PROGRAMS = 32
#: Plans at most of which it is kept which programs they need.
_PURPOSES = 1000

#: The plans that were made last, by what they were made for, for each device's programs; and how many.
_MADE: WeakKeyDictionary[Programs, LRUCache[str | None, Plan]] = WeakKeyDictionary()
_KEPT_PLANS = 4

#: What to do about a batch that is too large for a device.
IN_PARTS = "fit(fit_memory=True), or --fit-memory, may take less: it computes blobs again, or a batch in parts."

_Way = TypeVar("_Way")
_Made = TypeVar("_Made")


def is_checked(debug: bool | None = None) -> bool:
    """Return ``debug``; if that is None, whether $BLOBNET_CHECK asks for debug mode."""
    return os.environ.get("BLOBNET_CHECK", "0") not in ("", "0") if debug is None else debug


class Launch:
    """A call bound to a kernel object of its own, whose arguments are set once, but for those that a batch changes.

    Args:
        device: where.
        call: what.
        text: of its program.
        memory: a buffer for each storage.
        batch: for which samples, at first.

    Attributes:
        call: what is launched.
        kernel: the kernel object of the first launch of a batch, which has a second one at most.
        global_size: its work-items, for the batch that was set last.
        local_size: work-items of a group.
        enqueue: puts it into the queue, for the batch that was set last.
        firsts: how far behind where they are planned its arrays in a storage lie; 0 where it is not said.
        takes_step: whether two batches of as many samples may differ for it, by their place in a step.
    """

    def __init__(self, device: Device, call: KernelCall, text: str, memory: Mapping[str, Any], batch: Batch) -> None:
        source = call.source
        self.call = call
        make = partial(device.programs.kernel, text, source.entry, f"kernel {call.kernel} ({call.label})")
        #: One for each launch of a batch, and what all of them are given.
        self.kernel = make()
        self._make, self._kernels, self._arguments = make, [self.kernel], dict[int, Any]()
        self.local_size = call.local_size or (1, 1, 1)
        self._queue = device.queue
        arguments = memory_arguments(call, memory)
        #: For each storage of its arrays: the arguments that say where in it they lie.
        self._places: dict[str, list[tuple[int, Array]]] = {}
        for index, role in zip(range(len(arguments) - 1, 0, -2), reversed([*source.arrays]), strict=False):
            self._places.setdefault(call.arrays[role].storage, []).append((index, call.arrays[role]))
        self.firsts: dict[str, int] = {}
        scalars = {name: index for index, name in enumerate(source.scalars, start=len(arguments))}
        sizes = {scalars[name]: np.int32(value) for name, value in call.sizes.items()}
        #: Where the arguments begin that tell shards apart.
        self._of_shards = len(arguments) + len(scalars)
        for index, argument in [*enumerate(arguments), *sizes.items()]:
            self._set(index, argument)
        self._scalars = {name: index for name, index in scalars.items() if index not in sizes}
        self.takes_step = not {"WHOLE", "DIVISOR", "FIRST_SAMPLE"}.isdisjoint(self._scalars)
        self.set_batch(batch)

    def set_batch(self, batch: Batch) -> None:
        """Makes ``enqueue`` launch for a batch; nothing where none of its samples are this launch's."""
        call, parts = self.call, self.call.parts(batch.count, batch.room)
        while len(self._kernels) < len(parts):
            self._kernels.append(self._make())
            for index, argument in self._arguments.items():
                self._queue.set_argument(self._kernels[-1], index, argument)
        self.global_size = call.work_size(0)
        made: list[Callable[[], object]] = []
        for kernel, (shards, samples) in zip(self._kernels, parts, strict=False):
            values = batch.scalars(samples)
            arguments = {index: _number(values[name]) for name, index in self._scalars.items()}
            more = call.shards.arguments(shards.start, batch) if call.shards else ()
            for index, value in [*arguments.items(), *enumerate(more, self._of_shards)]:
                self._queue.set_argument(kernel, index, value)
            size = call.work_size(len(samples), len(shards))
            self.global_size = size if kernel is self.kernel else self.global_size
            made.append(self._queue.prepare(kernel, size, self.local_size))
        self.enqueue: Callable[[], object] = made[0] if len(made) == 1 else lambda: [launch() for launch in made]

    def _set(self, index: int, value: Any) -> None:
        self._arguments[index] = value
        for kernel in self._kernels:
            self._queue.set_argument(kernel, index, value)

    def takes(self, storage: str) -> bool:
        """Return True if some of its arrays lie in a storage."""
        return storage in self._places

    def place(self, storage: str, first: int) -> None:
        """Takes the arrays in a storage so many elements behind where they are planned."""
        self.firsts[storage] = first
        for index, array in self._places.get(storage, ()):
            self._set(index, np.int32(array.offset + first))

    def use(self, storage: str, memory: Any) -> None:
        """Takes the arrays in a storage from other memory."""
        for index, _ in self._places.get(storage, ()):
            self._set(index - 1, memory)


def memory_arguments(call: KernelCall, memory: Mapping[str, Any]) -> list[Any]:
    """A kernel's arguments before its scalars: the buffer and the place in it for each role, and sizes if it asks."""
    source = call.source
    arguments: list[Any] = []
    for role in source.blobs:
        blob = call.blobs[role]
        arguments += [memory[blob.storage], np.int32(blob.layout.unit_offset)]
        arguments += [blob.layout.geometry(call.has_plain_blobs)] if call.passes_geometry else []
    for role in source.arrays:
        array = call.arrays[role]
        arguments += [memory[array.storage], np.int32(array.offset)]
    return arguments


def _number(value: int | float) -> np.float32 | np.int32:
    """Convert a number to what a kernel takes."""
    number: np.float32 | np.int32 = np.float32(value) if isinstance(value, float) else np.int32(value)
    return number


def _trial(call: KernelCall) -> Trial:
    """One work-group of a launch for one sample."""
    source, nowhere = call.source, dict.fromkeys(call.storages("read", "write", "update"))
    numbers = {**Batch(1).scalars(range(1)), **call.sizes}
    arguments = memory_arguments(call, nowhere) + [_number(numbers[name]) for name in source.scalars]
    arguments += call.shards.arguments(0, Batch(1)) if call.shards else []
    values = tuple(None if argument is None else argument.tobytes() for argument in arguments)
    return Trial(source.entry, call.local_size or (1, 1, 1), values)


def plan_for(
    device: Device,
    graph: Graph,
    batch_size: int,
    *,
    tuning: Tuning | None = None,
    reserved: Callable[[Plan], int] = lambda plan: 0,
    **settings: Any,
) -> Plan:
    """A plan that fits a device, and whose kernels the driver has built.

    A variant (blobnet/implementations) that the driver does not build, or crashes on, is left out, with a warning,
    and from now on: the device's tunings remember it. What a driver does not say when it builds, this cannot know: a
    launch that it refuses ends the run with a DeviceError, and wrong results show in the loss at best. ``blobnet tune``
    launches and checks what it chooses.

    Args:
        device: where the plan will run.
        graph: what to plan.
        batch_size: the most samples at once.
        **settings: as for make_plan.
        tuning: that of the device if None.
        reserved: bytes that others need besides such a plan (optimizer state).

    Raises:
        BuildError: there is no other way.
        OptionError, ShapeError, PlanError: as for make_plan; PlanError if the plan does not fit the device.
    """
    request = Request(graph, batch_size, tuning=tuning or device.tuning, **settings)
    key, made = plan_cache.key_of(request), _MADE.setdefault(device.programs, LRUCache(_KEPT_PLANS))
    plan = made.get(key)
    if plan is not None:  # All that is asked for, equal layers among it, and so are the kernels, which were built.
        check_fits(plan, device, reserved(plan))
        _keep_programs(device, plan)
        return plan
    purpose = _purpose(request)
    with device.programs.preload(purpose) as sources:
        plan = _plan_for(device, request, reserved, device.programs.cache_file(f"{purpose}.plan"))
        sources.update(call.assemble() for _, call in plan.calls)
    if key is not None:
        made[key] = replace(plan, sites={})
    return plan


def _purpose(request: Request) -> str:
    """One of _PURPOSES names, which tells from most others what programs are for."""
    return f"{zlib.crc32(request.cache_key.encode()) % _PURPOSES:03}"


def _plan_for(device: Device, request: Request, reserved: Callable[[Plan], int], path: Path) -> Plan:
    tuning = request.tuning
    failures: dict[BrokenVariant, BuildError] = {}
    while True:
        known = tuning.choices.broken | failures.keys()
        request = replace(request, tuning=replace(tuning, choices=replace(tuning.choices, broken=known)))
        key = plan_cache.key_of(request)
        stored = key and plan_cache.load(path, key, request)
        plan = stored or plan_of(request)
        check_fits(plan, device, reserved(plan))
        failed = _first_failure(device, plan)
        if failed is None:
            break
        calls, error = failed
        # Generated kernels share a program, and the driver may not say which of them it does not take.
        suspects = [call.fault for call in calls if call.fault and call.fault not in known]
        if not suspects:
            raise error
        failures[suspects[0]] = error
    if key and not stored:
        plan_cache.keep(path, key, plan)
    for fault, error in failures.items():
        rule = f"{device.info.name} must build the kernels of this variant, which is left out from now on"
        hint = f"to try it again, delete {device.tunings.path}."
        warn(str(fault), rule, cause=textwrap.shorten(str(error), MAX_CAUSE).rstrip("."), hint=hint)
    if failures:
        with contextlib.suppress(FileError):  # Who cannot keep it will learn it again.
            device.tunings.mark_broken(*failures)
    _tell_denied(device, plan)
    return plan


def _tell_denied(device: Device, plan: Plan) -> None:
    """Warns, once a process, of what a plan does without since a check of it failed."""
    kinds = {(getattr(call.owner, "family", ""), call.direction) for _, call in plan.calls}
    for fault, verdict in device.tunings.denied.items():
        key = device.info.name, fault
        if (fault.family, fault.direction) in kinds and key not in DENIALS_TOLD:
            DENIALS_TOLD.add(key)
            rule = f"{device.info.name} must compute rightly by this variant, which is left out: a check of it failed"
            hint = "'blobnet doctor' checks variants again, 'blobnet doctor --clear' has all of them used again."
            warn(str(fault), rule, verdict=verdict, hint=hint)


def _first_failure(device: Device, plan: Plan) -> tuple[list[KernelCall], BuildError] | None:
    """The first call of a plan that cannot be built, with the others of its program; None if all are built."""
    programs = _keep_programs(device, plan)
    build_ahead(device, programs)
    for text, calls in programs.items():
        for call in {(call.source.entry, call.local_size): call for call in calls}.values():
            try:
                build(device, call, text)
            except BuildError as error:
                return [call, *calls], error
    return None


def _keep_programs(device: Device, plan: Plan) -> dict[str, list[KernelCall]]:
    """Make room for all programs of a plan, and return its calls by them."""
    programs = programs_of(call for _, call in plan.calls)
    device.programs.set_cache_limit(len(programs) + _OTHER_PROGRAMS)
    return programs


def programs_of(calls: Iterable[KernelCall]) -> dict[str, list[KernelCall]]:
    """Return the calls of every program, by its text."""
    programs: dict[str, list[KernelCall]] = {}
    for call in calls:
        programs.setdefault(call.assemble(), []).append(call)
    return programs


def build_ahead(device: Device, programs: Mapping[str, Sequence[KernelCall]]) -> None:
    """Build the programs of :func:`programs_of` side by side; who binds a call of one that fails gets its error."""

    def trials(text: str) -> list[Trial]:
        found = [_trial(call) for call in programs[text]]
        return list({(trial.entry, trial.local_size): trial for trial in found}.values())

    with progress_line() as advance:
        device.programs.build_ahead(programs, advance, trials)


def check_fits(plan: Plan, device: Device, reserved: int = 0) -> None:
    """Raises PlanError if a plan needs more memory than the device has; names the largest batch that fits."""
    info = device.info
    if not plan.fits(info.memory, info.largest_allocation, reserved):
        largest = plan.largest_batch(info.memory, info.largest_allocation, reserved)
        hint = f"the largest batch that fits is {largest}." if largest else "not even a batch of 1 fits."
        raise PlanError(
            f"plan for {info.name}",
            "all buffers must fit the device's memory",
            batch_size=plan.batch_size,
            needed=f"{(plan.bytes() + reserved) / 2**20:.1f} MiB",
            largest_buffer=f"{plan.largest_allocation() / 2**20:.1f} MiB",
            memory=f"{info.memory / 2**20:.1f} MiB",
            largest_allocation=f"{info.largest_allocation / 2**20:.1f} MiB",
            hint=f"{hint} {IN_PARTS}" if largest and plan.request.training else hint,
        )


def first_that_fits(device: Device, ways: Sequence[_Way], make: Callable[[_Way], _Made]) -> _Made:
    """Return what ``make`` gives for the first of some ways, batch sizes say, for which there is memory.

    A plan that fits a device may find less there: others use it too.

    Raises:
        PlanError, OutOfMemoryError: there is none for the last one either.
    """

    def made(way: _Way) -> _Made:
        found = make(way)
        device.queue.finish()  # Drivers may look for memory when it is first used.
        return found

    for way in ways[:-1]:
        with contextlib.suppress(PlanError, OutOfMemoryError):
            return made(way)
    return made(ways[-1])


def build(device: Device, call: KernelCall, text: str) -> None:
    """Builds a call's program from its text, if it is not built yet, and sees that the kernel is there.

    Raises:
        BuildError: the driver refuses the kernel or does not find it, or its work-group is too large for the device.
    """
    what = f"kernel {call.kernel} ({call.label})"
    items = math.prod(call.local_size or (1,))
    if items > device.largest_group:
        rule = f"its work-group must have no more work-items than {device.info.name} allows"
        raise BuildError(what, rule, items=items, most=device.largest_group)
    device.programs.kernel(text, call.source.entry, what)


def bind(device: Device, calls: Iterable[KernelCall], memory: Mapping[str, Any], batch: Batch) -> list[Launch]:
    """Kernel objects with all arguments set, for a batch; ``memory`` has a buffer for each storage."""
    calls = list(calls)
    build_ahead(device, programs_of(calls))  # Of what no plan holds: the optimizer's.
    return [Launch(device, call, call.assemble(), memory, batch) for call in calls]


class Executor:
    """A plan with memory on a device.

    Args:
        device: where to run.
        plan: what to run.
        shared: buffers to use besides, or instead of, own ones, by name: parameters of several plans, optimizer state.
        debug: check the promise after every launch; $BLOBNET_CHECK if None.
    """

    def __init__(
        self, device: Device, plan: Plan, shared: Mapping[str, Any] | None = None, *, debug: bool | None = None
    ) -> None:
        self.device = device
        self.plan = plan
        self.debug = is_checked(debug)
        self.buffers: dict[str, Any] = dict(shared or {})
        own = {name: buffer.bytes(plan.batch_size) for name, buffer in plan.buffers.items() if name not in self.buffers}
        self.buffers.update(zip(own, device.memory.allocate_together(list(own.values())), strict=True))
        self._placed = {**self.buffers, **{name: self.buffers[buffer] for name, buffer in plan.placed.items()}}
        if tables := plan.tables:
            self.write_array(TABLES, np.array(tables, np.int32))
        # The batch is what comes first, until somebody says otherwise.
        for entry in plan.request.entries:
            name = entry.buffer("rows")
            self.write_array(name, np.arange(plan.buffers[name].size(plan.batch_size), dtype=np.int32))
        for head in plan.request.heads:
            for name, values in head.start_values(plan.batch_size).items():
                self.write_array(name, values)
        self._bound: dict[str, list[Launch]] = {}
        self._takers: dict[str, list[Launch]] = {}
        self._batches: dict[str, Batch] = {}
        self._feeds: dict[str, StagingRing] = {}
        self._firsts: dict[str, int] = {}
        self._version: int | None = None

    def use(self, name: str, memory: Any) -> None:
        """Takes a buffer, in place of a persistent one if there is one of that name; or memory that is lent."""
        if self.buffers.get(name) is not memory:
            self.buffers[name] = self._placed[name] = memory
            self._feeds.pop(name, None)
            for item in self._launches_of(name):
                item.use(name, memory)

    def place(self, name: str, first: int) -> None:
        """Has launches that follow take a persistent buffer from element ``first`` on: ``rows``, ``labels``."""
        if self._firsts.get(name, 0) != first:
            self._firsts[name] = first
            for item in self._launches_of(name):
                item.place(name, first)

    def take(self, other: Executor, name: str) -> None:
        """Takes a persistent buffer as another executor of the plan has it for launches that follow."""
        self.use(name, other.buffers[name])
        self.place(name, other._firsts.get(name, 0))

    def _launches_of(self, name: str) -> list[Launch]:
        """The bound launches that take arrays from a persistent buffer."""
        if name not in self._takers:
            every = itertools.chain.from_iterable(self._bound.values())
            self._takers[name] = [item for item in every if item.takes(name)]
        return self._takers[name]

    # -- launches ----------------------------------------------------------------------------------------------------

    def bind(
        self, calls: Iterable[KernelCall], count: int, memory: Mapping[str, Any] = MappingProxyType({})
    ) -> list[Launch]:
        """Kernel objects with all arguments set, for a batch of ``count``; ``memory`` is in place of own buffers."""
        return self._bind(calls, Batch(count), memory)

    def _bind(
        self, calls: Iterable[KernelCall], batch: Batch, memory: Mapping[str, Any] = MappingProxyType({})
    ) -> list[Launch]:
        launches = bind(self.device, calls, {**self._placed, **memory}, batch)
        for item, (name, first) in itertools.product(launches, self._firsts.items()):
            item.place(name, first)
        return launches

    def prepare(self, version: int) -> None:
        """Makes anew what depends on parameters alone, if their ``version`` is not that of the last time."""
        if self._version != version:
            self.run(CONSTANT, self.plan.batch_size)
            self._version = version

    def run(self, phase: str, batch: Batch | int, behind: Sequence[tuple[int, Callable[[], None]]] = ()) -> None:
        """Launches one phase of the plan (``forward``, ``loss``, ``backward``) for a batch, or so many samples.

        ``behind``: how many of the launches come before what is called then, in their order.
        """
        batch = Batch(batch) if isinstance(batch, int) else batch
        launches, done = self.launches(phase, batch), 0
        for count, act in behind:
            self.launch(launches[done:count], batch.count)
            done = count
            act()
        self.launch(launches[done:], batch.count)

    def launches(self, phase: str, batch: Batch) -> list[Launch]:
        """Return the launches of :meth:`run`."""
        if phase not in self._bound:
            self._bound[phase] = self._bind(self.plan.phase(phase), batch)
            self._takers.clear()
        elif self._batches[phase] != batch:
            before = self._batches[phase]
            is_as_large = (before.count, before.room, before.apart) == (batch.count, batch.room, batch.apart)
            for item in self._bound[phase]:
                if item.takes_step or not is_as_large:
                    item.set_batch(batch)
        self._batches[phase] = batch
        return self._bound[phase]

    def launch(self, launches: Sequence[Launch], count: int) -> None:
        """Puts bound launches into the queue; in debug mode checks each of them.

        Raises:
            PromiseError: a launch broke the promise (debug mode).
        """
        if self.debug:
            for item in launches:
                self._launch_checked(item, count)
            return
        for number, item in enumerate(launches):
            item.enqueue()
            # A processor begins while the host puts the others into the queue.
            if number == 0 and self.device.is_host:
                self.device.queue.flush()

    def _launch_checked(self, item: Launch, count: int) -> None:
        """Launches, and compares all memory that the launch was given with what was there before."""
        places: list[Blob | Array] = [*item.call.blobs.values(), *item.call.arrays.values()]
        kinds = {place.storage: place.type for place in places}
        before = {name: self._whole(name, kind) for name, kind in kinds.items()}
        item.enqueue()
        self.device.queue.finish()
        after = {name: self._whole(name, kind) for name, kind in kinds.items()}
        arrays = {
            role: replace(array, offset=array.offset + item.firsts.get(array.storage, 0))
            for role, array in item.call.arrays.items()
        }
        check_promise(replace(item.call, arrays=arrays), before, after, count, self.plan.batch_size)

    def _whole(self, storage: str, kind: StorageType) -> npt.NDArray[Any]:
        """A host copy of the buffer that holds a storage, with its overrun."""
        buffer = self._placed[storage]
        values: npt.NDArray[Any] = self.device.memory.read(buffer, buffer.size // kind.number_size, kind.dtype)
        return values

    # -- reading and writing -----------------------------------------------------------------------------------------

    def memory(self, storage: str) -> npt.NDArray[Any]:
        """A host copy of the whole buffer that holds a storage, without its overrun."""
        buffer = self.plan.buffers[self.plan.placed[storage]]
        elements = buffer.type.cell * buffer.size(self.plan.batch_size)
        values: npt.NDArray[Any] = self.device.memory.read(self._placed[storage], elements, buffer.type.dtype)
        return values

    def buffer_of(self, storage: str) -> Any:
        """The device's buffer that holds a storage."""
        return self._placed[storage]

    def read_blob(self, blob: Blob, count: int) -> FloatArray:
        """The data of ``count`` samples of a blob: (count, units[, depth], height, width)."""
        elements = count * blob.numbers.memory_elements
        values = self.device.memory.read(self._placed[blob.storage], elements, blob.type.dtype)
        return np.ascontiguousarray(blob.type.decode(blob.read(values, count)))

    def write_blob(self, blob: Blob, values: FloatArray) -> None:
        """Sets the data of the first samples of a blob, and nothing around them; waits for the device."""
        count, buffer = len(values), self._placed[blob.storage]
        memory = self.device.memory.read(buffer, count * blob.numbers.memory_elements, blob.type.dtype)
        blob.write(memory, values)
        self.device.memory.write(buffer, memory)

    def write_array(self, name: str, values: npt.NDArray[Any]) -> None:
        """Fills the start of a persistent buffer, and waits for the device: ``parameters``."""
        self.device.memory.write(self.buffers[name], values)

    def feed(self, name: str, values: npt.NDArray[Any]) -> None:
        """Fills the start of a persistent buffer for the launches that follow: ``samples``, ``labels``, ``step``."""
        if name not in self._feeds:
            self._feeds[name] = StagingRing(self.device.memory, self.buffers[name])
        self._feeds[name].write(values)


def check_promise(
    call: KernelCall,
    before: Mapping[str, npt.NDArray[Any]],
    after: Mapping[str, npt.NDArray[Any]],
    count: int,
    batch_size: int,
) -> None:
    """Raises PromiseError if a launch changed anything but what it may write, or left a halo cell that is not 0.

    Args:
        call: what was launched.
        before: the memory of every storage that the call was given, with its overrun, before the launch.
        after: the same after it.
        count: samples in the batch.
        batch_size: samples of a whole batch, for which arrays with samples side by side are laid out.
    """
    source = call.source
    for storage in before:
        blobs = [blob for role, blob in call.blobs.items() if blob.storage == storage]
        written = [blob for role, blob in call.blobs.items() if blob in blobs and source.blobs[role] != "read"]
        allowed = np.zeros(after[storage].size, dtype=bool)
        halo = np.zeros(after[storage].size, dtype=bool)
        for blob in written:
            layout = blob.numbers
            allowed[: count * layout.memory_elements] |= _data_mask(blob, count)
            plane = np.tile(layout.halo_mask(), layout.unit_count)
            for n in range(count):
                first = n * layout.memory_elements + layout.unit_offset * layout.unit_memory_elements
                halo[first : first + plane.size] |= plane
        for role, array in call.arrays.items():
            if array.storage == storage and source.arrays[role] != "read":
                # What each shard has for itself lies apart as full shards have it.
                is_apart = call.shards and not array.persistent
                samples = batch_size if array.side_by_side or is_apart else count
                step = call.shards.moved.get(role, (0, 0))[0] if call.shards and array.persistent else 0
                for shard in range(call.shards.count if step and call.shards else 1):
                    allowed[array.offset + shard * step : array.end(samples) + shard * step] = True
        bits = f"u{after[storage].itemsize}"
        changed = before[storage].view(bits) != after[storage].view(bits)
        for bad, rule in (
            (halo & (after[storage] != 0), "every halo cell must be exactly 0 after a launch"),
            (changed & ~allowed & ~halo, "a launch may change only the data of the blobs and arrays that it writes"),
        ):
            if bad.any():
                first = int(np.flatnonzero(bad)[0])
                raise PromiseError(
                    f"{call.label} ({call.kernel})",
                    rule,
                    storage=storage,
                    cell=cell(blobs[0], first) if blobs else first,
                    value=after[storage][first],
                    before=before[storage][first],
                    cells=int(bad.sum()),
                )


def _data_mask(blob: Blob, count: int) -> npt.NDArray[np.bool_]:
    mask = np.zeros(count * blob.numbers.memory_elements, dtype=bool)
    blob.numbers.data(mask, count)[...] = True
    return mask


def cell(blob: Blob, index: int) -> str:
    """A number of the storage as n, memory unit, its plane if it has several, memory row and memory column."""
    layout = blob.numbers
    n, rest = divmod(index, layout.memory_elements)
    unit, rest = divmod(rest, layout.unit_memory_elements)
    plane, rest = divmod(rest, layout.plane_memory_elements)
    row, column = divmod(rest, layout.width.memory)
    of_unit = f"memory unit={unit}" + (f", memory plane={plane}" if layout.depth.memory > 1 else "")
    return f"(n={n}, {of_unit}, memory row={row}, memory column={column})"
