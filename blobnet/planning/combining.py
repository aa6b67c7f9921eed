"""Pass 11: launches that do the work of several calls, for GPUs, whose drivers take microseconds for each launch."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from blobnet.launch.kernel_call import CONSTANT, TABLES, Array, GlobalSize, KernelCall, rounded_up
from blobnet.planning.constants import PhasedCall
from blobnet.planning.request import Request

#: Bytes of the arrays of calls that are combined, which live together then and would else take turns: this part of all
#: blobs, but no less and no more than so much.
_PART, MIN_BYTES, MAX_BYTES = 64, 8 << 20, 32 << 20
#: Arrays in one storage begin at multiples of so many elements: kernels load vectors, and lines of caches.
_ALIGNMENT = 32


def with_combined(request: Request, calls: Sequence[PhasedCall]) -> tuple[PhasedCall, ...]:
    """The calls of a plan, with one in place of several, where the first or the last of these was.

    They are of one phase, and of a kernel whose header allows it, and nothing between them depends on them, nor they on
    that. Their arrays in memory that a plan may reuse lie side by side in one storage. What hardly ever runs, calls of
    parameters that no step changes, stays apart.
    """
    if not request.tuning.model.is_simt:
        return tuple(calls)
    blobs = {blob.storage: blob for _, call in calls for blob in call.blobs.values()}.values()
    size = request.batch_size * sum(blob.type.itemsize * blob.layout.memory_elements for blob in blobs)
    room = min(MAX_BYTES, max(MIN_BYTES, size // _PART))
    rare = "" if request.in_batches else CONSTANT
    early = _combined(calls, _groups(calls, room, rare))
    last = len(early) - 1
    late = _combined(early, [[last - place for place in places] for places in _groups(early[::-1], room, rare)])
    return tuple(_with_tables(late))


class _Use(NamedTuple):
    """The use of a storage by a call at a place: of so many elements, of a sample's where a blob lies there."""

    place: int
    first: float
    end: float

    def meets(self, other: _Use) -> bool:
        return self.first < other.end and other.first < self.end


class Uses:
    """The uses of the calls so far."""

    def __init__(self) -> None:
        self._read = defaultdict[str, list[_Use]](list)
        self._written = defaultdict[str, list[_Use]](list)

    def add(self, place: int, call: KernelCall) -> None:
        for storage, use, writes in _uses(place, call):
            (self._written if writes else self._read)[storage].append(use)

    def bind(self, call: KernelCall, since: int) -> bool:
        """Return True if a call must come after one of those from a place on."""
        for storage, use, writes in _uses(since, call):
            for known in (self._written, self._read) if writes else (self._written,):
                for item in reversed(known[storage]):
                    if item.place < since:
                        break
                    if item.meets(use):
                        return True
        return False


def _uses(place: int, call: KernelCall) -> Iterator[tuple[str, _Use, bool]]:
    """The storages that a call uses, what it uses of them, and whether it writes there."""
    source = call.source
    for role, blob in call.blobs.items():
        # NOTE: units are not the same for all: to some kernels a whole blob is one.
        layout, size = blob.layout, blob.type.cell * blob.layout.unit_memory_elements
        first, end = (0, math.inf) if blob.is_memory else (layout.unit_offset, layout.unit_offset + layout.unit_count)
        yield blob.storage, _Use(place, size * first, size * end), source.blobs[role] != "read"
    for role, array in call.arrays.items():
        is_known = array.elements and not array.per_sample
        yield (
            array.storage,
            _Use(place, array.offset, array.end(0) if is_known else math.inf),
            source.arrays[role] != "read",
        )


def _combined(calls: Sequence[PhasedCall], groups: Iterable[Sequence[int]]) -> list[PhasedCall]:
    """The calls, with one in place of those of each group, given by their places: at the first that is given."""
    moved, made, gone = dict[str, Array](), dict[int, KernelCall](), set[int]()
    for places in groups:
        members = [calls[place][1] for place in sorted(places)]
        for role, first in members[0].arrays.items():
            arrays, end = [call.arrays[role] for call in members], 0
            for array in arrays if not first.persistent else ():
                storage = f"{first.storage} and {len(members) - 1} more"
                moved[array.storage] = replace(array, storage=storage, offset=end)
                end = rounded_up(end + array.elements, _ALIGNMENT)
        made[places[0]] = _one_of([_with_moved(call, moved) for call in members])
        gone.update(places[1:])
    return [
        (phase, made.get(place) or _with_moved(call, moved))
        for place, (phase, call) in enumerate(calls)
        if place not in gone
    ]


