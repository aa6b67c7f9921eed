"""Convolutions on tensor cores that take both factors from local memory, as cells (kernels/convolution/cell_product.h).

A cell is 16 bytes: units of one position, side by side, of the type of products. The source is copied into cells first:
positions of all samples are one row, in which zeros right of a row are those left of the next one, so that a tap is the
same cells from another position on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from blobnet.implementations.base import BACKWARD_DATA, FORWARD
from blobnet.implementations.operation import Operation, Phase
from blobnet.implementations.tile import LAUNCH_COST, VALUE_COST, Tile
from blobnet.implementations.tiled import Tiled
from blobnet.launch.kernel_call import Array, GlobalSize, KernelCall, group_size, rounded_up
from blobnet.launch.kernel_source import Macro
from blobnet.memory.windows import PhaseAxis

#: Units of a cell by the type of products, its bytes, and the floats that it is as long as.
UNITS_OF_CELL, _CELL_BYTES, _CELL_FLOATS = {"tf32": 4, "bf16": 8}, 16, 4
#: The compute capability of these tensor cores; bytes of local memory of a work-group there, less what signals need.
CAPABILITY, _LOCAL_BYTES = (9, 0), (227 << 10) - 128
#: Bytes that the cells of a source may take.
_MAX_BYTES = 1 << 30
#: The most taps whose weights lie in local memory at once, and the fewest.
_STAGES, _MIN_STAGES = 4, 3
_GROUP_POSITIONS, _GROUP_ITEMS = 64, 128


@dataclass(frozen=True)
class CellTile(Tile):
    """A tile of which a warp group, 128 work-items, keeps the sums of 64 positions; ``depth`` is of cells."""

    @property
    def items(self) -> int:
        return self.columns // _GROUP_POSITIONS * _GROUP_ITEMS

    def __str__(self) -> str:
        return f"{self.units}x{self.columns}"


#: Tiles of forward and backward data.
TILES = (
    CellTile(128, 128, 8, 128, 1, speed=9, busy=2, overhead=150),
    CellTile(64, 128, 8, 64, 1, speed=7, busy=2, overhead=150),
    CellTile(256, 128, 8, 256, 1, speed=10, busy=1, overhead=150),
    CellTile(128, 256, 8, 128, 1, speed=10, busy=1, overhead=150),
    CellTile(64, 256, 8, 64, 1, speed=7, busy=1, overhead=150),
    CellTile(64, 64, 8, 64, 1, speed=5, busy=3, overhead=150),
)


@dataclass(frozen=True)
class _Taps:
    """What one axis of all phases needs of a source's cells, in cells of its phases.

    ``ways`` are for each tap of each phase the source's phase and the shift there; ``size`` is of the cells side by side,
    zeros included, ``least`` the lowest shift.
    """

    ways: Sequence[Sequence[tuple[int, int]]]
    size: int
    least: int

    @classmethod
    def of(cls, axes: Sequence[PhaseAxis], source: int) -> _Taps:
        ways = [
            [divmod(axis.shift + tap * axis.shift_step, axis.stride)[::-1] for tap in range(axis.count)]
            for axis in axes
        ]
        shifts = [shift for taps in ways for _, shift in taps] or [0]
        data = -(-source // axes[0].stride)
        reach = max(axis.size for axis in axes) + max(0, *shifts)
        return cls(ways, max(data - min(0, *shifts), reach), min(shifts))

    @property
    def phases(self) -> range:
        """The source's phases from the first to the last that a tap reads."""
        used = {phase for taps in self.ways for phase, _ in taps} or {0}
        return range(min(used), max(used) + 1)

    @property
    def is_dense(self) -> bool:
        """True if taps read all of these phases."""
        return all({phase for phase, _ in taps} == {*self.phases} for taps in self.ways if taps)


