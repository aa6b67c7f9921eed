"""The gradients of a step's shards, added in an order that does not depend on where they were computed.

Of S shards, each is computed alone, from the same statistics. Their gradients, and the statistics that each leaves, are
added by a balanced binary tree: neighbours, then neighbouring pairs, and so on. A rank has a run of shards, so that the
tree's lower levels are its own; the others are exchanges with the ranks at distance 1, 2, 4, ..., each of half as many
elements as the one before, and then the other way to bring the sums back to all (docs/many_devices.md).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from blobnet.blob import FLOAT32
from blobnet.executor import Executor, Launch
from blobnet.graph import Graph
from blobnet.kernel_call import Array, GlobalSize, KernelCall
from blobnet.parallel import World
from blobnet.parameters import PARAMETER_ALIGNMENT, ParameterTable
from blobnet.weight_buffers import GRADIENT_SUM, STATISTICS, SUM_SCALE, Sums, statistics_of

#: How ranks add: along the tree of shards, or as MPI likes, whose bits depend on the number of ranks.
ORDERED, FAST = "ordered", "fast"


def sums_of(
    graph: Graph, table: ParameterTable, accumulate: bool, shards: int, world: World, reduction: str = ORDERED
) -> Sums:
    """What a rank keeps of the sums of a step that is made of several batches, in one shard or several."""
    if shards == 1:
        return Sums(table.trainable_elements, range(0), int(accumulate))
    own = shards // world.size
    # One for each level of the tree of the rank's own. A shard that is the right one of two is added to the left one
    # itself; where it is made of several batches, these must be added to each other first.
    count = own.bit_length() if accumulate else max(1, own.bit_length() - 1)
    sums = Sums(table.trainable_elements, statistics_of(graph, table), count, accumulate)
    if world.size == 1 or reduction == FAST:
        return sums
    return replace(sums, received=len(exchanges(sums.elements, 1, 2)[0].mine))  # The rank that adds the larger half.


class Exchange(NamedTuple):
    """What a rank exchanges with another one, and back again: it adds its half, and gets the sums of the other.

    Attributes:
        partner: the other rank.
        mine: the elements that this rank adds.
        other: those that it gives.
    """

    partner: int
    mine: range
    other: range


def exchanges(elements: int, rank: int, size: int) -> list[Exchange]:
    """The levels of the tree above the ranks' own: with those at distance 1, 2, 4, ..., half as much at each."""
    found, part, distance = list[Exchange](), range(elements), 1
    while distance < size:
        half = len(part) // (2 * PARAMETER_ALIGNMENT) * PARAMETER_ALIGNMENT
        lower, upper = part[:half], part[half:]
        part, other = (upper, lower) if rank & distance else (lower, upper)
        found.append(Exchange(rank ^ distance, part, other))
        distance *= 2
    return found


