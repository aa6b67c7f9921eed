"""The memory of a plan while it runs, launch by launch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blobnet.launch.kernel_call import CONSTANT, KernelCall
from blobnet.planning import Plan
from blobnet.planning.memory import occupants

#: The kinds of memory in the order in which they are stacked: what is always there first.
KINDS = (
    "weights",
    "optimizer",
    "gradients",
    "samples and labels",
    "packed weights",
    "activations",
    "deltas",
    "work space",
)
_PERSISTENT = {"parameters": "weights", "gradients": "gradients"}


@dataclass(frozen=True, eq=False)
class MemorySchedule:
    """Bytes in use at each launch of a plan, by what holds them; of a batch as large as the plan's.

    A storage is in use from its first launch to its last. Without the overrun of buffers, and what lies free in them.

    Attributes:
        launches: a label for each.
        phases: the phase of each.
        held: for each of KINDS that there is, the bytes at each launch.
        allocated: bytes of all buffers.
    """

    launches: tuple[str, ...]
    phases: tuple[str, ...]
    held: Mapping[str, npt.NDArray[np.int64]]
    allocated: int

    @property
    def total(self) -> npt.NDArray[np.int64]:
        """The bytes in use at each launch."""
        totals: npt.NDArray[np.int64] = np.sum(list(self.held.values()), axis=0)
        return totals

    @property
    def peak(self) -> int:
        """The launch at which most is in use."""
        return int(self.total.argmax())


def memory_schedule(
    plan: Plan, reserved: Mapping[str, int] | None = None, updates: Sequence[KernelCall] = ()
) -> MemorySchedule:
    """The memory of a plan over its launches.

    Args:
        plan: what runs.
        reserved: bytes that the optimizer's state takes besides, by name.
        updates: the launches of the optimizer's step, after the plan's.
    """
    calls = [*plan.calls, *(("update", call) for call in updates)]
    held = {kind: np.zeros(len(calls), np.int64) for kind in KINDS}
    blobs = {blob.storage: "activations" for blob in plan.outputs.values()}
    blobs |= {blob.storage: "deltas" for blob in plan.deltas.values()}
    packed = {name for call in plan.phase(CONSTANT) for name in call.storages("write", "update")}
    results = {plan.outputs[vertex.name].storage for vertex in plan.request.graph.outputs.values()}
    inputs = {vertex.name for vertex in plan.request.graph.inputs.values()} if plan.request.input_delta else set()
    found = occupants(plan.calls, results, {plan.deltas[name].storage for name in inputs & plan.deltas.keys()})
    for item in found:
        other = "activations" if item.blob else "work space"  # What is computed again is no vertex's.
        kind = "packed weights" if item.name in packed else blobs.get(item.name, other)
        held[kind][item.first : item.last + 1] += item.type.itemsize * item.size(plan.batch_size)
    for name in plan.buffers.keys() - {plan.placed[item.name] for item in found}:
        buffer = plan.buffers[name]
        held[_PERSISTENT.get(name, "samples and labels")] += buffer.type.itemsize * buffer.size(plan.batch_size)
    extra = sum((reserved or {}).values())
    held["optimizer"] += extra
    return MemorySchedule(
        tuple(call.label for _, call in calls),
        tuple(phase for phase, _ in calls),
        {kind: values for kind, values in held.items() if values.any()},
        plan.bytes() + extra,
    )
