"""Ways to compute the same thing: a cost model proposes, and what was measured on the device decides."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, ClassVar

from blobnet.launch.kernel_call import KernelCall
from blobnet.launch.task import Task, TunedChoices, Variant, is_broken

if TYPE_CHECKING:
    from blobnet.implementations.operation import Operation

#: The directions of layers with weights, for people, benchmarks and tuning.
DIRECTIONS = FORWARD, BACKWARD_DATA, BACKWARD_WEIGHTS = "forward", "backward data", "backward weights"


class Implementation(ABC):
    """A way to compute operations: one file of this package (docs/implementations.md).

    The class says what it can compute. A value is a candidate: the way for one operation, with one tile.

    Attributes:
        operation: what it computes.
        tile: what is its own among the candidates of the implementation; empty where there is but one.
        directions: those that it knows.
        families: of operations: ``convolution``, ``dense``.
        lanes: the devices that it is for: those whose work-items are lanes (GPUs), those whose are not, None: all.
        variants: of its ways: as a rule one, with the file's name.
        kernels: the pattern of its kernels' names.
        precisions: what its products may round their factors to: it is for those who asked for one of them.
        takes_cells, needs_cells: whether blobs may have cells for elements, and whether they must.
        slower: directions in which compiled kernels were measured to be faster, where a program has these anyway.
        doubt: how little is known of its speed: 0 where its like was measured, 1 of a tile that nobody measured, 2 of
            what is compiled. Without tuning the cheapest of the least doubt is chosen.
        fits: whether the device has the memory for a candidate: others are not proposed.
    """

    directions: ClassVar[tuple[str, ...]] = DIRECTIONS
    families: ClassVar[tuple[str, ...]] = ("convolution",)
    lanes: ClassVar[bool | None]
    variants: ClassVar[tuple[str, ...]]
    kernels: ClassVar[str] = "{family}/{direction}_{variant}"
    precisions: ClassVar[tuple[str, ...]] = ("fp32",)
    takes_cells: ClassVar[bool] = False
    needs_cells: ClassVar[bool] = False
    slower: ClassVar[tuple[str, ...]] = ()
    doubt: int = 0
    fits: bool = True

    # ``variant`` and ``suffix``: what else its way is called by than the one variant, and the tile. Names are made when
    # somebody asks: of dozens of candidates a plan names one.
    def __init__(self, operation: Operation, tile: Any = "", variant: str = "", suffix: str = "") -> None:
        self.operation, self.tile, self._name = operation, tile, (variant, suffix)
        self.doubt = max(self.doubt, getattr(tile, "doubt", 0))

    def __init_subclass__(cls) -> None:
        name = cls.__module__.rpartition(".")[2].removeprefix("dense_")
        cls.variants = cls.__dict__.get("variants", (name,))

    @classmethod
    def matches(cls, operation: Operation) -> bool:
        """Return True if it can compute an operation, and is worth trying; on which device does not matter."""
        return operation.family in cls.families and operation.direction in cls.directions

    @classmethod
    def tiles(cls, operation: Operation) -> Iterable[Any]:
        """The tiles for an operation that it matches."""
        return ("",)

    @classmethod
    def candidates(cls, operation: Operation) -> Iterator[Implementation]:
        """The ways to compute an operation that it matches."""
        return (item for item in (cls(operation, tile) for tile in cls.tiles(operation)) if item.fits)

    @classmethod
    def kernel_of(cls, direction: str) -> str:
        """The kernel for a direction."""
        name = direction.removesuffix("s").replace(" ", "_")
        return cls.kernels.format(family=cls.families[0], direction=name, variant=cls.variants[0])

    @property
    def kernel(self) -> str:
        """The kernel for the operation."""
        return self.kernel_of(self.operation.direction)

    @property
    def way(self) -> Variant:
        """The variant, which is its own among the candidates of a task."""
        variant, suffix = self._name
        return Variant(variant or self.variants[0], f"{self.tile}{suffix}")

    @property
    def precision(self) -> str:
        """What its products round their factors to."""
        asked = self.operation.tuning.precision
        return asked if asked in self.precisions else self.precisions[0]

    @classmethod
    def tunables(cls, operation: Operation) -> dict[str, int]:
        """Return the kernel's tunables for an operation."""
        return operation.tuning.of(cls.kernel_of(operation.direction))

    def of(self, operation: Operation) -> Implementation:
        """The same way for an operation of the same geometry."""
        made = copy(self)
        made.operation = operation
        return made

    @property
    @abstractmethod
    def cost(self) -> float:
        """The predicted time, in multiply-adds of a compute unit at the speed of the device's best product."""

    @abstractmethod
    def calls(self) -> list[KernelCall]:
        """The launches."""


def unbroken(choices: TunedChoices, task: Task, candidates: Sequence[Implementation]) -> Sequence[Implementation]:
    """Return those that no driver is known to refuse or to build wrongly."""
    broken = choices.broken
    return [item for item in candidates if not is_broken(task, item.way, broken)] if broken else candidates


def choose(choices: TunedChoices, task: Task, candidates: Sequence[Implementation]) -> Implementation:
    """The candidate that was chosen for ``task``, else the cheapest of the least doubtful; no broken one, if possible.

    What was chosen may not be there: tiles change from version to version, and some come and go with the batch.
    """
    usable = unbroken(choices, task, candidates) or candidates
    for _, way in choices.near(task):
        if found := [item for item in usable if item.way == way]:
            return found[0]
    # Costs take time, and so only those that decide are computed.
    least = min(item.doubt for item in usable)
    first = [item for item in usable if item.doubt == least]
    return first[0] if len(first) == 1 else min(first, key=lambda item: item.cost)
