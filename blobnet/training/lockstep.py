"""The shards of a process, computed in step: batch norms over all shards of a step (docs/many_devices.md).

Where a plan has a call that gathers what each shard has left, all shards must come that far before one can go on. So
each shard of a process has memory of its own for what lies between the layers, and gradients of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from blobnet.execution.executor import Executor, Launch
from blobnet.launch.kernel_call import SHARD_COUNTS, Batch, KernelCall
from blobnet.parallel.world import World
from blobnet.planning import Plan
from blobnet.training.weight_buffers import GRADIENT_SUM, Sums


class _Piece(NamedTuple):
    """Launches of a phase that each shard does by itself, and the one behind them, if any, that is for all shards."""

    own: slice
    gathering: Launch | None


def memory_of_shards(plan: Plan, shards: int) -> int:
    """Bytes that so many shards need beside a plan's, where each has all for itself that lies between the layers."""
    common = plan.persistent - {name for head in plan.request.heads for name in head.memory()}
    own = sum(buffer.bytes(plan.batch_size) for name, buffer in plan.buffers.items() if name not in common)
    return (shards - 1) * own


class Lockstep:
    """Computes the gradients of a process's shards together.

    Args:
        fed: the executor that batches are brought to.
        sums: where gradients go; the executor has their buffers.
        shards: the numbers of the process's shards among those of all.
        world: the ranks.
        totals: numbers that the losses add to in ``totals`` for each shard.
    """

    def __init__(self, fed: Executor, sums: Sums, shards: range, world: World, totals: int) -> None:
        plan = fed.plan
        self._fed, self._shards, self._world = fed, shards, world
        self._labels = [name for head in plan.request.heads for name in head.memory()]
        self._samples = [name for entry in plan.request.entries for name in entry.memory(1)]
        common = {name: fed.buffers[name] for name in (plan.persistent | {GRADIENT_SUM}) - {*self._labels}}
        common["gradients"] = fed.buffers[sums.gradients_of_shards]
        others = [Executor(fed.device, plan, common, debug=fed.debug) for _ in shards[:-1]]
        #: The last one has the memory of the executor that is fed.
        self._executors = [*others, Executor(fed.device, plan, {**fed.buffers, **common}, debug=fed.debug)]
        for number, executor in enumerate(self._executors):
            executor.place("gradients", number * sums.gradients)
            executor.place("totals", number * totals)
        self._add = [
            executor.bind(sums.accumulate_call(number, plan.request.tuning.model) if sums.of_batches else [], 0)
            for number, executor in enumerate(self._executors)
        ]
        self._pieces = {phase: self._cut(phase) for phase in ("forward", "backward")}
        #: Of the shards that have begun.
        self._batches: dict[int, Batch] = {}

    def begin(self, number: int, batch: Batch, version: int) -> None:
        """Takes the batch that is loaded for a shard, up to the first call for all.

        Args:
            number: of the shard among those of the process.
            batch: what it is.
            version: of the parameters that no step changes.
        """
        executor = self._executors[number]
        for name in self._samples:
            executor.take(self._fed, name)
        for name in self._labels:
            executor.copy(self._fed, name)
        executor.prepare(version)
        self._batches[number] = batch
        first = self._pieces["forward"][0].own
        executor.launch(executor.launches("forward", batch)[first], batch.count)

    def finish(self, counts: Sequence[int], compute_losses: Callable[[Executor, Batch], None]) -> None:
        """Does the rest for all shards that have begun, and adds their gradients to their sums.

        Args:
            counts: samples of each shard of all ranks.
            compute_losses: does it for a batch behind the forward pass.
        """
        self._fed.feed(SHARD_COUNTS, np.array(counts, np.float32))
        self._run("forward", is_begun=True)
        for number, batch in self._batches.items():
            compute_losses(self._executors[number], batch)
        self._run("backward")
        for number in self._batches:
            self._executors[number].launch(self._add[number], 0)
        self._batches = {}

    def _cut(self, phase: str) -> list[_Piece]:
        """The pieces of a phase."""
        pieces, first = list[_Piece](), 0
        for number, call in enumerate(self._fed.plan.phase(phase)):
            if call.gathers:
                pieces.append(_Piece(slice(first, number), *self._fed.bind([call], 0)))
                first = number + 1
        return [*pieces, _Piece(slice(first, None), None)]

    def _run(self, phase: str, *, is_begun: bool = False) -> None:
        """Does a phase for all shards, piece by piece; ``is_begun``: but for what is the first piece's own."""
        for number, (own, gathering) in enumerate(self._pieces[phase]):
            for shard, batch in self._batches.items() if number or not is_begun else ():
                executor = self._executors[shard]
                executor.launch(executor.launches(phase, batch)[own], batch.count)
            if gathering is not None:
                self._gather(gathering.call)
                self._fed.launch([gathering], 0)

    def _gather(self, call: KernelCall) -> None:
        """Brings what the shards of other ranks have left."""
        array = call.arrays[call.gathers]
        size = array.elements // (len(self._shards) * self._world.size)
        own = range(self._shards.start * size, self._shards.stop * size)
        self._world.transport.fill(self._fed.device, self._fed.buffers[array.storage], own)
