"""Pass 9: the calls whose results depend on parameters alone that no step of training changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from blobnet.launch.kernel_call import CONSTANT, KernelCall
from blobnet.launch.kernel_source import BATCH_SCALARS

#: A storage, and for parameters where one begins in it.
_Place = tuple[str, int]
#: A call and its phase.
PhasedCall = tuple[str, KernelCall]


def with_constants(calls: Sequence[PhasedCall], trained: int) -> tuple[PhasedCall, ...]:
    """The calls of a plan, those in front that need not run again until parameters change.

    Their phase is ``constant``: they read parameters that nothing in the plan changes, or what other such calls made of
    them, and nothing about the batch; and nobody else writes where they do.

    Args:
        calls: in their order.
        trained: elements of the parameters that the optimizer changes, which lie in front of all others.
    """
    writers = Counter(place for _, call in calls for place in _places(call, "write", "update"))
    known: set[_Place] = set()

    def changes(place: _Place) -> bool:
        storage, offset = place
        return place not in known and (storage != "parameters" or offset < trained or place in writers)

    first, others = [], []
    for phase, call in calls:
        written = _places(call, "write", "update")
        batch = set(call.source.scalars) & set(BATCH_SCALARS)
        depends = any(map(changes, _places(call, "read", "update"))) or batch or call.global_size.grows
        if depends or not written or any(writers[place] > 1 for place in written):
            others.append((phase, call))
        else:
            known |= written
            first.append((CONSTANT, call))
    return (*first, *others)


def _places(call: KernelCall, *accesses: str) -> set[_Place]:
    """Return the places that a call uses in one of these ways."""
    arrays = {
        (array.storage, array.offset)
        for role, array in call.arrays.items()
        if array.storage == "parameters" and call.source.arrays[role] in accesses
    }
    return arrays | {(storage, 0) for storage in call.storages(*accesses) if storage != "parameters"}
