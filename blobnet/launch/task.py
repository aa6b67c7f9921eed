"""Tasks, variants and choices of tuning; the one place that writes and reads their names."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from blobnet.support.formatting import size_text

#: By what factor a batch may differ from one that was measured, and still take what was the fastest for that.
NEAR = 2.0
_TASK = re.compile(
    r"(?P<direction>.+) (?P<layer>\S+:(?P<family>dense)?\S+) batch (?P<batch_size>[1-9]\d*)(?: (?P<precision>\S+))?"
)
_FAULT = re.compile(r"(?P<variant>\S+)(?: (?P<tile>[^(].*?))?(?: \((?P<family>\w+) (?P<direction>.+)\))?")


def convolution_text(
    filters: int, kernel_size: object, stride: object, padding: object, dilation: object, groups: int
) -> str:
    """What makes the work of a convolution, as benchmarks and tuning write it: ``64k3s2p1``; defaults are left out."""
    options = ("s", stride, 1), ("p", padding, 0), ("d", dilation, 1), ("g", groups, 1)
    written = [letter + size_text(value) for letter, value, default in options if value not in (default, "valid")]
    return f"{filters}k{size_text(kernel_size)}{''.join(written)}"


#: What ends the precision of a task whose blobs have cells.
IN_CELLS = "-cells"


@dataclass(frozen=True)
class Task:
    """One direction of a layer, for a batch; as text ``backward data 64x56x56:64k3p1 batch 64``.

    Attributes:
        direction: see blobnet/implementations/base.py.
        layer: its input's shape and what makes its work, as benchmarks write them (blobnet/examination/layer_cases.py).
        batch_size: samples of the plan.
        precision: of the products; fp32 is not written. With IN_CELLS where blobs have cells: what was measured with
            blobs of numbers is no choice for those.
        family: what the kernels compute, whatever the sizes: ``convolution`` or ``dense``.
    """

    direction: str
    layer: str
    batch_size: int
    precision: str = "fp32"
    family: str = "convolution"

    @classmethod
    def parse(cls, name: str) -> Task:
        """The task of a name; ValueError if it is none."""
        match = _TASK.fullmatch(name)
        if not match:
            raise ValueError(f"no task: {name!r}")
        given = {key: value for key, value in match.groupdict().items() if value is not None}
        return cls(**{**given, "batch_size": int(given["batch_size"])})  # type: ignore[arg-type]

    def __str__(self) -> str:
        precision = "" if self.precision == "fp32" else f" {self.precision}"
        return f"{self.direction} {self.layer} batch {self.batch_size}{precision}"

    @property
    def of_any_batch(self) -> Task:
        """The task without its batch."""
        return replace(self, batch_size=1)


@dataclass(frozen=True, order=True)
class Variant:
    """A way to do tasks: a variant and its tile, which is empty where there is but one; as text ``direct 6x4x16``."""

    variant: str
    tile: str = ""

    @classmethod
    def parse(cls, name: str) -> Variant:
        """The way of a name."""
        return cls(*name.split(" ", 1))

    def __str__(self) -> str:
        return f"{self.variant} {self.tile}".rstrip()


@dataclass(frozen=True, order=True)
class BrokenVariant:
    """A variant that a driver does not build, or builds wrongly; as text ``direct 6x4x16 (convolution forward)``.

    A way that does not work for a task is not trusted for another one of the same family and direction.

    Attributes:
        way: without a tile all those of the variant.
        family, direction: of the tasks; empty for all.
    """

    way: Variant
    family: str = ""
    direction: str = ""

    @classmethod
    def of(cls, task: Task, way: Variant) -> BrokenVariant:
        """Return the broken variant of a way that does not work for a task."""
        return cls(way, task.family, task.direction)

    @classmethod
    def parse(cls, name: str) -> BrokenVariant:
        """The fault of a name; ValueError if it is none."""
        match = _FAULT.fullmatch(name)
        if not match:
            raise ValueError(f"no way to compute: {name!r}")
        parts = match.groupdict(default="")
        return cls(Variant(parts["variant"], parts["tile"]), parts["family"], parts["direction"])

    def __str__(self) -> str:
        return f"{self.way} ({self.family} {self.direction})" if self.family else str(self.way)


@dataclass(frozen=True)
class TunedChoices:
    """The choices among the variants for a task, which come before the cost model.

    Attributes:
        sources: the fastest ways by task, as they were measured; the first source counts most.
        broken: what this driver does not build, or builds wrongly: not taken where there is anything else.
        only: implementations or variants that are wanted wherever they match, for tests and comparisons; empty: all.
    """

    sources: tuple[Mapping[Task, Variant], ...] = ()
    broken: frozenset[BrokenVariant] = frozenset()
    only: frozenset[str] = frozenset()

    def near(self, task: Task) -> Iterator[tuple[Task, Variant]]:
        """Yield the choices for a task, and for its like with batches up to NEAR times larger or smaller.

        Source by source, the nearest batch first (in logarithms): the task that was measured, and its way.
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
        """The tasks of each source by what they have in common."""
        found: list[dict[Task, list[Task]]] = []
        for source in self.sources:
            groups: dict[Task, list[Task]] = {}
            for task in source:
                groups.setdefault(task.of_any_batch, []).append(task)
            found.append(groups)
        return found


def is_broken(task: Task, way: Variant, broken: Collection[BrokenVariant]) -> bool:
    """Return True if a way is broken for a task: the way itself, its variant for such tasks, or its variant for all."""
    variant = Variant(way.variant)
    return any(
        fault in broken
        for fault in (BrokenVariant.of(task, way), BrokenVariant.of(task, variant), BrokenVariant(variant))
    )
