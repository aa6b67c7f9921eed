"""The shards of a process, several at a time, each on a queue and in memory of its own (docs/many_devices.md).

The samples of a shard may be too few to fill a GPU: what one leaves idle another takes. No bit depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from blobnet.execution.executor import Executor, Launch
from blobnet.hardware.device_model import DeviceModel
from blobnet.launch.kernel_call import Array, Batch
from blobnet.memory.blob import FLOAT32
from blobnet.network.graph import Graph
from blobnet.planning import STATISTICS, Plan
from blobnet.training.weight_buffers import GRADIENT_SUM, Sums

#: Launches of a lane before it is another one's turn: an H100 needs a third of a millisecond for them.
_TURN = 32

#: Seconds of a product of a shard, in the mean, at the device's peak: where it is less, none gains by another beside it
#: (docs/history/many_devices.md, "Shards of one GPU").
_SHORT = 25e-6


def lane_counts(kind: DeviceModel, graph: Graph, batch_size: int, shards: int) -> list[int]:
    """Return the counts of shards that such a device may compute at a time: the first that fits counts; the last is 1.

    Up to four, in rounds if there are more. One fills a host's cores; and short launches take the driver's time more
    than the device's.
    """
    if shards == 1 or kind.is_host or (kind.flops and _mean_product(graph, batch_size) < _SHORT * kind.flops):
        return [1]
    return [count for count in (4, 2, 1) if count <= shards]


def _mean_product(graph: Graph, batch_size: int) -> float:
    """The operations of a product of samples and weights, in the mean over the network."""
    found = [
        2 * batch_size * spec.elements * vertex.shape.positions
        for vertex in graph.vertices
        for spec in graph.parameters(vertex)
        if spec.decayed
    ]
    return sum(found) / max(1, len(found))


def settings_of(sums: Sums, shards: int, count: int, *, accumulate: bool = False) -> dict[str, Any]:
    """Return the settings of the plan of a process's shards, ``count`` of them at a time: see Request."""
    # Shards that are computed in step have each what is made of the parameters for itself.
    return {"statistics": sums.statistics, "in_batches": not sums.in_step and (accumulate or shards > count)}


def memory_of_lanes(plan: Plan, count: int, shards: int) -> int:
    """Bytes that so many lanes for a process's shards need beside a plan's, and beside what their sums need."""
    if count == 1:
        return 0
    labels, own = _labels(plan), _own(plan) - ({"gradients"} if shards == 2 else set())
    return sum(
        plan.buffers[name].bytes(plan.batch_size) * (count if name in labels else count - 1) for name in own | labels
    )


class _Staged(NamedTuple):
    """A batch that has come in for a lane; nothing else of it is launched yet."""

    lane: int
    launches: list[Launch]