class ShardSum:
    """Adds up the gradients of a step on the device.

    Args:
        executor: whose ``gradients`` they are; it has the buffers of ``sums``.
        sums: where they lie.
        shards: of a step, over all ranks.
        world: the ranks.
        totals: numbers that the losses add to in ``totals``, which holds as many for each of the rank's shards.
        reduction: how ranks add: ORDERED or FAST.
    """

    def __init__(
        self, executor: Executor, sums: Sums, shards: int, world: World, totals: int, reduction: str = ORDERED
    ) -> None:
        self._executor, self._sums, self._shards, self._world, self._totals = executor, sums, shards, world, totals
        self._own = shards // world.size
        self._number, self._place, self._weights = 0, 0, list[float]()
        model = executor.plan.tuning.model

        def bind(calls: list[KernelCall]) -> list[Launch]:
            return executor.bind(calls, 0)

        numbers = range(sums.count)
        self._accumulate = [bind(sums.accumulate_call(number, model)) for number in numbers]
        self._finish = bind(sums.finish_calls(model) if sums.count else [])
        if shards == 1:
            return
        self._take = [bind(sums.take_call(number, model)) for number in numbers]
        self._merge = [[], *(bind(sums.merge_call(number, model)) for number in numbers[1:])]
        self._save, self._restore = bind(sums.save_call(model)), bind(sums.restore_call(model))
        self._first_total = bind([_first_total(self._own, totals)] if self._own > 1 else [])
        self._is_ordered = reduction == ORDERED
        levels = exchanges(sums.elements, world.rank, world.size) if self._is_ordered else []
        self._levels = [(level, bind(sums.add_call(level.mine, model))) for level in levels]

    def begin(self, number: int) -> None:
        """Before the batches of a shard, by its number among those of the rank."""
        if self._shards == 1:
            return
        self._number = number
        self._place = number.bit_count() - (number & 1 if not self._sums.of_batches else 0)
        if self._sums.statistics:
            if number == 0:
                buffer = self._executor.buffers[STATISTICS]
                self._executor.device.fill_zero(buffer, FLOAT32.itemsize * len(self._sums.statistics))
            self._launch(self._restore if number else self._save)
        self._executor.place("totals", number * self._totals)

    def add(self) -> None:
        """Adds the gradients of a batch to those of its shard."""
        self._launch(self._accumulate[self._place])

    def end(self, weight: float) -> None:
        """Behind the batches of a shard, of which there may be none; ``weight`` is that of its samples."""
        self._weights.append(weight)
        if self._shards == 1:
            return
        number, place = self._number, self._place
        self._launch(self._take[place])
        if not self._sums.of_batches:
            number >>= number & 1  # Its left neighbour's sum is theirs now.
        while number & 1:
            self._launch(self._merge[place])
            number, place = number >> 1, place - 1
        if self._number == self._own - 1:
            self._launch(self._first_total)

    def finish(self, scale: float) -> bool:
        """Makes the sum over all ranks, times ``scale`` / their weight, the gradients of the step.

        Returns:
            Whether the losses of all ranks are finite, where there are several; if one is not, the next step of the
            optimizer changes nothing on any.
        """
        executor, world, is_finite = self._executor, self._world, True
        weights, self._weights = self._weights, []
        if world.size > 1:
            self._exchange()
            first = executor.device.read(executor.buffers["totals"], 1)
            every = world.gather((weights, bool(np.isfinite(first[0]))))
            weights, is_finite = [weight for own, _ in every for weight in own], all(finite for _, finite in every)
            if not is_finite:
                executor.device.write(executor.buffers["totals"], np.full(1, np.nan, np.float32))
        executor.feed(SUM_SCALE, np.array([scale / (sum(weights) or 1.0), 1 / self._shards], np.float32))
        self._launch(self._finish)
        return is_finite

    def _exchange(self) -> None:
        world, device, buffer = self._world, self._executor.device, self._executor.buffers[GRADIENT_SUM]
        if not self._is_ordered:
            world.add_up(device, buffer, self._sums.elements)
        storage, first = self._sums.received_in
        for level, add in self._levels:
            taken = range(first, first + len(level.mine))
            world.swap(level.partner, device, (buffer, level.other), (self._executor.buffers[storage], taken))
            self._launch(add)
        for level, _ in reversed(self._levels):
            world.swap(level.partner, device, (buffer, level.mine), (buffer, level.other))

    def _launch(self, launches: list[Launch]) -> None:
        self._executor.launch(launches, 0)


def _first_total(shards: int, totals: int) -> KernelCall:
    """Makes the first total NaN where a loss of another shard is not finite."""
    arrays: dict[str, Any] = {"TOTALS": Array("totals", shards * totals, persistent=True)}
    macros = {"LOSSES": shards, "STRIDE": totals}
    size = GlobalSize(1, per_sample=False)
    return KernelCall("loss/first_total", "losses of shards", size, arrays=arrays, macros=macros)
