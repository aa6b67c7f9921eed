"""What is tuned: tasks, the one place that writes and reads their names, and what was chosen for them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

#: By what factor a batch may differ from one that was measured, and still take what was the fastest for that.
NEAR = 2.0
_NAME = re.compile(r"(?P<direction>.+) (?P<layer>\S+:\S+) batch (?P<batch_size>[1-9]\d*)(?: (?P<precision>\S+))?")


@dataclass(frozen=True)
class Task:
    """One direction of a layer, for a batch; as text ``backward data 64x56x56:64k3p1 batch 64``.

    Attributes:
        direction: see blobnet/implementations/base.py.
        layer: its input's shape and what makes its work, as benchmarks write them (blobnet/bench/shapes.py).
        batch_size: samples of the plan.
        precision: of the products; fp32 is not written.
    """

    direction: str
    layer: str
    batch_size: int
    precision: str = "fp32"

    @classmethod
    def parse(cls, name: str) -> Task:
        """The task of a name; ValueError if it is none."""
        match = _NAME.fullmatch(name)
        if not match:
            raise ValueError(f"no task: {name!r}")
        parts = match.groupdict(default="fp32")
        return cls(parts["direction"], parts["layer"], int(parts["batch_size"]), parts["precision"])

    def __str__(self) -> str:
        precision = "" if self.precision == "fp32" else f" {self.precision}"
        return f"{self.direction} {self.layer} batch {self.batch_size}{precision}"

    @property
    def operation(self) -> str:
        """What the kernels compute, whatever the sizes: ``convolution backward data``."""
        family = "dense" if ":dense" in self.layer else "convolution"
        return f"{family} {self.direction}"

    @property
    def of_any_batch(self) -> Task:
        """What tasks that differ by their batches have in common."""
        return replace(self, batch_size=1)


@dataclass(frozen=True)
class Choices:
    """The fastest candidates by task, in ``sources``, of which the first one counts most."""

    sources: tuple[Mapping[Task, str], ...] = ()

    def near(self, task: Task) -> Iterator[tuple[Task, str]]:
        """What is known of a task, or of its like with batches up to NEAR times larger or smaller.

        Source by source, the nearest batch first (in logarithms): the task that was measured, and its candidate.
        """
        for source, alike in zip(self.sources, self._alike, strict=True):
            known = [(self._distance(task, other), other) for other in alike.get(task.of_any_batch, ())]
            for distance, other in sorted(known, key=lambda item: (item[0], item[1].batch_size)):
                if distance <= math.log(NEAR):
                    yield other, source[other]

    @staticmethod
    def _distance(task: Task, other: Task) -> float:
        # The quotient first: that of twice and of half is then exactly log(2).
        return abs(math.log(max(task.batch_size, other.batch_size) / min(task.batch_size, other.batch_size)))

    @cached_property
    def _alike(self) -> list[dict[Task, list[Task]]]:
        """For each source, its tasks by what they have in common."""
        found: list[dict[Task, list[Task]]] = []
        for source in self.sources:
            groups: dict[Task, list[Task]] = {}
            for task in source:
                groups.setdefault(task.of_any_batch, []).append(task)
            found.append(groups)
        return found
