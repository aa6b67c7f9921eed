"""The gradients of a step's shards, added in an order that does not depend on where they were computed.

Of S shards, each is computed alone, from the same statistics. Their gradients, and the statistics that each leaves, are
added by a balanced binary tree: neighbours, then neighbouring pairs, and so on. A rank has a run of shards, so that the
tree's lower levels are its own; the others are exchanges with the ranks at distance 1, 2, 4, ..., each of half as many
elements as the one before, and then the other way to bring the sums back to all (docs/many_devices.md).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from blobnet.execution.executor import Executor, Launch
from blobnet.launch.kernel_call import Array, Batch, GlobalSize, KernelCall
from blobnet.memory.blob import FLOAT32
from blobnet.network.graph import Graph
from blobnet.network.parameters import ParameterTable
from blobnet.parallel.transports import Swap
from blobnet.parallel.world import World
from blobnet.planning import STATISTICS
from blobnet.training.settings import ORDERED, TrainingSettings
from blobnet.training.weight_buffers import (
    GRADIENT_SUM,
    SHARD_GRADIENTS,
    SUM_SCALE,
    Sums,
    half,
    merge_call,
    statistics_of,
)

#: Bytes of gradients, at least, that are exchanged together while the backward pass goes on.
BUCKET = 16 << 20


def sums_of(
    graph: Graph,
    table: ParameterTable,
    settings: TrainingSettings,
    world: World,
    *,
    accumulate: bool = False,
    at_once: int = 1,
) -> Sums:
    """Return the sums that a rank keeps of a step of several batches (``accumulate``) or shards."""
    if settings.shards == 1:
        return Sums(table.trainable_elements, range(0), int(accumulate))
    own = settings.shards // world.size // at_once
    # One for each level of the tree of the rank's own. A shard that is the right one of two is added to the left one
    # itself; where it is made of several batches, these must be added to each other first.
    count = own.bit_length() if accumulate else max(1, own.bit_length() - 1)
    sums = Sums(table.trainable_elements, statistics_of(graph, table), count, accumulate, at_once=at_once)
    if settings.sync_batch_norm:  # Statistics are those of all shards at once.
        sums = replace(sums, statistics=range(0))
    if world.size == 1:
        return sums
    is_ordered = settings.reduction == ORDERED or not world.transport.adds
    ranks = world.size if is_ordered and world.transport.all_at_once else 0
    sums = replace(sums, parts=parts_of(table, sums.elements), is_ordered=is_ordered, ranks=ranks)
    # What comes for parts but the last one goes where their gradients were.
    return sums if all(map(sums.has_room, sums.parts[:-1])) else replace(sums, parts=(range(sums.elements),))


def parts_of(table: ParameterTable, elements: int) -> tuple[range, ...]:
    """Buckets of the gradients, of BUCKET bytes or more, from the end on; then what is plain, and the statistics.

    Parameters lie in the order of their layers, so that backward passes finish the last ones first; but those that do
    not decay (biases, norms) lie behind the others.
    """
    tail = table.groups[-1].offset + table.groups[-1].decayed_elements if table.groups else 0
    starts = sorted(piece.offset for piece in table.slices.values() if piece.offset < tail)
    found, end, least = list[range](), tail, BUCKET // FLOAT32.itemsize
    for start in reversed(starts):
        if (end - start >= least and start >= least) or start == 0:
            found.append(range(start, end))
            end = start
    return (*found, range(tail, elements)) if len(found) > 1 else (range(elements),)


class Exchange(NamedTuple):
    """An exchange of two ranks, there and back: each adds its half, and gets the sums of the other.

    Attributes:
        partner: the other rank.
        mine: the elements that this rank adds.
        other: those that it gives; the same ones where both add all, and nothing comes back.
    """

    partner: int
    mine: range
    other: range

    @property
    def comes_back(self) -> bool:
        """True if each lacks what the other one adds."""
        return self.mine != self.other

    @property
    def messages(self) -> int:
        """The messages that each sends."""
        return 2 if self.comes_back else 1

    @property
    def elements(self) -> int:
        """The elements that each sends, there and back; its partner may send some fewer."""
        return len(self.other) + (len(self.mine) if self.comes_back else 0)


def exchanges(part: range, rank: int, size: int, *, whole: bool = False) -> list[Exchange]:
    """The levels of the tree above the ranks' own: with those at distance 1, 2, 4, ..., half as much at each.

    ``whole``: all of it at each, after which there is nothing to bring back.
    """
    found, distance = list[Exchange](), 1
    while distance < size:
        other = part
        if not whole:
            middle = len(part) - half(part)
            lower, upper = part[:middle], part[middle:]
            part, other = (upper, lower) if rank & distance else (lower, upper)
        found.append(Exchange(rank ^ distance, part, other))
        distance *= 2
    return found


def tree_adds(rank: int, size: int) -> list[tuple[int, int]]:
    """Return whose numbers are added to whose, one after the other, so that the tree's sum ends with a rank's own."""
    found, held = list[tuple[int, int]](), list(range(size))
    while len(held) > 1:
        pairs = [
            (right, left) if right == rank else (left, right) for left, right in zip(held[::2], held[1::2], strict=True)
        ]
        found, held = found + pairs, [into for into, _ in pairs]
    return found


class _Given(NamedTuple):
    """What is given to a rank of the first sum, and where what it gives goes."""

    partner: int
    given: range
    storage: str
    taken: range


class _Round(NamedTuple):
    """Swaps at the same time, and what is launched behind them."""

    swaps: Sequence[_Given]
    add: Sequence[Launch] = ()


class _Part:
    """A part of a step's sums, which is exchanged by itself.

    Args:
        part: its elements.
        executor: see ShardSum.
        sums: where they lie.
        world: the ranks.
        last: the number of the rank's last run, behind which its sum is whole; None where the run leaves it there.

    Attributes:
        ready: behind how many launches of the backward pass its gradients are done.
        accumulate: adds them to the sum of the last shard.
        merge: adds up the sums of the rank's shards.
    """

    def __init__(self, part: range, executor: Executor, sums: Sums, world: World, last: int | None) -> None:
        model = executor.plan.request.tuning.model
        self._part, self._executor, self._sums, self._world = part, executor, sums, world
        calls = executor.plan.phase("backward")
        touching = [number for number, call in enumerate(calls, 1) if _touches(call, part)]
        self.ready = max(touching, default=0)
        place = sums.place_of(last or 0)
        self.accumulate = executor.bind(sums.accumulate_call(place, model, part) if last is not None else [], 0)
        merges = [sums.merge_call(number, model, part) for number in range(place, 0, -1)]
        self.merge = executor.bind([call for calls in merges for call in calls], 0)
        self._rounds = self._at_once() if sums.ranks else self._in_pairs()

    def _bind(self, calls: list[KernelCall]) -> list[Launch]:
        return self._executor.bind(calls, 0)

    def _in_pairs(self) -> list[_Round]:
        """The rounds along the tree, there and back."""
        sums, part, world, model = self._sums, self._part, self._world, self._executor.plan.request.tuning.model
        storage, first = sums.received_in(part)
        levels = exchanges(part, world.rank, world.size, whole=sums.goes_whole(part))
        there = [
            _Round(
                [_Given(level.partner, level.other, storage, range(first, first + len(level.mine)))],
                self._bind(sums.add_call(level.mine, part, model)),
            )
            for level in levels
        ]
        back = [
            _Round([_Given(level.partner, level.mine, GRADIENT_SUM, level.other)])
            for level in reversed(levels)
            if level.comes_back
        ]
        return there + back

    def _at_once(self) -> list[_Round]:
        """Two rounds with all other ranks: each adds its piece along the same tree, and then gives it to all.

        One round where each adds all.
        """
        sums, part, rank, model = self._sums, self._part, self._world.rank, self._executor.plan.request.tuning.model
        storage, first = sums.received_in(part)
        pieces, others = sums.pieces(part), [rank ^ distance for distance in range(1, sums.ranks)]
        mine = pieces[rank]
        places = {other: first + number * len(mine) for number, other in enumerate(others)}
        there = [
            _Given(other, pieces[other], storage, range(place, place + len(mine))) for other, place in places.items()
        ]
        arrays = {other: Array(storage, len(mine), offset=place, persistent=True) for other, place in places.items()}
        arrays[rank] = Array(GRADIENT_SUM, len(mine), offset=mine.start, persistent=True)
        adds = [
            call
            for into, added in tree_adds(rank, sums.ranks)
            for call in merge_call(arrays[added], arrays[into], model)
        ]
        back = [_Given(other, mine, GRADIENT_SUM, pieces[other]) for other in others]
        return [_Round(there, self._bind(adds)), *([] if sums.goes_whole(part) else [_Round(back)])]

    @property
    def sum_up(self) -> list[Launch]:
        """The launches that complete the rank's sum of the part, where there are no statistics in it."""
        return [*self.accumulate, *self.merge]

    def exchange(self) -> Iterator[None]:
        """Adds up the part over all ranks; wherever it yields, the device has work to do first, as may have others."""
        transport, device = self._world.transport, self._executor.device
        buffer = self._executor.buffers[GRADIENT_SUM]
        key = str(self._part.start)
        if not self._sums.is_ordered:
            begun = transport.adding(device, (buffer, self._part), key)
            yield
            begun()()
            return
        for swaps, add in self._rounds:
            buffers = self._executor.buffers
            whole = [Swap(each.partner, (buffer, each.given), (buffers[each.storage], each.taken)) for each in swaps]
            begun = transport.swapping(whole, device, key)
            yield
            finish = begun()
            yield
            finish()
            self._executor.launch(add, 0)


