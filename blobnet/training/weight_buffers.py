"""Buffers of training beside the parameters, as data: the sum of a step's gradients, and averaged parameters."""

from __future__ import annotations

from dataclasses import dataclass

from blobnet.hardware.device_model import DeviceModel
from blobnet.launch.kernel_call import Array, KernelCall, rounded_up
from blobnet.launch.kernel_source import Macro
from blobnet.layers.initializers import GIVEN
from blobnet.memory.blob import FLOAT32
from blobnet.network.graph import Graph
from blobnet.network.parameters import PARAMETER_ALIGNMENT, ParameterTable
from blobnet.optimizers.base import MAX_PARTIALS, array_of, runs_call, squares_call
from blobnet.planning import STATISTICS

#: The sum of the gradients of a step's batches, and what makes it the gradient of the step.
GRADIENT_SUM, SUM_SCALE = "gradient sum", "gradient sum scale"
#: The gradients of a batch of each shard, where shards are computed in step and have several batches.
SHARD_GRADIENTS = "gradients of shards"
#: An exponential moving average of the parameters, and how much of them the next step adds to it.
AVERAGE, AVERAGE_RATE = "averaged parameters", "average rate"
#: Sums of the squares of all parameters, to see whether they are finite.
SQUARES = "squares of parameters"
#: Bytes at most that ranks send each other whole, which takes one message at each level in place of two.
WHOLE = 1 << 20
#: The same where they swap with all others at once, for what a rank then sends more than if each added a piece.
WHOLE_AT_ONCE = 24 << 20