class Cells(Tiled):
    """Products of matrices on tensor cores that take both factors from local memory, for those who asked for their types.

    The source is packed as cells, the weights in the order in which work-groups copy them.
    """

    precisions = ("tf32", "bf16")
    directions = (FORWARD, BACKWARD_DATA)
    slower = ()
    packer = "convolution/pack_weight_cells"
    takes_rows = False

    def __init__(self, operation: Operation, tile: Tile, wanted: int = 0) -> None:
        super().__init__(operation, tile, wanted)
        #: Units of a cell.
        self.cell = UNITS_OF_CELL[self.precision]
        cells = -(-operation.depth // self.cell)
        #: Cells of the depth in a step, and steps.
        self.depth_cells = min(tile.depth, rounded_up(cells, 2))
        self.depth_steps = -(-cells // self.depth_cells)
        #: Floats of the cells of a tap, for each unit.
        self.depth_rows = _CELL_FLOATS * self.depth_steps * self.depth_cells
        self.elements = operation.groups * operation.taps * self.depth_rows * self.unit_columns
        phases, (_, height, width) = self.phases(operation), operation.source.shape.axes
        self.rows = _Taps.of([phase.vertical for phase in phases], height)
        self.places = _Taps.of([phase.horizontal for phase in phases], width)
        self.lead = max(0, -(self.rows.least * self.places.size + self.places.least))
        self.tables = [self._table(number) for number in range(len(phases))]
        #: Positions between the first and the last tap of a run.
        self.span = max((span for _, span, _ in self.tables), default=0)
        self.sample_positions = self.rows.size * self.places.size
        self.all_positions = self.lead + operation.batch_size * self.sample_positions + tile.columns + self.span
        runs = len(self.rows.phases) * len(self.places.phases)
        self.cells = runs * operation.groups * self.depth_steps * self.depth_cells * self.all_positions
        is_dense = self.rows.is_dense and self.places.is_dense
        self.fits = is_dense and self.stages >= _MIN_STAGES and _CELL_BYTES * self.cells <= _MAX_BYTES

    @classmethod
    def tiles(cls, operation: Operation) -> Sequence[Tile]:
        model = operation.tuning.model
        is_here = operation.tuning.precision in cls.precisions and model.capability in (None, CAPABILITY)
        return TILES if is_here else ()

    @classmethod
    def candidates(cls, operation: Operation) -> Iterator[Tiled]:
        return (item for item in super().candidates(operation) if item.fits)

    def _table(self, number: int) -> tuple[list[tuple[int, int, int]], int, int]:
        """Run, shift and number of each tap of a phase; how far its shifts reach, and the first of them."""
        phase, runs = self.phases(self.operation)[number], len(self.places.phases)
        found = []
        for i, (row_phase, row) in enumerate(self.rows.ways[number]):
            for j, (place_phase, place) in enumerate(self.places.ways[number]):
                run = (row_phase - self.rows.phases[0]) * runs + place_phase - self.places.phases[0]
                y, x = (axis.first + tap * axis.step for axis, tap in ((phase.vertical, i), (phase.horizontal, j)))
                found.append((run, row * self.places.size + place, y * phase.horizontal.filter_taps + x))
        shifts = [shift for _, shift, _ in found] or [0]
        taps = sorted((run, shift - min(shifts), tap) for run, shift, tap in found)
        return taps, max(shifts) - min(shifts), min(shifts)

    @cached_property
    def stages(self) -> int:
        """Taps whose weights lie in local memory at once, as many as there is room for."""
        room = _LOCAL_BYTES // (_CELL_BYTES * self.depth_cells)
        run = self.tile.columns + self.span
        if self.taps_of_run == 1:
            return min(_STAGES, room // (run + self.tile.units))
        return min(_STAGES, (room - 2 * run) // self.tile.units)

    @property
    def taps_of_run(self) -> int:
        """Taps of the run that has the fewest."""
        runs = len(self.rows.phases) * len(self.places.phases)
        return min((len(taps) for taps, _, _ in self.tables if taps), default=1) // runs

    @property
    def cost(self) -> float:
        operation = self.operation
        values = operation.batch_size * operation.source.shape.elements + _CELL_FLOATS * self.cells
        return super().cost + LAUNCH_COST + values * VALUE_COST / operation.cores

    def row(self, phase: Phase) -> int:
        return self.places.size

    def positions(self, phase: Phase) -> int:
        return self.sample_positions

    @property
    def packing_items(self) -> int:
        return super().packing_items // _CELL_FLOATS

    @cached_property
    def _source(self) -> Array:
        """The source's cells, in memory."""
        name = f"cells for {self.operation.direction}"
        return self.operation.memory(name, _CELL_FLOATS * self.cells)

    def facts(self, phase: Phase) -> dict[str, Array | Macro]:
        taps, span, first = self.tables[self.phases(self.operation).index(phase)]
        table = ", ".join("{" + ", ".join(map(str, row)) + "}" for row in taps)
        return {
            **self._lie,
            "CELLS": self._source,
            "RUNS": len(self.rows.phases) * len(self.places.phases),
            "SPAN": span,
            "FIRST_SHIFT": first,
            "TAP_TABLE": "{" + table + "}",
            "STAGES": self.stages,
            "RUN_STAGES": 2 if self.taps_of_run > 1 else self.stages,
        }

    @property
    def _lie(self) -> dict[str, Macro]:
        """How cells lie, as macros."""
        lie = {"CELL": self.cell, "DEPTH_CELLS": self.depth_cells, "DEPTH_STEPS": self.depth_steps}
        lie |= {"SAMPLE_POSITIONS": self.sample_positions, "POSITIONS": self.sample_positions}
        return {**lie, "ROW_POSITIONS": self.places.size, "ALL_POSITIONS": self.all_positions, "LEAD": self.lead}

    def _products(self) -> list[KernelCall]:
        operation, local = self.operation, group_size(self.operation.tuning.model)
        runs = len(self.rows.phases) * len(self.places.phases)
        units = runs * operation.groups * self.depth_steps * self.depth_cells
        size = GlobalSize(local, 1, units, positions=self.sample_positions, tile=local)
        phase = self.phases(operation)[0]
        facts = {"SOURCE": operation.source, "CELLS": self._source, "GROUP_UNITS": operation.depth}
        facts |= {"UNIT_CELLS": self.depth_steps * self.depth_cells, "PHASES_X": len(self.places.phases)}
        facts |= {"FIRST_PHASE_Y": self.rows.phases[0], "FIRST_PHASE_X": self.places.phases[0]}
        facts |= {"STRIDE_Y": phase.vertical.stride, "STRIDE_X": phase.horizontal.stride}
        label = f"{operation.label}: cells"
        cells = operation.call("convolution/pack_cells", size, local, label, **{**self._lie, **facts})
        return [cells, *super()._products()]