def _touches(call: KernelCall, part: range) -> bool:
    """Return True if a launch has to do with gradients of a part."""
    own = [array for one in call.each for array in one.arrays.values() if array.storage == "gradients"]
    return any(array.offset < part.stop and array.end(0) > part.start for array in own)


class ShardSum:
    """Adds up the gradients of a step on the device.

    Args:
        executor: whose ``gradients`` they are; it has the buffers of ``sums``.
        sums: where they lie.
        shards: of a step, over all ranks.
        world: the ranks.
        totals: numbers that the losses add to in ``totals``, which holds as many for each of the rank's shards.
    """

    def __init__(self, executor: Executor, sums: Sums, shards: int, world: World, totals: int) -> None:
        self._executor, self._sums, self._shards, self._world, self._totals = executor, sums, shards, world, totals
        self._own = shards // world.size
        #: Runs of the plan, of shards at once.
        self._runs = self._own // sums.at_once
        self._number, self._place, self._weights = 0, 0, list[float]()
        #: Whether a single shard leaves its gradients where the sum is; what it receives goes where they else were.
        self._is_summed = self._own == 1 and bool(sums.parts) and not sums.of_batches
        self._computing = executor
        if self._is_summed:
            shared = {**executor.buffers, "gradients": executor.buffers[GRADIENT_SUM]}
            self._computing = Executor(executor.device, executor.plan, shared, debug=executor.debug)
        self._samples = [name for entry in executor.plan.request.entries for name in entry.memory(1)]
        self._samples += [name for head in executor.plan.request.heads for name in head.memory()]
        #: What the losses of each shard of all ranks have come to, behind the last step.
        self.totals: npt.NDArray[np.float32] | None = None
        last = None if self._is_summed else self._runs - 1
        self._parts = [_Part(part, executor, sums, world, last) for part in sums.parts]
        #: Of the parts that are exchanged, from the one that began first on.
        self._exchanging: list[Iterator[None]] = []
        model = executor.plan.request.tuning.model

        def bind(calls: list[KernelCall]) -> list[Launch]:
            return executor.bind(calls, 0)

        numbers = range(sums.count)
        #: For each of the sums.
        self._accumulate = [bind(sums.accumulate_call(number, model)) for number in numbers]
        self._collect = bind(sums.collect_call(model) if sums.is_collected else [])
        summing = itertools.chain(*self._accumulate, *(part.accumulate for part in self._parts))
        #: What is told how many shards have left something.
        self._adding = self._collect or [*summing]
        self._batch = Batch(0)
        self._finish = bind(sums.finish_calls(model) if sums.count else [])
        if shards == 1:
            return
        #: What the losses of the rank's own shards have come to, on its way from the device.
        self._own_totals = executor.device.memory.host_memory(FLOAT32.itemsize * self._own * totals).view(np.float32)
        self._first_total = bind([_first_total(self._own, totals)] if self._own > 1 else [])
        self._take = [bind(sums.take_call(number, model)) for number in numbers]
        for item in (*itertools.chain(*self._take), *(summing if self._collect else ())):
            item.set_batch(Batch(sums.at_once, of_shard=1))  # All shards have some.
        self._merge = [[], *(bind(sums.merge_call(number, model)) for number in numbers[1:])]

    def take(self, batch: Batch) -> Executor:
        """Take the batch that is loaded; return what computes it."""
        if (batch.count, batch.room) != (self._batch.count, self._batch.room):
            self._batch = batch
            for item in self._adding:
                item.set_batch(batch)
        if self._computing is not self._executor:
            for name in self._samples:
                self._computing.take(self._executor, name)
        return self._computing

    def behind(self) -> list[tuple[int, Callable[[], None]]]:
        """What to do within the backward pass of the rank's last batch, and behind how many of its launches.

        Nothing, where several batches of each shard are added up first. All ranks exchange in the same order, whatever
        their plans.
        """
        found, ready = list[tuple[int, Callable[[], None]]](), 0
        for part in () if self._collect else self._parts[:-1]:
            ready = max(ready, part.ready)
            found.append((ready, partial(self._begin, part, part.sum_up)))
        return found

    def _begin(self, part: _Part, sum_up: Sequence[Launch] = ()) -> None:
        """Exchanges a part of the sums, once they are whole; goes on with those before it meanwhile."""
        self._go_on()
        self._launch(sum_up)
        self._exchanging.append(part.exchange())
        next(self._exchanging[-1])

    def _go_on(self) -> None:
        self._exchanging = [own for own in self._exchanging if next(own, self) is not self]

    def begin(self, number: int) -> None:
        """Before the batches of a shard, or of shards at once, by the number among those of the rank."""
        self._number, self._place, at_once = number, self._sums.place_of(number), self._sums.at_once
        if self._shards == 1:
            return
        if statistics := self._sums.statistics:
            executor = self._executor
            offset, size = FLOAT32.itemsize * statistics.start, FLOAT32.itemsize * len(statistics)
            for shard in range(at_once):
                kept, parameters = executor.buffers[STATISTICS], executor.buffers["parameters"]
                executor.device.memory.copy(parameters, kept, offset, shard * size, size)
        self._computing.place("totals", number * at_once * self._totals)

    def add(self) -> None:
        """Adds the gradients of a batch to those of its shard, but for parts that are exchanged by now."""
        if not self._is_summed:
            whole = self._collect or self._accumulate[self._place]
            self._launch(self._parts[-1].accumulate if self._exchanging else whole)

    def end(self, weights: Sequence[float]) -> None:
        """Behind the batches of a shard, or of those at once, of which there may be none: with the weight of each."""
        self._weights += weights
        if self._shards == 1:
            return
        number, place = self._number, self._place
        launches = [*(self._accumulate[place] if self._collect else ()), *self._take[place]]
        if self._exchanging:
            launches += self._parts[-1].merge
            number = 0
        elif not self._sums.of_batches:
            number >>= number & 1  # Its left neighbour's sum is theirs now.
        while number & 1:
            launches += self._merge[place]
            number, place = number >> 1, place - 1
        if self._number == self._runs - 1:
            launches += self._first_total
        self._launch(launches)
        if self._collect:
            size = FLOAT32.itemsize * self._sums.at_once * self._sums.gradients
            self._executor.device.memory.fill_zero(self._executor.buffers[SHARD_GRADIENTS], size)

    def finish(self, scale: float) -> bool:
        """Makes the sum over all ranks, times ``scale`` / their weight, the gradients of the step.

        Returns:
            Whether the losses of all ranks are finite, where there are several; if one is not, the next step of the
            optimizer changes nothing on any.
        """
        executor, world, is_finite = self._executor, self._world, True
        if world.size > 1 and not self._exchanging:  # Those whose last batch had samples have begun these by now.
            for part in self._parts[:-1]:
                self._begin(part)
        weights, self._weights = world.gather_numbers(np.array(self._weights)).ravel().tolist(), []
        executor.feed(SUM_SCALE, np.array([scale / (sum(weights) or 1.0), 1 / self._shards], np.float32))
        if world.size > 1:
            reading = executor.device.memory.read_async(executor.buffers["totals"], self._own_totals)
            self._begin(self._parts[-1])
            self._go_on()  # What follows takes the host as long as the last part is on its way.
            every = world.gather_numbers(reading.values().astype(np.float64))
            is_finite = bool(np.isfinite(every[:, 0]).all())
            if not is_finite:
                executor.device.memory.write(executor.buffers["totals"], np.full(1, np.nan, np.float32))
            while self._exchanging:
                self._go_on()
            self.totals = every.astype(np.float32).ravel()  # Nothing waits for others any more.
        self._launch(self._finish)
        return is_finite

    def _launch(self, launches: Sequence[Launch]) -> None:
        self._executor.launch(launches, 0)


def _first_total(shards: int, totals: int) -> KernelCall:
    """Makes the first total NaN where a loss of another shard is not finite."""
    arrays: dict[str, Any] = {"TOTALS": Array("totals", shards * totals, persistent=True)}
    macros = {"LOSSES": shards, "STRIDE": totals}
    size = GlobalSize(1, per_sample=False)
    return KernelCall("loss/first_total", "losses of shards", size, arrays=arrays, macros=macros)