class Lanes:
    """Computes shards in rounds, of one for each lane.

    The batches of a round come in on the device's queue; then each goes on in its lane, and what is done with what they
    leave waits for all of them on the device's queue again.

    NOTE: NVIDIA's driver has an event on one queue wait for all that was launched before it on any queue. So there are
    none within a round.

    Args:
        fed: the executor that batches are brought to.
        count: how many lanes; a single one has all that the executor has.
        shards: of the process.
        sums: where gradients go, and the statistics that each shard moves for itself.

    Attributes:
        executors: of the lanes.
    """

    def __init__(self, fed: Executor, count: int, shards: int, sums: Sums) -> None:
        plan = fed.plan
        self._fed, self._statistics = fed, sums.statistics
        is_of_shards = (shards > 1 or bool(sums.parts)) and not sums.of_batches and not sums.in_step
        #: The lane whose gradients are the sum itself, to which those of the other one are added: of the last shard, if
        #: each has a lane of its own.
        self._summed = shards - 1 if is_of_shards and shards == count <= 2 else None
        self._labels = _labels(plan)
        self._samples = [name for entry in plan.request.entries for name in entry.memory(1)]
        self._queues = [fed.device.queue.another() for _ in range(count)] if count > 1 else []
        is_fed = count == 1 and self._summed is None
        self.executors = [fed] if is_fed else [self._executor(number) for number in range(count)]
        reading = [number for number, call in enumerate(plan.phase("forward"), 1) if self._reads_samples(call.arrays)]
        #: Launches of the forward pass up to the last one that takes what came in.
        self._entering = max(reading, default=0)
        self._shard = 0
        self._staged: list[_Staged] = []
        self._waiting: list[Callable[[], None]] = []

    @property
    def number(self) -> int:
        """The lane of the shard that has begun."""
        return self._shard % len(self.executors)

    @property
    def executor(self) -> Executor:
        """The executor of the shard that has begun."""
        return self.executors[self.number]

    @property
    def are_several(self) -> bool:
        """True if shards are computed several at a time."""
        return len(self.executors) > 1

    @property
    def is_summed(self) -> bool:
        """True if the gradients of the shard that has begun are where the others' are added to."""
        return self.number == self._summed

    def begin(self, shard: int) -> None:
        """Before the batches of a shard, by its number among those of the process."""
        self._shard = shard
        if not self.number:
            self.run()
        if self._statistics:
            kept, offset = self.executor.buffers[STATISTICS], FLOAT32.itemsize * self._statistics.start
            self._fed.device.memory.copy(self._fed.buffers["parameters"], kept, offset)

    def take(self) -> Executor:
        """Takes the batch that is loaded for the shard, where there is one lane; what computes it."""
        if self.executor is not self._fed:
            for name in (*self._samples, *self._labels):
                self.executor.take(self._fed, name)
        return self.executor

    def stage(self, batch: Batch, others: Callable[[Executor], list[Launch]]) -> None:
        """Takes the batch that is loaded for the shard.

        Args:
            batch: what it is.
            others: gives what is launched for it on an executor behind the forward pass.
        """
        if any(staged.lane == self.number for staged in self._staged):
            self.run()
        executor = self.executor
        for name in self._samples:
            executor.take(self._fed, name)
        for name in self._labels:
            executor.copy(self._fed, name)
        forward = executor.launches("forward", batch)
        executor.launch(forward[: self._entering], batch.count)
        launches = [*forward[self._entering :], *others(executor)]
        for item in launches:
            item.move(self._queues[self.number])
        self._staged.append(_Staged(self.number, launches))

    def later(self, act: Callable[[], None]) -> None:
        """Does something with what shards leave, once those that are staged are launched."""
        if self.are_several:
            self._waiting.append(act)
        else:
            act()

    def run(self) -> None:
        """Launches all that is staged, in turns, so that no lane waits for the host; then does what waits for it."""
        device, events = self._fed.device, list[Any]()
        if self._staged:
            come = device.queue.record_event()
            for staged in self._staged:
                self._queues[staged.lane].wait_event(come)
            for first in range(0, max(len(staged.launches) for staged in self._staged), _TURN):
                for staged in self._staged:
                    for item in staged.launches[first : first + _TURN]:
                        item.enqueue()
                    self._queues[staged.lane].flush()
            events = [self._queues[staged.lane].record_event() for staged in self._staged]
        for event in events:
            device.queue.wait_event(event)
        for act in self._waiting:
            act()
        self._staged, self._waiting = [], []

    def _executor(self, number: int) -> Executor:
        """The first has the memory of the executor that is fed."""
        plan, fed = self._fed.plan, self._fed
        own = (_labels(plan) if self._queues else set()) | (_own(plan) if number else set())
        shared = {name: buffer for name, buffer in fed.buffers.items() if name not in own}
        if number == self._summed:
            shared["gradients"] = fed.buffers[GRADIENT_SUM]
        return Executor(fed.device, plan, shared, debug=fed.debug)

    def _reads_samples(self, arrays: Mapping[str, Array]) -> bool:
        return not {array.storage for array in arrays.values()}.isdisjoint(self._samples)


def _labels(plan: Plan) -> set[str]:
    """The buffers that come with a batch, and which its losses read at the end."""
    return {name for head in plan.request.heads for name in head.memory()}


def _own(plan: Plan) -> set[str]:
    """Return the buffers that a lane needs for itself: of what lies between the layers, and of what a shard leaves."""
    return (set(plan.buffers) - plan.persistent - plan.constants) | ({"gradients", STATISTICS} & set(plan.buffers))
