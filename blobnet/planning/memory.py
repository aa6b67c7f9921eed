"""Pass 13: a buffer for every storage: lifetimes, reuse, and zeroing of halos where reused memory changes geometry."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property

from blobnet.errors import PlanError
from blobnet.hardware.device_model import DeviceModel
from blobnet.launch.kernel_call import CONSTANT, ZERO_HALO, Blob, GlobalSize, KernelCall
from blobnet.launch.work_sizes import row_group
from blobnet.memory.blob import FLOAT32, StorageType
from blobnet.network.parameters import READ_OVERRUN
from blobnet.planning.constants import PhasedCall
from blobnet.planning.request import Request
from blobnet.planning.sharding import result_sizes

#: The most elements of a sample in a buffer, and of all parameters: kernels count them, with some to spare, in an int.
MAX_ELEMENTS = 1 << 30
#: Bytes that a launch less is worth, of those that clear halos.
_CLEAR_BYTES = 2 << 20
#: Words of the ``step`` array: seed (low, high), step number, and one to spare.
STEP_WORDS = 4


@dataclass(frozen=True)
class Buffer:
    """One allocation: room for ``elements + count * per_sample`` elements of ``type`` and READ_OVERRUN more.

    It has room for each of ``others`` too, ``elements`` and ``per_sample`` of what lies there at other times.
    """

    name: str
    elements: int
    per_sample: int
    type: StorageType = field(default=FLOAT32, kw_only=True)
    others: tuple[tuple[int, int], ...] = field(default=(), kw_only=True)

    def bytes(self, count: int) -> int:
        """Bytes for a batch of ``count``."""
        return self.type.itemsize * (self.size(count) + READ_OVERRUN)

    def size(self, count: int) -> int:
        """Elements that hold something for a batch of ``count``."""
        sizes = [(self.elements, self.per_sample), *self.others]
        return max(elements + count * per_sample for elements, per_sample in sizes)


@dataclass(frozen=True)
class Occupant(Buffer):
    """A storage or array, the first and the last call that use it, and its ``blob``, of all units, if it has a halo."""

    first: int
    last: int
    blob: Blob | None = None

    @cached_property
    def plane(self) -> tuple[object, ...] | None:
        """The geometry of its planes."""
        return self.blob.layout.plane if self.blob else None

    @cached_property
    def has_halo(self) -> bool:
        """True if there are zeros around its planes."""
        return self.blob is not None and self.blob.layout.halo_elements > 0


@dataclass(frozen=True)
class Memory:
    """The buffers of a plan, and where each storage lies.

    Attributes:
        calls: all of them, with those that clear halos.
        placed: the name of the buffer of each storage, by name.
        buffers: by name.
    """

    calls: tuple[PhasedCall, ...]
    placed: Mapping[str, str]
    buffers: Mapping[str, Buffer]


class _Slot:
    """Storages that lie in one buffer, at different times.

    Attributes:
        members: the storages, at least one.
        room: elements for the batch, which none of them has more of.
        planes: the geometries of their planes.
        has_halo: whether there are zeros around the planes of any of them.
        longest: the first and the last call of the one that lives longest.
    """

    def __init__(self, occupant: Occupant, room: int) -> None:
        self.members: list[Occupant] = []
        self.room, self.planes, self.has_halo = room, set[object](), False
        self.longest = (0, -1)
        self._lives: list[tuple[int, int]] = []
        self.add(occupant)

    def is_free_for(self, occupant: Occupant) -> bool:
        """Return True if none of its storages lives at the same time."""
        place = bisect_left(self._lives, (occupant.first, -1))
        before, behind = self._lives[max(0, place - 1) : place], self._lives[place : place + 1]
        return all(last < occupant.first for _, last in before) and all(occupant.last < first for first, _ in behind)

    def to_clear(self) -> list[Occupant]:
        """Return those whose halos others leave filled with values."""
        return [item for item in self.members if item.has_halo] if len(self.planes) > 1 else []

    def add(self, occupant: Occupant) -> None:
        """Puts one more in, that lives at another time than the others."""
        life = occupant.first, occupant.last
        self.members.append(occupant)
        insort(self._lives, life)
        self.longest = max(self.longest, life, key=lambda item: item[1] - item[0])
        self.planes.add(occupant.plane)
        self.has_halo |= occupant.has_halo


class _Slots:
    """Slots for storages of one type, the largest first, in a tree whose nodes know when all slots below are busy.

    Most of a training lives across one moment, so a search for free slots passes over most of them at once.
    """

    def __init__(self) -> None:
        self.slots: list[_Slot] = []
        self._busy: list[list[tuple[int, int]]] = [[]]  # Of each height, the first and the last call, by place.

    def append(self, slot: _Slot) -> None:
        """Add a slot, no larger than the others."""
        self.slots.append(slot)
        self._changed(len(self.slots) - 1)

    def add(self, occupant: Occupant, takes: Callable[[_Slot], bool]) -> bool:
        """Put a storage into the first of the least free slots that are right for it; False if there is none."""
        number = self._free(occupant, takes, range(len(self.slots)), last_first=True)
        if number is None:
            return False
        begin = bisect_left(self.slots, -self.slots[number].room, key=lambda slot: -slot.room)
        first = self._free(occupant, takes, range(begin, number))
        number = number if first is None else first
        self.slots[number].add(occupant)
        self._changed(number)
        return True

    def _free(
        self, occupant: Occupant, takes: Callable[[_Slot], bool], numbers: range, *, last_first: bool = False
    ) -> int | None:
        """Return the number of the first or the last slot among ``numbers`` that is free for a storage."""
        nodes = [(len(self._busy) - 1, 0)]
        while nodes:
            height, place = nodes.pop()
            below = range(place << height, (place + 1) << height)
            if place >= len(self._busy[height]) or below.start >= numbers.stop or below.stop <= numbers.start:
                continue
            first, last = self._busy[height][place]
            if first <= min(last, occupant.last) and occupant.first <= last:
                continue
            if height:
                children = [(height - 1, 2 * place), (height - 1, 2 * place + 1)]
                nodes += children if last_first else children[::-1]
            elif takes(self.slots[place]) and self.slots[place].is_free_for(occupant):
                return place
        return None

    def _changed(self, number: int) -> None:
        """Tell the tree that a slot has one more member."""
        life, place = self.slots[number].longest, number
        for height in range(len(self._busy) + 1):
            if height == len(self._busy):
                self._busy.append([])
            level = self._busy[height]
            level[place : place + 1] = [life]
            if len(level) == 1:
                break
            pair = level[place & ~1 : (place | 1) + 1]
            life, place = (max(first for first, _ in pair), min(last for _, last in pair)), place >> 1


def sample_slots(model: DeviceModel) -> int:
    """Batches of samples that a device holds: one that is not the host fetches the next one while it works."""
    return 1 if model.is_host else 2


def allocate(
    request: Request, calls: Sequence[PhasedCall], kept: Set[str] = frozenset(), last: Set[str] = frozenset()
) -> Memory:
    """Buffers for all that calls use; what callers read is ``kept`` until the forward calls are done, or the ``last``.

    Raises:
        PlanError: a sample or the parameters have more elements than kernels can count.
    """
    found, count = occupants(calls, kept, last), request.batch_size
    slots = _share_buffers(found, request.reuse, count)
    clears = sum(len(slot.to_clear()) for slot in slots)
    if clears and not request.recompute:  # Else memory is what counts.
        apart = _share_buffers(found, request.reuse, count, keep_planes=True)
        # One sample feels each launch, and memory is no concern then.
        limit = 0 if request.training else request.parameters.type.itemsize * request.parameters.elements
        limit += _CLEAR_BYTES * clears
        slots = apart if _bytes(apart) - _bytes(slots) <= limit else slots
    cleared: dict[int, list[KernelCall]] = {}
    for item in (item for slot in slots for item in slot.to_clear()):
        assert item.blob is not None
        cleared.setdefault(item.first, []).append(zero_halo(item.blob, request.tuning.model))
    shared = [
        Buffer(
            first.name,
            first.elements,
            first.per_sample,
            type=first.type,
            others=tuple((item.elements, item.per_sample) for item in others),
        )
        for first, *others in (slot.members for slot in slots)
    ]
    persistent = _persistent(request, calls)
    buffers = {buffer.name: buffer for buffer in (*shared, *persistent)}
    _check_counts(request, [*found, *persistent])
    return Memory(
        calls=tuple(
            (phase, made) for position, (phase, call) in enumerate(calls) for made in (*cleared.get(position, ()), call)
        ),
        placed={item.name: slot.members[0].name for slot in slots for item in slot.members}
        | {buffer.name: buffer.name for buffer in persistent},
        buffers=buffers,
    )


def occupants(
    calls: Sequence[PhasedCall], kept: Set[str] = frozenset(), last: Set[str] = frozenset()
) -> list[Occupant]:
    """Every storage and layer array that the calls name, in the order of first use; the rest is as for allocate."""
    found: dict[str, Occupant] = {}
    ends: dict[str, int] = {}
    for position, (_, call) in enumerate(calls):
        for blob in call.blobs.values():
            name, layout = blob.storage, blob.layout
            if name not in found:
                whole = replace(blob, layout=replace(layout, unit_offset=0, unit_count=layout.unit_memory_count))
                own = None if blob.is_memory else whole
                found[name] = Occupant(name, 0, layout.memory_elements, position, position, own, type=blob.type)
            ends[name] = position
        for array in call.arrays.values():
            if not array.persistent:
                name, elements = array.storage, array.end(0)
                if name not in found:
                    found[name] = Occupant(name, elements, array.per_sample, position, position, type=array.type)
                elif elements > found[name].elements:
                    found[name] = replace(found[name], elements=elements)
                ends[name] = position
    forward = max((position for position, (phase, _) in enumerate(calls) if phase == "forward"), default=0)
    for name in kept & found.keys():
        ends[name] = max(ends[name], forward)
    for name in last & found.keys():
        ends[name] = len(calls) - 1
    for name in {name for phase, call in calls if phase == CONSTANT for name in call.storages("write", "update")}:
        # What other calls read is there for every batch; what only makes more of the kind is not needed any more.
        if calls[ends[name]][0] != CONSTANT:
            ends[name] = len(calls)
    return [replace(item, last=ends[name]) for name, item in found.items()]


def _share_buffers(
    occupants: Sequence[Occupant], reuse: bool, batch_size: int, *, keep_planes: bool = False
) -> list[_Slot]:
    """Put storages whose lifetimes do not meet into one buffer; return them in the order of first use.

    The largest come first, or one that lives long would take the place of a large one that is needed again. A blob
    takes the least free buffer of its own plane geometry, whose halo is still zero, failing that the least free one of
    any. With ``keep_planes`` it takes none in which a halo would have to be cleared. Arrays never share with blobs:
    halos would be cleared at every step.

    Args:
        occupants: in the order of first use.
        reuse: False puts each in a buffer of its own.
        batch_size: the samples to make room for.
        keep_planes: as above.
    """
    slots: list[_Slot] = []
    of_planes, of_kind = defaultdict[object, _Slots](_Slots), defaultdict[object, _Slots](_Slots)
    for occupant in sorted(occupants, key=lambda item: -item.size(batch_size)):
        kind = occupant.type, occupant.blob is None
        own, every = of_planes[kind, occupant.plane], of_kind[kind]
        if reuse and own.add(occupant, lambda slot: len(slot.planes) == 1):
            continue
        takes_any = not (keep_planes and occupant.has_halo)
        if reuse and takes_any and every.add(occupant, lambda slot: not (keep_planes and slot.has_halo)):
            continue
        slots.append(_Slot(occupant, occupant.size(batch_size)))
        own.append(slots[-1])
        every.append(slots[-1])
    turns = {item.name: turn for turn, item in enumerate(occupants)}
    for slot in slots:
        slot.members.sort(key=lambda item: turns[item.name])
    return sorted(slots, key=lambda slot: turns[slot.members[0].name])


def _bytes(slots: Iterable[_Slot]) -> int:
    return sum(slot.members[0].type.itemsize * slot.room for slot in slots)


def zero_halo(blob: Blob, model: DeviceModel) -> KernelCall:
    """The call that clears the halo of a blob."""
    layout = blob.layout
    leading = layout.height.before * layout.width.memory + layout.width.before
    gaps = (layout.height.size - 1) * (layout.width.memory - layout.width.size)
    local = row_group(model, max(leading, gaps, 1)) if model.is_simt else (1, 1, 1)
    size = GlobalSize(local[0], 1, layout.unit_count * layout.depth.memory)
    return KernelCall(ZERO_HALO, f"{blob.storage} zero halo", size, {"OUTPUT": blob}, local_size=local)


def _persistent(request: Request, calls: Sequence[PhasedCall]) -> list[Buffer]:
    """Buffers that are not the plan's to reuse."""
    sizes = {"parameters": (request.parameters.elements, 0)}
    for entry in request.entries:
        sizes |= entry.memory(sample_slots(request.tuning.model))
    sizes["step"] = (STEP_WORDS, 0)
    sizes |= {name: (request.at_once * size, 0) for name, size in result_sizes(request).items()}
    for head in request.heads:
        sizes |= head.memory()
    others: dict[str, int] = {}
    for array in (array for _, call in calls for array in call.arrays.values() if array.persistent):
        others[array.storage] = max(array.end(0), others.get(array.storage, 0))
    sizes |= {name: (end, 0) for name, end in others.items() if name not in sizes}
    types = {"parameters": request.parameters.type}
    return [Buffer(name, *size, type=types.get(name, FLOAT32)) for name, size in sizes.items()]


def _check_counts(request: Request, buffers: Iterable[Buffer]) -> None:
    counts = {"parameters": request.parameters.elements}
    counts |= {f"a sample of {buffer.name}": buffer.per_sample for buffer in buffers}
    largest = max(counts, key=lambda name: counts[name])
    if counts[largest] > MAX_ELEMENTS:
        rule = f"a sample of a blob, with its halo, and all parameters must have at most {MAX_ELEMENTS} elements"
        hint = "use smaller pictures, fewer units, or pool before Flatten."
        raise PlanError("plan", rule, of=largest, elements=counts[largest], hint=hint)