@dataclass(frozen=True)
class Sums:
    """The sums of a step: one of gradients, or several that wait to be added, each with sums of statistics behind it.

    Attributes:
        gradients: elements of the gradients.
        statistics: where among the parameters the statistics lie that layers move in training; empty where they go on
            from batch to batch.
        count: how many sums there are at once; 0 where a step is one batch.
        of_batches: whether a shard's gradients are those of several batches, which have a sum by themselves.
        parts: what is exchanged by itself, from the end on, which backward passes finish first; the last part is what
            they finish last. Empty where there is one rank.
        is_ordered: whether ranks add them along the tree, each half of what the two share.
        ranks: those that swap with each other at once, where they do and not in pairs along the tree; else 0.
        at_once: how many shards leave their gradients side by side; their sum is what one run of the plan gives.
    """

    gradients: int
    statistics: range
    count: int
    of_batches: bool = False
    parts: tuple[range, ...] = ()
    is_ordered: bool = True
    ranks: int = 0
    at_once: int = 1

    @property
    def elements(self) -> int:
        """The elements of one sum."""
        return self.gradients + len(self.statistics)

    def memory(self) -> dict[str, int]:
        """Elements of each float32 buffer to allocate, by storage."""
        behind = [
            self.room(part) for part in self.parts if self.received_in(part)[0] == GRADIENT_SUM and self.is_ordered
        ]
        room = max(1, self.count * self.elements, self.elements + sum(behind))
        sums = {GRADIENT_SUM: room, SUM_SCALE: 2} if self.count else {}
        if self.is_collected:
            sums[SHARD_GRADIENTS] = max(1, self.at_once * self.gradients)
        return sums

    @property
    def is_collected(self) -> bool:
        """True if shards at once have several batches, whose gradients are added up for each shard first."""
        return self.of_batches and self.at_once > 1

    def collect_call(self, model: DeviceModel) -> list[KernelCall]:
        """The call that adds the gradients of a batch of each shard at once to the sum of the shard's."""
        arrays = {"GRADIENTS": array_of("gradients", self.gradients)}
        arrays["GRADIENT_SUM"] = array_of(SHARD_GRADIENTS, self.gradients)
        sizes = {"AT_ONCE": 1, "STRIDE": self.gradients}
        calls = _call("optimizer/accumulate", "sums of shards", arrays, self.gradients, model, **sizes)
        return [call.for_shards(self.at_once, dict.fromkeys(arrays, (self.gradients, 0))) for call in calls]

    def place_of(self, shard: int) -> int:
        """Return the sum that the gradients of a shard, or of those at once, are added to: one for each open subtree.

        The right one of two adds to the left one's, unless it has several batches to add up first.
        """
        return shard.bit_count() - (0 if self.of_batches else shard & 1)

    def goes_whole(self, part: range) -> bool:
        """Return True if ranks send each other all of a part, small as it is, and not pieces of it and then sums."""
        if self.ranks:
            if self.ranks > 2 and part != self.parts[-1]:
                return False  # What comes goes where its gradients were, while others are still made.
            more = (self.ranks - 1) - 2 * (self.ranks - 1) / self.ranks
            return FLOAT32.itemsize * len(part) * more <= WHOLE_AT_ONCE
        return FLOAT32.itemsize * len(part) <= WHOLE and part.stop <= self.gradients

    def pieces(self, part: range) -> list[range]:
        """What each rank adds of a part, where all swap at once."""
        if self.goes_whole(part):
            return [part] * self.ranks
        size = rounded_up(-(-len(part) // self.ranks), PARAMETER_ALIGNMENT)
        return [part[rank * size : (rank + 1) * size] for rank in range(self.ranks)]

    def room(self, part: range) -> int:
        """Elements at most of what comes for a part at once."""
        return (self.ranks - 1) * len(self.pieces(part)[0]) if self.ranks else half(part)

    def received_in(self, part: range) -> tuple[str, int]:
        """The storage for what comes for a part, and where in it: in place of its gradients, if there is room."""
        return ("gradients", part.start) if self.has_room(part) else (GRADIENT_SUM, self.elements)

    def has_room(self, part: range) -> bool:
        """Return True if what comes for a part fits in place of its gradients."""
        return self.room(part) <= min(len(part), self.gradients - part.start)

    def array_of(self, number: int) -> Array:
        return array_of(GRADIENT_SUM, self.gradients, number * self.elements)

    def _statistics(self, number: int) -> Array:
        return array_of(GRADIENT_SUM, len(self.statistics), number * self.elements + self.gradients)

    def accumulate_call(self, number: int, model: DeviceModel, part: range | None = None) -> list[KernelCall]:
        """The call that adds a run's gradients, or a part of them, to a sum; none without trainable parameters."""
        own = range(self.gradients)[part.start : part.stop] if part else range(self.gradients)
        into = array_of(GRADIENT_SUM, len(own), number * self.elements + own.start)
        storage = SHARD_GRADIENTS if self.is_collected else "gradients"
        arrays = {"GRADIENTS": array_of(storage, len(own), own.start), "GRADIENT_SUM": into}
        return self._accumulate("gradient sum", arrays, len(own), self.gradients, model)

    def take_call(self, number: int, model: DeviceModel) -> list[KernelCall]:
        """The call that adds the statistics of shards at once to a sum."""
        arrays = {"GRADIENTS": array_of(STATISTICS, len(self.statistics)), "GRADIENT_SUM": self._statistics(number)}
        return self._accumulate("statistics sum", arrays, len(self.statistics), len(self.statistics), model)

    def _accumulate(
        self, label: str, arrays: dict[str, Array], elements: int, stride: int, model: DeviceModel
    ) -> list[KernelCall]:
        return _call("optimizer/accumulate", label, arrays, elements, model, AT_ONCE=self.at_once, STRIDE=stride)

    def merge_call(self, number: int, model: DeviceModel, part: range | None = None) -> list[KernelCall]:
        """The call that adds a sum, or a part of it, to the one before it, and clears it."""
        own, first = part if part else range(self.elements), number * self.elements
        merged = first + own.start
        into = range(merged - self.elements, merged - self.elements + len(own))
        return self._merge(into, array_of(GRADIENT_SUM, len(own), merged), model)

    def add_call(self, mine: range, part: range, model: DeviceModel) -> list[KernelCall]:
        """The call that adds what was received, for a part, to what this rank adds of it in the first sum."""
        storage, first = self.received_in(part)
        return self._merge(mine, array_of(storage, len(mine), first), model)

    def _merge(self, into: range, merged: Array, model: DeviceModel) -> list[KernelCall]:
        return merge_call(merged, array_of(GRADIENT_SUM, len(into), into.start), model)

    def finish_calls(self, model: DeviceModel) -> list[KernelCall]:
        """The calls that make the first sum the gradients and the statistics, times the numbers of SUM_SCALE."""
        sources = self.array_of(0), self._statistics(0)
        kept = array_of("parameters", len(self.statistics), self.statistics.start)
        targets = array_of("gradients", self.gradients), kept
        labels = "gradient of the step", "statistics of the step"
        calls: list[KernelCall] = []
        for number, (source, target, label) in enumerate(zip(sources, targets, labels, strict=True)):
            arrays = {"SUM_SCALE": array_of(SUM_SCALE, 1, number), "GRADIENT_SUM": source, "GRADIENTS": target}
            calls += _call("optimizer/finish_sum", label, arrays, target.elements, model)
        return calls


def merge_call(merged: Array, into: Array, model: DeviceModel) -> list[KernelCall]:
    """The call that adds an array to another one, and clears it."""
    return _call("optimizer/merge", "gradient sums", {"MERGED": merged, "SUM": into}, into.elements, model)


def half(part: range) -> int:
    """The larger one of a part's halves, of whole parameters' places."""
    return len(part) - len(part) // (2 * PARAMETER_ALIGNMENT) * PARAMETER_ALIGNMENT


def statistics_of(graph: Graph, table: ParameterTable) -> range:
    """Return the range of the statistics that layers may move in training, with what lies between them."""
    inputs = {vertex.parameter(spec.name) for vertex in graph.inputs.values() for spec in graph.parameters(vertex)}
    moved = [
        table.slices[name]
        for name, spec in graph.named_parameters.items()
        if not spec.trainable and spec.initializer != GIVEN and name not in inputs
    ]
    if not moved:
        return range(0)
    end = max(piece.offset + piece.elements for piece in moved)
    return range(min(piece.offset for piece in moved), rounded_up(end, PARAMETER_ALIGNMENT))


def memory(*, average: bool) -> dict[str, int]:
    """Elements of the buffers of averages, and of sums of squares; the averaged parameters are DeviceParameters."""
    return {SQUARES: MAX_PARTIALS} | ({AVERAGE_RATE: 1} if average else {})


def finite_call(storage: str, table: ParameterTable, model: DeviceModel) -> KernelCall:
    """The call that leaves numbers in SQUARES that are finite if all parameters in a storage are, and none is huge."""
    return squares_call(array_of(storage, table.elements), array_of(SQUARES, MAX_PARTIALS), model, "weights' norm")


def average_call(table: ParameterTable, model: DeviceModel) -> list[KernelCall]:
    """The call that moves the averaged parameters; none without trainable parameters."""
    if not table.trainable_elements:
        return []
    arrays = {
        "PARAMETERS": array_of("parameters", table.elements),
        "AVERAGE_RATE": array_of(AVERAGE_RATE, 1),
        "AVERAGE": array_of(AVERAGE, table.elements),
    }
    elements = table.trainable_elements
    return _call("optimizer/average", "weight average", arrays, elements, model, ELEMENTS=table.elements)


def average_rate(step: int, decay: float) -> float:
    """Return the part by which a step moves the average; ``step`` steps were done before it.

    1 - min(decay, (1 + t) / (10 + t)) with t = step + 1, so that the average of few steps forgets the weights of the
    start (the rule of TensorFlow's ExponentialMovingAverage).
    """
    return 1.0 - min(decay, (2.0 + step) / (11.0 + step))


def _call(
    kernel: str, label: str, arrays: dict[str, Array], elements: int, model: DeviceModel, **macros: Macro
) -> list[KernelCall]:
    """The call of a kernel over so many elements, if there are any."""
    return [runs_call(kernel, label, elements, model, arrays=arrays, macros=macros)] if elements else []