def _alone(calls: Sequence[PhasedCall]) -> set[str]:
    """Storages of memory that the plan places as it likes, each of which is one array for all calls that use it."""
    known, others = dict[str, Array](), set[str]()
    for _, call in calls:
        others |= {blob.storage for blob in call.blobs.values()}
        for array in call.arrays.values():
            is_plain = not (array.persistent or array.per_sample or array.offset)
            if not is_plain or known.setdefault(array.storage, array) != array:
                others.add(array.storage)
    return known.keys() - others


def _groups(calls: Sequence[PhasedCall], room: int, rare: str) -> list[list[int]]:
    """The places of calls of one kind that may all be made where the first of them is.

    ``room``: bytes at most of their arrays that lie in memory of the plan's. ``rare``: a phase whose calls stay apart.
    """
    alone, uses = _alone(calls), Uses()
    found, left, last = list[list[int]](), dict[int, int](), dict[object, list[int]]()
    for place, (phase, call) in enumerate(calls):
        own = {role: array for role, array in call.arrays.items() if not array.persistent}
        if call.source.combined and phase != rare and all(array.storage in alone for array in own.values()):
            size = sum(
                array.type.itemsize * array.elements
                for role, array in own.items()
                if phase != CONSTANT or call.source.arrays[role] == "read"  # What it makes lives for good.
            )
            kind = phase, *_kind(call)
            group = last.get(kind)
            if group and size <= left[group[0]] and not uses.bind(call, group[0]):
                group.append(place)
            else:
                group = last[kind] = [place]
                left[place] = room
                found.append(group)
            left[group[0]] -= size
            alone.difference_update(array.storage for array in own.values())
        uses.add(place, call)
    return [places for places in found if len(places) > 1]


def _kind(call: KernelCall) -> tuple[object, ...]:
    """Return the key that calls share if one launch may make them."""
    facts = {**call.macros, **call.tunables}
    program = [(name, value) for name, value in sorted(facts.items()) if name not in call.source.sizes]
    memory = [(array.storage if array.persistent else "", array.type) for array in call.arrays.values()]
    return call.kernel, call.local_size, *program, *memory


def _one_of(calls: list[KernelCall]) -> KernelCall:
    """The call in place of several, without its table's place."""
    first, source, arrays = calls[0], calls[0].source, dict[str, Array]()
    for role, array in first.arrays.items():
        own = [call.arrays[role] for call in calls]
        start, end = min(item.offset for item in own), max(item.end(0) for item in own)
        arrays[role] = replace(array, offset=start, elements=end - start)
    width = sum(call.groups for call in calls) * (first.local_size or (1,))[0]
    macros = {name: value for name, value in first.macros.items() if name not in source.sizes}
    return KernelCall(
        first.kernel,
        f"{source.combined} ({len(calls)} at once)",
        GlobalSize(width, per_sample=False),
        arrays=arrays,
        macros={**macros, "ROWS": len(calls)},
        tunables=first.tunables,
        local_size=first.local_size,
        combines=tuple(calls),
        generated=source.of_several,
    )


def _with_moved(call: KernelCall, moved: Mapping[str, Array]) -> KernelCall:
    """A call with other arrays in place of those that were moved, by their storage."""
    if not any(array.storage in moved for array in call.arrays.values()):
        return call
    return replace(call, arrays={role: moved.get(array.storage, array) for role, array in call.arrays.items()})


def _with_tables(calls: Sequence[PhasedCall]) -> Iterator[PhasedCall]:
    """The calls with a table for each that needs one, one after the other."""
    end = 0
    for phase, call in calls:
        if call.combines:
            table = Array(TABLES, len(call.table), offset=end, persistent=True)
            end += table.elements
            yield phase, replace(call, arrays={**call.arrays, "TABLE": table})
        else:
            yield phase, call
