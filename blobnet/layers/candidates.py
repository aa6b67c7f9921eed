"""Ways to compute the same thing: a cost model proposes, and what was measured on the device decides."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from blobnet.kernel_call import KernelCall, Tuning

#: The directions of layers with weights, for people, benchmarks and tuning.
FORWARD, BACKWARD_DATA, BACKWARD_WEIGHTS = "forward", "backward data", "backward weights"


@dataclass(frozen=True)
class Candidate:
    """One way to compute one direction of a layer.

    Attributes:
        name: the variant and its tile, ``direct 6x4x16``: its own among the candidates of a direction.
        cost: how long it should take, on a scale that the candidates of a direction share: multiply-adds of a compute
            unit of the device at the speed of the best product there.
        calls: makes the launches.
        is_guess: whether nothing like it was measured, on any device: only tuning chooses it.
    """

    name: str
    cost: float
    calls: Callable[[], list[KernelCall]]
    is_guess: bool = False

    @property
    def variant(self) -> str:
        """The name without the tile."""
        return variant_of(self.name)

    def launches(self) -> list[KernelCall]:
        """The launches, which say whose they are."""
        return [replace(call, candidate=self.name) for call in self.calls()]


def variant_of(name: str) -> str:
    """The variant of a candidate's name."""
    return name.partition(" ")[0]


def is_broken(name: str, broken: Collection[str]) -> bool:
    """Whether a candidate, or its whole variant, is among those that a driver breaks."""
    return name in broken or variant_of(name) in broken


def choose(tuning: Tuning, task: str, candidates: Sequence[Candidate]) -> Candidate:
    """The candidate that tuning chose for ``task``, else the cheapest that is no guess; no broken one, if possible.

    What tuning chose may be gone, from a cache of another version, say.
    """
    usable = [item for item in candidates if not is_broken(item.name, tuning.broken)] or candidates
    chosen = [candidate for candidate in usable if candidate.name == tuning.choices.get(task)]
    return chosen[0] if chosen else min(usable, key=lambda candidate: (candidate.is_guess, candidate.cost))
