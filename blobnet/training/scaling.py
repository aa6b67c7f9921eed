"""The step of several devices, on paper: bytes that are exchanged, and its time, from measured pieces."""

from __future__ import annotations

from dataclasses import dataclass, replace

from blobnet.memory.blob import FLOAT32
from blobnet.training.shard_sum import exchanges
from blobnet.training.weight_buffers import Sums


@dataclass(frozen=True)
class Link:
    """The link between two ranks, both ways at once.

    Attributes:
        name: of it.
        bandwidth: bytes a second, each way.
        latency: seconds of a message.
        source: where these come from.
    """

    name: str
    bandwidth: float
    latency: float
    source: str

    def behind(self, other: Link) -> Link:
        """One that copies through ``other`` first, and again where the bytes arrive."""
        seconds = 1 / self.bandwidth + 2 / other.bandwidth
        latency = self.latency + 2 * other.latency
        return Link(f"{self.name} and {other.name}", 1 / seconds, latency, f"{self.source}; {other.source}")


#: NOTE: the sum of 102 MB by two processes of MPICH took 81 ms, in which each sends 102 MB.
PROCESSES = Link("MPI on one host", 1.26e9, 5e-6, "measured, MPICH on two cores")
#: From memory of an H200 to the host's and back.
PAGE_LOCKED = Link("page-locked memory", 54e9, 10e-6, "measured, H200")
#: NOTE: two ranks swapped 1 MB in 0.10 ms, 109 MB in 0.43 ms.
COPIES = Link("copies over NVLink", 330e9, 0.1e-3, "measured, two H200s")
HOSTS = Link("between hosts", 50e9, 20e-6, "on paper")


@dataclass(frozen=True)
class Level:
    """An exchange with the ranks at one distance, there and back.

    Attributes:
        distance: between the ranks' numbers.
        messages: there and back.
        bytes: that each sends, and receives.
        link: through which.
    """

    distance: int
    messages: int
    bytes: int
    link: Link

    @property
    def seconds(self) -> float:
        """There and back, one behind the other."""
        return self.messages * self.link.latency + self.bytes / self.link.bandwidth


def levels(sums: Sums, ranks: int, on_a_host: int, near: Link, far: Link) -> list[Level]:
    """The exchanges of a step's sums, of float32.

    Args:
        sums: what they are.
        ranks: a power of two.
        on_a_host: so many of them, a power of two.
        near: between ranks of one host.
        far: between hosts.
    """
    found = []
    trees = (exchanges(part, 0, ranks, whole=sums.goes_whole(part)) for part in sums.parts)
    for of_parts in zip(*trees, strict=True):
        size = FLOAT32.itemsize * sum(level.elements for level in of_parts)
        distance, messages = of_parts[0].partner, sum(level.messages for level in of_parts)
        found.append(Level(distance, messages, size, near if distance < on_a_host else far))
    return found


def at_once(sums: Sums, ranks: int, link: Link) -> Level:
    """The exchange of a step's sums by all ranks of a host at once, as GPUs copy from each other."""
    sums = replace(sums, ranks=ranks)
    messages = [1 if sums.goes_whole(part) else 2 for part in sums.parts]
    size = sum(
        count * (ranks - 1) * len(sums.pieces(part)[0]) for count, part in zip(messages, sums.parts, strict=True)
    )
    return Level(1, sum(messages), FLOAT32.itemsize * size, link)


def efficiency(step: float, exchanged: list[Level]) -> float:
    """The part of the time in which devices compute, at least: as if nothing hid behind a step of these seconds."""
    return step / (step + sum(level.seconds for level in exchanged))
