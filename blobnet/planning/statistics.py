"""Pass 10: the statistics that a shard of a step moves, in a storage of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from blobnet.launch.kernel_call import Array, KernelCall
from blobnet.planning.constants import PhasedCall

#: The storage of a shard's statistics, in place of those among the parameters.
STATISTICS = "statistics"


def with_own_statistics(calls: Sequence[PhasedCall], statistics: range) -> tuple[PhasedCall, ...]:
    """The calls of a plan, with STATISTICS in place of what they move of the parameters.

    Args:
        calls: in their order.
        statistics: elements of the parameters, among which is all that a call moves; none: it is moved in place.
    """
    moved = {
        array.offset
        for _, call in calls
        for role, array in call.arrays.items()
        if array.storage == "parameters" and call.source.arrays[role] != "read"
    }

    def own(array: Array) -> Array:
        if array.storage != "parameters" or array.offset not in moved:
            return array
        return replace(array, storage=STATISTICS, offset=array.offset - statistics.start)

    def with_own(call: KernelCall) -> KernelCall:
        arrays = {role: own(array) for role, array in call.arrays.items()}
        return replace(call, arrays=arrays) if arrays != call.arrays else call

    return tuple((phase, with_own(call)) for phase, call in calls) if statistics else tuple(calls)
