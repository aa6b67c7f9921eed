"""What several devices take for a step, on paper: bytes that are exchanged, and its time, from measured pieces."""

from __future__ import annotations

from dataclasses import dataclass

from blobnet.blob import FLOAT32
from blobnet.shard_sum import exchanges


@dataclass(frozen=True)
class Link:
    """What bytes go through from one rank to another, both ways at once.

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
#: NOTE: NCCL summed 102 MB in 0.40 ms on two H200s, in which each sends 102 MB, in 0.58 ms on four (153 MB).
NVLINK = Link("NVLink", 200e9, 10e-6, "on paper; NCCL on two and four H200s: 255")
HOSTS = Link("between hosts", 50e9, 20e-6, "on paper")


@dataclass(frozen=True)
class Level:
    """An exchange with the ranks at one distance, there and back.

    Attributes:
        distance: between the ranks' numbers.
        bytes: that each sends, and receives.
        link: through which.
    """

    distance: int
    bytes: int
    link: Link

    @property
    def seconds(self) -> float:
        """There and back, one behind the other."""
        return 2 * self.link.latency + self.bytes / self.link.bandwidth


def levels(elements: int, ranks: int, on_a_host: int, near: Link, far: Link) -> list[Level]:
    """The exchanges of a step's sums, of so many float32 elements.

    Args:
        elements: of the gradients and statistics.
        ranks: a power of two.
        on_a_host: so many of them, a power of two.
        near: between ranks of one host.
        far: between hosts.
    """
    found = []
    for level in exchanges(elements, 0, ranks):
        size = FLOAT32.itemsize * (len(level.mine) + len(level.other))
        found.append(Level(level.partner, size, near if level.partner < on_a_host else far))
    return found


def efficiency(step: float, exchanged: list[Level]) -> float:
    """The part of the time in which devices compute, where a step of each takes so many seconds and waits for all."""
    return step / (step + sum(level.seconds for level in exchanged))
