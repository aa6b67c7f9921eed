"""What the taps of a convolution read of its source, for kernels that copy the source's phases first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from blobnet.memory.windows import PhaseAxis


@dataclass(frozen=True)
class SourceTaps:
    """What one axis of all phases of an operation reads of a source. Cell ``i`` of its phase ``p`` is i * stride + p.

    Attributes:
        ways: for each tap of each phase of results, the source's phase that it reads, and the cell of result 0 there.
        data: cells of a phase of the source.
        results: positions side by side.
        stride: from one cell of a phase to the next, in the source.
    """

    ways: Sequence[Sequence[tuple[int, int]]]
    data: int
    results: int
    stride: int

    @classmethod
    def of(cls, axes: Sequence[PhaseAxis], source: int) -> SourceTaps:
        """Return those of one axis of each phase, for a source of so many cells."""
        stride = axes[0].stride
        reads = [[axis.shift + tap * axis.shift_step for tap in range(axis.count)] for axis in axes]
        ways = [[divmod(read, stride)[::-1] for read in taps] for taps in reads]
        return cls(ways, -(-source // stride), max(axis.size for axis in axes), stride)

    @cached_property
    def shifts(self) -> range:
        """From the first to the last cell that a tap reads for result 0."""
        found = [shift for taps in self.ways for _, shift in taps] or [0]
        return range(min(found), max(found) + 1)

    @property
    def reads(self) -> int:
        """Cells side by side of a phase of the source that taps read, from the first to the last."""
        return self.results + len(self.shifts) - 1

    @property
    def size(self) -> int:
        """Cells side by side of a phase of the source, with the zeros that taps read: the fewest."""
        return max(self.data - min(0, self.shifts[0]), self.results + max(0, self.shifts[-1]))

    @cached_property
    def phases(self) -> range:
        """The source's phases from the first to the last that a tap reads."""
        used = {phase for taps in self.ways for phase, _ in taps} or {0}
        return range(min(used), max(used) + 1)

    @property
    def is_dense(self) -> bool:
        """True if taps read all of these phases."""
        return all({phase for phase, _ in taps} == {*self.phases} for taps in self.ways if taps)
