"""Pass 11: a buffer for every storage: lifetimes, reuse, and zeroing of halos where reused memory changes geometry."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property

from blobnet.errors import PlanError
from blobnet.hardware.device_model import DeviceModel
from blobnet.launch.kernel_call import CONSTANT, ZERO_HALO, Blob, GlobalSize, KernelCall, row_group
from blobnet.memory.blob import FLOAT32, StorageType
from blobnet.network.ends import TOTALS
from blobnet.network.parameters import READ_OVERRUN
from blobnet.planning.constants import PhasedCall
from blobnet.planning.request import Request
from blobnet.planning.statistics import STATISTICS

#: The most elements of a sample in a buffer, and of all parameters: kernels count them, with some to spare, in an int.
MAX_ELEMENTS = 1 << 30
#: Words of the ``step`` array: seed (low, high), step number, and one to spare.
STEP_WORDS = 4


@dataclass(frozen=True)
class Buffer:
    """One allocation: room for ``elements + count * per_sample`` elements of ``type`` and READ_OVERRUN more."""

    name: str
    elements: int
    per_sample: int
    type: StorageType = field(default=FLOAT32, kw_only=True)

    def bytes(self, count: int) -> int:
        """Bytes for a batch of ``count``."""
        return self.type.itemsize * (self.size(count) + READ_OVERRUN)

    def size(self, count: int) -> int:
        """Elements that hold something for a batch of ``count``."""
        return self.elements + count * self.per_sample


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


@dataclass
class _Slot:
    """Storages that lie in one buffer, at different times.

    Attributes:
        members: the storages, at least one.
        room: elements of the largest for the batch.
        planes: the geometries of their planes.
    """

    members: list[Occupant]
    room: int
    planes: set[tuple[object, ...] | None]

    def __post_init__(self) -> None:
        # When its storages live, in order: no two of them at once.
        self._lives = sorted((item.first, item.last) for item in self.members)

    def is_free_for(self, occupant: Occupant) -> bool:
        """Return True if none of its storages lives at the same time."""
        place = bisect_left(self._lives, (occupant.first, -1))
        before, behind = self._lives[max(0, place - 1) : place], self._lives[place : place + 1]
        return all(last < occupant.first for _, last in before) and all(occupant.last < first for first, _ in behind)

    def to_clear(self, *more: Occupant) -> list[Occupant]:
        """Return those, of it and of ``more`` in it, whose halos others leave filled with values."""
        planes = self.planes.union(item.plane for item in more)
        return [item for item in (*self.members, *more) if item.has_halo] if len(planes) > 1 else []

    def add(self, occupant: Occupant, size: int) -> None:
        self.members.append(occupant)
        insort(self._lives, (occupant.first, occupant.last))
        self.planes.add(occupant.plane)
        self.room = max(self.room, size)


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
    if not request.training:
        # Launches that clear halos take time that one sample feels, and memory is no concern then.
        apart = _share_buffers(found, request.reuse, count, keep_planes=True)
        limit = request.parameters.type.itemsize * request.parameters.elements
        slots = apart if _bytes(apart) - _bytes(slots) <= limit else slots
    cleared: dict[int, list[KernelCall]] = {}
    for item in (item for slot in slots for item in slot.to_clear()):
        assert item.blob is not None
        cleared.setdefault(item.first, []).append(zero_halo(item.blob, request.tuning.model))
    shared = [
        Buffer(
            slot.members[0].name,
            max(item.elements for item in slot.members),
            max(item.per_sample for item in slot.members),
            type=slot.members[0].type,
        )
        for slot in slots
    ]
    persistent = _persistent(request, calls)
    buffers = {buffer.name: buffer for buffer in (*shared, *persistent)}
    _check_counts(request, buffers.values())
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
    """Puts storages whose lifetimes do not meet together, each list for one buffer.

    A storage takes the free buffer of the same plane geometry (its halo is still zero) that wastes least, else any
    free one that is large enough, else the largest free one, grown; with ``keep_planes`` none where a halo would have
    to be cleared.
    """
    slots: list[_Slot] = []
    # The largest arrays first, or one that lives long would take the place of a large one that is needed again.
    arrays = sorted((item for item in occupants if not item.blob), key=lambda item: -item.size(batch_size))
    for occupant in [item for item in occupants if item.blob] + arrays:
        size, planes, is_array = occupant.size(batch_size), {occupant.plane}, occupant.blob is None
        free = [
            slot
            for slot in slots
            if reuse
            # Arrays would leave a blob's halo to be zeroed at every step.
            and (slot.members[0].blob is None) == is_array
            and slot.members[0].type == occupant.type
            and slot.is_free_for(occupant)
            and not (keep_planes and slot.to_clear(occupant))
        ]
        wastes = [(slot.room < size, slot.planes != planes, abs(slot.room - size)) for slot in free]
        if free:
            free[wastes.index(min(wastes))].add(occupant, size)
        else:
            slots.append(_Slot([occupant], size, planes))
    return slots


def _bytes(slots: Iterable[_Slot]) -> int:
    return sum(slot.members[0].type.itemsize * slot.room for slot in slots)


def zero_halo(blob: Blob, model: DeviceModel) -> KernelCall:
    """The call that clears the halo of a blob."""
    layout = blob.layout
    leading = layout.unit_memory_height_offset * layout.unit_memory_width + layout.unit_memory_width_offset
    gaps = (layout.unit_height - 1) * (layout.unit_memory_width - layout.unit_width)
    local = row_group(model, max(leading, gaps, 1)) if model.is_simt else (1, 1, 1)
    size = GlobalSize(local[0], 1, layout.unit_count * layout.unit_memory_depth)
    return KernelCall(ZERO_HALO, f"{blob.storage} zero halo", size, {"OUTPUT": blob}, local_size=local)


def _persistent(request: Request, calls: Sequence[PhasedCall]) -> list[Buffer]:
    """Buffers that are not the plan's to reuse."""
    sizes = {"parameters": (request.parameters.elements, 0)}
    for entry in request.entries:
        sizes |= entry.memory(sample_slots(request.tuning.model))
    sizes["step"] = (STEP_WORDS, 0)
    if request.training:
        sizes["gradients"] = (max(1, request.parameters.trainable_elements), 0)
    if request.statistics:
        sizes[STATISTICS] = (len(request.statistics), 0)
    if request.heads:
        sizes["totals"] = (len(request.heads) * TOTALS, 0)
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
