"""Ways to compute the same thing: a cost model proposes, and what was measured on the device decides."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from blobnet.device_model import DeviceModel
from blobnet.kernel_call import KernelCall
from blobnet.task import Choices, Task, Way, is_broken

if TYPE_CHECKING:
    from blobnet.implementations.operation import Operation

#: The directions of layers with weights, for people, benchmarks and tuning.
FORWARD, BACKWARD_DATA, BACKWARD_WEIGHTS = "forward", "backward data", "backward weights"


@dataclass(frozen=True)
class Candidate:
    """One way to compute an operation.

    Attributes:
        way: its own among the candidates of a task.
        cost: how long it should take, on a scale that the candidates of an operation share: multiply-adds of a compute
            unit of the device at the speed of the best product there.
        calls: makes the launches.
        is_guess: whether nothing like it was measured, on any device: only tuning chooses it.
        is_last_resort: whether it is chosen without tuning only where there is no other.
        precision: what its products round their factors to, one of PRECISIONS.
    """

    way: Way
    cost: float
    calls: Callable[[], list[KernelCall]]
    is_guess: bool = False
    is_last_resort: bool = False
    precision: str = "fp32"


class Implementation(ABC):
    """A way to compute operations, with any tile: one file of this package (docs/implementations.md).

    Attributes:
        forward, backward_data, backward_weights: the kernel of each direction that it knows.
        families: of operations: ``convolution``, ``dense``.
        lanes: the devices that it is for: those whose work-items are lanes (GPUs), those whose are not, None: all.
    """

    forward: ClassVar[str] = ""
    backward_data: ClassVar[str] = ""
    backward_weights: ClassVar[str] = ""
    families: ClassVar[tuple[str, ...]] = ("convolution",)
    lanes: ClassVar[bool | None]

    @property
    def variants(self) -> tuple[str, ...]:
        """The variants of its candidates: as a rule one, with the file's name."""
        return (type(self).__module__.rpartition(".")[2].removeprefix("dense_"),)

    @property
    def variant(self) -> str:
        """The one of them, where there is one."""
        return self.variants[0]

    def way(self, tile: object = "") -> Way:
        """The way to compute with a tile."""
        return Way(self.variant, str(tile))

    def kernel(self, operation: Operation) -> str:
        """The kernel for an operation, empty if it knows none."""
        return self.kernels[operation.direction]

    @property
    def kernels(self) -> dict[str, str]:
        """The kernels by direction."""
        return {FORWARD: self.forward, BACKWARD_DATA: self.backward_data, BACKWARD_WEIGHTS: self.backward_weights}

    def needs(self, model: DeviceModel) -> bool:
        """Whether a device has what it needs."""
        return self.lanes is None or model.items_are_lanes == self.lanes

    def matches(self, operation: Operation) -> bool:
        """Whether it can compute an operation; on which device does not matter."""
        return operation.family in self.families and self.kernel(operation) != ""

    @abstractmethod
    def candidates(self, operation: Operation) -> Iterator[Candidate]:
        """The candidates for an operation that it matches; none where it is not worth trying."""


def choose(choices: Choices, task: Task, candidates: Sequence[Candidate]) -> Candidate:
    """The candidate that was chosen for ``task``, else the cheapest that is no guess; no broken one, if possible.

    What was chosen, for this batch or a near one, may not be there: tiles change from version to version, and some
    candidates come and go with the batch.
    """
    usable = [item for item in candidates if not is_broken(task, item.way, choices.broken)] or candidates
    for _, way in choices.near(task):
        for candidate in usable:
            if candidate.way == way:
                return candidate
    return min(usable, key=lambda candidate: (candidate.is_last_resort, candidate.is_guess, candidate.cost))
