"""Pass 8: blobs that the backward pass computes again from what it keeps anyway, in place of keeping them too.

The output of a norm is its input, scaled. The norm's own gradient needs the input; so the output, which the next
layer's gradient needs, can be made from it a second time: by the same launch, which gives the same bits, or where that
made the statistics too, by one that computes each number in the same way.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence, Set
from dataclasses import replace

from blobnet.launch.kernel_call import Blob, KernelCall
from blobnet.planning.combining import Uses
from blobnet.planning.constants import PhasedCall
from blobnet.planning.request import Request

#: What follows a storage's name in that of what is computed again.
AGAIN = " again"
#: Bytes at most that a launch may move for a byte that it writes: an input, a residual and the output, with some room.
_MOST_MOVED = 4


def with_recomputed(request: Request, calls: Sequence[PhasedCall]) -> list[PhasedCall]:
    """Return the calls of a plan, if it asks for that with some twice, the second time before their blob is read again.

    Those are forward calls that alone write a blob, move little more than that, and read other blobs that are still
    there, as they were, when the backward pass first reads it.
    """
    seconds, made = _seconds(request, calls) if request.recompute else {}, list[PhasedCall]()
    for place, (phase, call) in enumerate(calls):
        made += [(phase, second) for before, second in seconds.values() if before == place]
        own = replace(call, again=None) if call.again else call
        made.append((phase, _renamed(own, seconds.keys()) if phase == "backward" else own))
    return made


def _seconds(request: Request, calls: Sequence[PhasedCall]) -> dict[str, tuple[int, KernelCall]]:
    """Return the calls to make a second time, by their blobs' storages, each with the place of the call behind it."""
    uses, writers, places = Uses(), Counter[str](), defaultdict[str, list[int]](list)
    for place, (_, call) in enumerate(calls):
        uses.add(place, call)
        writers.update(call.storages("write", "update"))
        for name in call.storages("read", "write", "update"):
            places[name].append(place)
    found = dict[str, tuple[int, KernelCall]]()
    for place, (phase, call) in enumerate(calls):
        cheap = call.again or call
        name = _cheap_result(cheap, request.batch_size) if phase == "forward" else ""
        late = [other for other in places[name] if calls[other][0] == "backward"]
        if late and writers[name] == 1:
            second = _renamed(cheap, {name})
            blobs = {blob.storage for blob in second.blobs.values()} - second.storages("write", "update")
            arrays = {array.storage for array in second.arrays.values() if not array.persistent}
            are_there = blobs.isdisjoint(found) and all(places[other][-1] >= late[0] for other in blobs | arrays)
            # NOTE: samples, which the first blob is made of, may be those of the next batch by then.
            if blobs and are_there and not uses.bind(second, place + 1):
                second = replace(second, owner=call.owner, vertex=call.vertex, direction=call.direction)
                found[name] = late[0], replace(second, label=call.label + AGAIN)
    return found


def _cheap_result(call: KernelCall, batch_size: int) -> str:
    """Return the storage that a call fills, if it is one blob and takes little to make; else an empty text."""
    written = call.storages("write", "update")
    found = [blob for blob in call.blobs.values() if blob.storage in written and not blob.is_memory]
    if len(written) != 1 or not found or call.cost is not None or call.samples is not None:
        return ""
    layout = found[0].layout
    size = batch_size * found[0].type.itemsize * layout.unit_elements * layout.unit_memory_count
    return found[0].storage if call.bytes(batch_size) <= _MOST_MOVED * size else ""


def _renamed(call: KernelCall, names: Set[str]) -> KernelCall:
    """Return a call with the second blobs in place of those of these storages."""

    def second(blob: Blob) -> Blob:
        return replace(blob, storage=blob.storage + AGAIN) if blob.storage in names else blob

    if names.isdisjoint(blob.storage for blob in call.blobs.values()):
        return call
    return replace(call, blobs={role: second(blob) for role, blob in call.blobs.items()})
