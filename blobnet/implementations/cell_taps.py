"""What the taps of products of cells read, and in which order (kernels/convolution/cell_product.h)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import TypeAlias

from blobnet.implementations.operation import Operation, Phase
from blobnet.implementations.source_taps import SourceTaps

#: Of each tap the source's phase that it reads, its shift and its number; how far shifts reach; the first of them.
TapTable: TypeAlias = tuple[list[tuple[int, int, int]], int, int]


@dataclass(frozen=True)
class Runs:
    """The runs of cells that the taps of a phase of results read.

    Attributes:
        table: of each run where its cells begin, and its first position.
        taps: of each tap its run, its first cell there from that position's on, and its number.
        span: positions from the first tap to the last.
    """

    table: Sequence[tuple[int, int]]
    taps: Sequence[tuple[int, int, int]]
    span: int


@dataclass(frozen=True)
class CellTaps:
    """The taps of all phases of results, and what they read of the source along each axis.

    Attributes:
        phases: of the results.
        rows, places: what taps read along each axis.
        folded: taps of a row that count as units of the source, or 1.
    """

    phases: Sequence[Phase]
    rows: SourceTaps
    places: SourceTaps
    folded: int

    @classmethod
    def of(cls, operation: Operation, phases: Sequence[Phase], folded: int) -> CellTaps:
        """Return those of an operation."""
        _, height, width = operation.source.shape.axes
        rows = SourceTaps.of([phase.vertical for phase in phases], height)
        places = SourceTaps.of([phase.horizontal for phase in phases], width)
        if folded > 1:
            places = SourceTaps([[(0, 0)]], places.results, places.results, 1)
        return cls(phases, rows, places, folded)

    @property
    def source_phases(self) -> int:
        """The source's phases that taps read."""
        return len(self.rows.phases) * len(self.places.phases)

    @property
    def is_dense(self) -> bool:
        """Whether they read all of these."""
        return self.rows.is_dense and self.places.is_dense

    @property
    def ways_beside(self) -> Sequence[int]:
        """How many phases of a row may be copied side by side where cells are scattered: all, or one.

        Memory gives two neighbours at once; and what is copied together must have room together.
        """
        phases = len(self.places.phases)
        return (phases, 1) if phases > 1 and self.places.is_dense else (1,)

    def table(self, number: int, row: int) -> TapTable:
        """Return the table of a phase of results, of so many positions in a ``row``."""
        phase, found = self.phases[number], []
        for i, (row_phase, rows) in enumerate(self.rows.ways[number]):
            for j, (place_phase, places) in enumerate(self.places.ways[number]):
                below, beside = row_phase - self.rows.phases[0], place_phase - self.places.phases[0]
                y, x = (axis.first + tap * axis.step for axis, tap in ((phase.vertical, i), (phase.horizontal, j)))
                tap = y * phase.horizontal.filter_taps // self.folded + x
                found.append((below * len(self.places.phases) + beside, rows * row + places, tap))
        shifts = [shift for _, shift, _ in found] or [0]
        first = min(shifts)
        return sorted((source, shift - first, tap) for source, shift, tap in found), max(shifts) - first, first

    def runs(self, table: TapTable, apart: int, pitch: int, positions: int, beside: int, *, in_rows: bool) -> Runs:
        """Return the runs of a table.

        Args:
            table: of the taps.
            apart: cells from one phase of the source to the next, where these are packed.
            pitch: of the blob in which cells are scattered, or 0.
            positions: those of a tile.
            beside: phases of a row that a run has. Each has ``positions + span`` cells in it, one after the other.
            in_rows: whether each row of taps has a run of its own.
        """
        starts = [phase * apart for phase in range(self.source_phases)]
        if pitch:
            starts = [y * pitch + x for y, x in product(self.rows.phases, self.places.phases)]
        row_taps = self.phases[0].horizontal.filter_taps // self.folded
        runs = dict[tuple[int, int], list[tuple[int, int, int]]]()
        for phase, shift, tap in table[0] or [(0, 0, 0)]:
            row = tap // row_taps if in_rows else 0
            runs.setdefault((phase // beside, row), []).append((shift, phase % beside, tap))
        firsts = [min(shift for shift, _, _ in found) for found in runs.values()]
        moved = [
            (run, shift - first, phase, tap)
            for run, (found, first) in enumerate(zip(runs.values(), firsts, strict=True))
            for shift, phase, tap in found
        ]
        span = max(shift for _, shift, _, _ in moved)
        taps = [(run, shift + phase * (positions + span), tap) for run, shift, phase, tap in moved]
        begin = [(starts[phases * beside], first) for (phases, _), first in zip(runs, firsts, strict=True)]
        return Runs(begin, taps[: len(table[0])], span)
