"""Ways to compute the same thing: a cost model proposes, and what was measured on the device decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from blobnet.kernel_call import KernelCall, Tuning

#: The directions of layers with weights, for people, benchmarks and tuning.
FORWARD, BACKWARD_DATA, BACKWARD_WEIGHTS = "forward", "backward data", "backward weights"


@dataclass(frozen=True)
class Candidate:
    """One way to compute one direction of a layer.

    Attributes:
        name: the variant and its tile, ``tiled 128x64``: its own among the candidates of a direction.
        cost: how long it should take, on a scale that the candidates of a direction share: multiply-adds of a compute
            unit of the device at the speed of the best product there.
        calls: makes the launches.
    """

    name: str
    cost: float
    calls: Callable[[], list[KernelCall]]

    @property
    def variant(self) -> str:
        """The name without the tile."""
        return self.name.partition(" ")[0]


def choose(tuning: Tuning, task: str, candidates: Sequence[Candidate]) -> Candidate:
    """The candidate that tuning chose for ``task``, else the cheapest; never one of a variant that the driver breaks.

    What tuning chose may be gone, from a cache of another version, say.
    """
    sound = [candidate for candidate in candidates if candidate.variant not in tuning.broken] or candidates
    chosen = [candidate for candidate in sound if candidate.name == tuning.choices.get(task)]
    return chosen[0] if chosen else min(sound, key=lambda candidate: candidate.cost)
