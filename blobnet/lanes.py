"""The shards of a process, several at a time, each on a queue and in memory of its own (docs/many_devices.md).

The samples of a shard may be too few to fill a GPU: what one leaves idle another takes. No bit depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from blobnet.blob import FLOAT32
from blobnet.device_model import DeviceModel
from blobnet.executor import Executor, Launch
from blobnet.kernel_call import Array, Batch
from blobnet.planning import STATISTICS, Plan
from blobnet.weight_buffers import GRADIENT_SUM

#: Launches of a lane before it is another one's turn: an H100 needs a third of a millisecond for them.
_TURN = 32


def lane_counts(kind: DeviceModel, shards: int) -> list[int]:
    """How many of a process's shards such a device may compute at a time: the first count that fits; the last is 1.

    Two, if it has two. With more there are rounds, one behind the other, for which NVIDIA's driver has the host wait.
    """
    return [2, 1] if shards == 2 and not kind.is_host else [1]


def memory_of_lanes(plan: Plan, count: int, shards: int) -> int:
    """Bytes that so many lanes for a process's shards need beside a plan's, and beside what their sums need."""
    if count == 1:
        return 0
    labels, own = _labels(plan), _own(plan) - ({"gradients"} if _adds_to_second(count, shards) else set())
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
        count: how many lanes; a single one is the executor itself.
        shards: of the process.
        statistics: where among the parameters the statistics lie that each shard moves for itself.

    Attributes:
        executors: of the lanes.
    """

    def __init__(self, fed: Executor, count: int, shards: int, statistics: range) -> None:
        plan = fed.plan
        self._fed, self._statistics = fed, statistics
        #: The gradients of the second of two shards are the sum, to which those of the first are added.
        self._second = {"gradients": fed.buffers[GRADIENT_SUM]} if _adds_to_second(count, shards) else {}
        self._labels = _labels(plan)
        self._samples = [name for entry in plan.entries for name in entry.memory(1)]
        self.executors = [fed] if count == 1 else [self._executor(number) for number in range(count)]
        self._queues = [fed.device.beside() for _ in range(count)] if count > 1 else []
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
        """That of the shard that has begun."""
        return self.executors[self.number]

    @property
    def are_several(self) -> bool:
        """Whether shards are computed several at a time."""
        return len(self.executors) > 1

    @property
    def is_summed(self) -> bool:
        """Whether the gradients of the shard that has begun are where the others' are added to."""
        return bool(self._second) and self.number == 1

    def begin(self, shard: int) -> None:
        """Before the batches of a shard, by its number among those of the process."""
        self._shard = shard
        if not self.number:
            self.run()
        if self._statistics:
            kept, offset = self.executor.buffers[STATISTICS], FLOAT32.itemsize * self._statistics.start
            self._fed.device.copy(self._fed.buffers["parameters"], kept, offset)

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
            come = device.mark()
            for staged in self._staged:
                self._queues[staged.lane].hold(come)
            for first in range(0, max(len(staged.launches) for staged in self._staged), _TURN):
                for staged in self._staged:
                    for item in staged.launches[first : first + _TURN]:
                        item.enqueue()
                    self._queues[staged.lane].flush()
            events = [self._queues[staged.lane].mark() for staged in self._staged]
        for event in events:
            device.hold(event)
        for act in self._waiting:
            act()
        self._staged, self._waiting = [], []

    def _executor(self, number: int) -> Executor:
        """The first has the memory of the executor that is fed."""
        plan, fed = self._fed.plan, self._fed
        own = _labels(plan) | (_own(plan) if number else set())
        shared = {name: buffer for name, buffer in fed.buffers.items() if name not in own}
        return Executor(fed.device, plan, shared | (self._second if number else {}), debug=False)

    def _reads_samples(self, arrays: Mapping[str, Array]) -> bool:
        return not {array.storage for array in arrays.values()}.isdisjoint(self._samples)


def _adds_to_second(count: int, shards: int) -> bool:
    return count == shards == 2


def _labels(plan: Plan) -> set[str]:
    """The buffers that come with a batch, and which its losses read at the end."""
    return {name for head in plan.heads for name in head.memory()}


def _own(plan: Plan) -> set[str]:
    """Those that a lane needs for itself: of what lies between the layers, and of what a shard leaves."""
    return (set(plan.buffers) - plan.persistent - plan.constants) | ({"gradients", STATISTICS} & set(plan.buffers))
