"""Convolutions on tensor cores that take both factors from local memory, as cells (kernels/convolution/cell_product.h).

A cell is 16 bytes: units of one position, side by side, of the type of products. Blobs are copied into cells first:
positions of all samples are one row, in which zeros right of a row are those left of the next one, so that a tap is the
same cells from another position on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from blobnet.implementations.base import BACKWARD_WEIGHTS, Implementation
from blobnet.implementations.operation import Operation, Phase
from blobnet.implementations.tile import LAUNCH_COST, VALUE_COST, Tile
from blobnet.implementations.tiled import Tiled
from blobnet.launch.kernel_call import Array, Blob, GlobalSize, KernelCall, group_size, rounded_up
from blobnet.launch.kernel_source import Macro, table_text
from blobnet.memory.windows import Pair, PhaseAxis

#: Units of a cell by the type of products; its bytes, and the floats that it is as long as.
UNITS_OF_CELL, _CELL_BYTES, _CELL_FLOATS = {"tf32": 4, "bf16": 8}, 16, 4
#: The compute capability that has such tensor cores; bytes of local memory of its work-groups, less what signals need.
CAPABILITY, _LOCAL_BYTES = (9, 0), (227 << 10) - 128
#: Bytes that the cells of a blob may take.
_MAX_BYTES = 1 << 30
#: The most steps of the weights, or of the gradient's factors, that lie in local memory at once, and the fewest.
_STAGES, _MIN_STAGES = 4, 3
#: The cost of packing few cells, which wait for memory.
_PACKING_COST = 4 * LAUNCH_COST
#: Rows of a warp group's product, and its work-items.
_GROUP_ROWS, _GROUP_ITEMS = 64, 128


@dataclass(frozen=True)
class CellTile(Tile):
    """A tile of which a warp group, 128 work-items, keeps the sums of 64 positions; ``depth`` is of cells."""

    @property
    def all_taps(self) -> int:
        """Taps that have sums of their own."""
        return 1

    @property
    def items(self) -> int:
        return self.columns // _GROUP_ROWS * _GROUP_ITEMS

    def __str__(self) -> str:
        return f"{self.units}x{self.columns}"


@dataclass(frozen=True)
class GradientTile(CellTile):
    """A tile of the gradient of the weights: of ``units`` output and ``columns`` input units, and some taps.

    A warp group keeps the sums of 64 output units and ``taps``; ``tap_groups`` have the same units and other taps.
    ``depth`` is of positions.
    """

    taps: int = 1
    tap_groups: int = 1

    @property
    def all_taps(self) -> int:
        return self.taps * self.tap_groups

    @property
    def items(self) -> int:
        return self.units // _GROUP_ROWS * self.tap_groups * _GROUP_ITEMS

    def __str__(self) -> str:
        return f"{self.units}x{self.columns}x{self.all_taps}"

    @property
    def macros(self) -> dict[str, Macro]:
        return {**super().macros, "GROUP_TAPS": self.taps, "TAP_GROUPS": self.tap_groups}


#: Tiles of forward and backward data. Speeds are for tf32, and were fitted to times on an NVIDIA H200.
TILES = (
    CellTile(128, 128, 8, 128, 1, speed=9, busy=1, overhead=250),
    CellTile(64, 128, 8, 64, 1, speed=7, busy=2, overhead=250),
    CellTile(256, 128, 8, 256, 1, speed=10, busy=1, overhead=250),
    CellTile(128, 256, 8, 128, 1, speed=10, busy=1, overhead=250),
    CellTile(64, 256, 8, 64, 1, speed=7, busy=1, overhead=250),
    CellTile(64, 64, 8, 64, 1, speed=5, busy=3, overhead=250),
)
#: Tiles of the gradient of the weights.
WEIGHT_TILES = (
    GradientTile(64, 64, 64, 64, 64, 3, 3, speed=10, busy=1, overhead=300),
    GradientTile(128, 64, 64, 64, 64, 3, 1, speed=8, busy=1, overhead=300),
    GradientTile(64, 64, 64, 64, 64, speed=5, busy=3, overhead=300),
    GradientTile(64, 128, 64, 64, 128, speed=7, busy=2, overhead=300),
    GradientTile(128, 128, 64, 64, 128, speed=9, busy=1, overhead=300),
)


@dataclass(frozen=True)
class _Taps:
    """What one axis of all phases of an operation needs of a source's cells.

    Attributes:
        ways: for each tap of each phase, the source's phase that it reads, and the shift there.
        size: cells side by side of a phase of the source, zeros included.
        least: the lowest shift.
    """

    ways: Sequence[Sequence[tuple[int, int]]]
    size: int
    least: int

    @classmethod
    def of(cls, axes: Sequence[PhaseAxis], source: int) -> _Taps:
        """Return those of one axis of each phase, for a source of so many cells."""
        stride = axes[0].stride
        reads = [[axis.shift + tap * axis.shift_step for tap in range(axis.count)] for axis in axes]
        ways = [[(read % stride, read // stride) for read in taps] for taps in reads]
        shifts = [shift for taps in ways for _, shift in taps] or [0]
        reach = max(axis.size for axis in axes) + max(0, *shifts)
        return cls(ways, max(-(-source // stride) - min(0, *shifts), reach), min(shifts))

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
    """Products of matrices on tensor cores that take both factors from local memory.

    Blobs are packed as cells, the weights in the order in which work-groups copy them.
    """

    tile: CellTile

    precisions = ("tf32", "bf16")
    slower = ()
    packer = "convolution/pack_weight_cells"
    takes_rows = False

    def __init__(self, operation: Operation, tile: CellTile, wanted: int = 0) -> None:
        super().__init__(operation, tile, wanted)
        #: Units of a cell.
        self.cell = UNITS_OF_CELL[self.precision]
        cells = -(-operation.depth // self.cell)
        #: Cells of the depth in a step, and steps. Of gradients: cells of a tile, and tiles.
        self.depth_cells = tile.columns // self.cell if self.of_weights else min(tile.depth, rounded_up(cells, 2))
        self.depth_steps = -(-cells // self.depth_cells)
        #: Floats of the cells of a tap, for each unit.
        self.depth_rows = _CELL_FLOATS * self.depth_steps * self.depth_cells
        self.elements = operation.groups * operation.taps * self.depth_rows * self.unit_columns
        phases, (_, height, width) = self.phases(operation), operation.source.shape.axes
        self.rows = _Taps.of([phase.vertical for phase in phases], height)
        self.places = _Taps.of([phase.horizontal for phase in phases], width)
        #: The source's phases that taps read: a run of cells for each.
        self.runs = len(self.rows.phases) * len(self.places.phases)
        self.tables = [self._table(phase, number) for number, phase in enumerate(phases)]
        #: Positions between the first and the last tap, and from a position to the last one.
        self.span = max(span for _, span, _ in self.tables)
        reach = max(max(span, first + span) for _, span, first in self.tables)
        #: Positions of a sample, zeros included, and of zeros before the first one and after the last one.
        self.sample_positions = self.rows.size * self.places.size
        self.lead = max(0, -(self.rows.least * self.places.size + self.places.least))
        self.tail = reach + self._tile_positions
        packed = operation.batch_size * self.sample_positions * _CELL_BYTES * max(self._lists)
        is_dense = self.rows.is_dense and self.places.is_dense
        self.fits = is_dense and self.stages >= _MIN_STAGES and packed <= _MAX_BYTES

    @classmethod
    def tiles(cls, operation: Operation) -> Sequence[Tile]:
        precision, capability = operation.tuning.precision, operation.tuning.model.capability
        if precision not in cls.precisions or capability not in (None, CAPABILITY):
            return ()
        if operation.direction != BACKWARD_WEIGHTS:
            return TILES
        several = operation.taps > 1
        return [tile for tile in WEIGHT_TILES if precision == "bf16" and several == (tile.all_taps > 1)]

    @classmethod
    def candidates(cls, operation: Operation) -> Iterator[Implementation]:
        return (item for item in super().candidates(operation) if item.fits)

    def _table(self, phase: Phase, number: int) -> tuple[list[tuple[int, int, int]], int, int]:
        """Run, shift and number of each tap of a phase; how far its shifts reach, and the first of them."""
        found = []
        for i, (row_phase, row) in enumerate(self.rows.ways[number]):
            for j, (place_phase, place) in enumerate(self.places.ways[number]):
                run = (row_phase - self.rows.phases[0]) * len(self.places.phases) + place_phase - self.places.phases[0]
                y, x = (axis.first + tap * axis.step for axis, tap in ((phase.vertical, i), (phase.horizontal, j)))
                found.append((run, row * self.places.size + place, y * phase.horizontal.filter_taps + x))
        shifts = [shift for _, shift, _ in found] or [0]
        return (
            sorted((run, shift - min(shifts), tap) for run, shift, tap in found),
            max(shifts) - min(shifts),
            min(shifts),
        )

    @cached_property
    def stages(self) -> int:
        """Steps of the weights, or of the gradient's factors, in local memory: as many as there is room for."""
        tile, run = self.tile, self.span + self._tile_positions
        if self.of_weights:
            step = tile.units // self.cell * tile.depth + self.depth_cells * run
            return min(_STAGES, _LOCAL_BYTES // (_CELL_BYTES * step))
        room = _LOCAL_BYTES // (_CELL_BYTES * self.depth_cells)
        if self.run_stages is None:
            return min(_STAGES, room // (run + tile.units))
        return min(_STAGES, (room - self.run_stages * run) // tile.units)

    @property
    def _tile_positions(self) -> int:
        """Positions of a tile, or of a step of the gradient's."""
        return self.tile.depth if self.of_weights else self.tile.columns

    @property
    def run_stages(self) -> int | None:
        """Runs in local memory: two where each serves several taps, else as many as there are of the weights (None)."""
        fewest = min((len(taps) for taps, _, _ in self.tables if taps), default=1)
        return 2 if fewest > self.runs else None

    @property
    def _lists(self) -> Pair:
        """Cells of a position: of the source, and of a gradient's delta."""
        deltas = rounded_up(self.operation.units, self.tile.units) // self.cell if self.of_weights else 0
        groups = self.operation.groups
        return self.runs * groups * self.depth_steps * self.depth_cells, groups * deltas

    @cached_property
    def _tap_blocks(self) -> list[tuple[int, int]]:
        """Taps of a work-group of the gradient: the first one, and the end of those of its phase of the source."""
        taps, each = self.tables[0][0], self.tile.all_taps
        runs = [run for run, _, _ in taps]
        ends = [len(runs) - runs[::-1].index(run) for run in range(self.runs)]
        return [(tap, end) for end, start in zip(ends, [0, *ends], strict=False) for tap in range(start, end, each)]

    @property
    def cost(self) -> float:
        operation = self.operation
        read = operation.batch_size * (operation.source.shape.elements + operation.result.shape.elements)
        written = operation.batch_size * self.sample_positions * _CELL_FLOATS * sum(self._lists)
        launches = 1 + self.of_weights
        return super().cost + launches * _PACKING_COST + (read + written) * VALUE_COST / operation.cores

    def _product_cost(self, splits: int) -> float:
        if not self.of_weights:
            return super()._product_cost(splits)
        operation, tile, cores = self.operation, self.tile, self.operation.cores
        products = operation.groups * splits * len(self._tap_blocks)
        rows = operation.batch_size * self.sample_positions / splits + tile.overhead
        cost = rows * tile.all_taps * tile.cost(operation.units, operation.depth, products, cores)
        return cost + (LAUNCH_COST + operation.weights * (splits + 1) * VALUE_COST / cores if splits > 1 else 0)

    def row(self, phase: Phase) -> int:
        return self.places.size

    def positions(self, phase: Phase) -> int:
        return self.sample_positions

    @property
    def packing_items(self) -> int:
        return super().packing_items // _CELL_FLOATS

    def facts(self, phase: Phase) -> dict[str, Array | Macro]:
        taps, span, first = self.tables[self.phases(self.operation).index(phase)]
        facts: dict[str, Array | Macro] = {"CELL": self.cell, "DEPTH_CELLS": self.depth_cells}
        facts |= {"DEPTH_STEPS": self.depth_steps, "SAMPLE_POSITIONS": self.sample_positions, "LEAD": self.lead}
        facts |= {"ROW_POSITIONS": self.places.size, "TAIL": self.tail, "RUNS": self.runs, "SPAN": span}
        facts |= {
            "FIRST_SHIFT": first,
            "TAP_TABLE": table_text(taps or [(0, 0, 0)]),
            "PHASE_TAPS": len(taps),
            "STAGES": self.stages,
        }
        return {**facts, "RUN_STAGES": self.run_stages or self.stages, "CELLS": self._cells("cells", 0)}

    def _cells(self, name: str, which: int) -> Array:
        """Memory for cells of the source, or of a gradient's delta."""
        zeros, lists = (self.lead + self.tail, self.tile.depth)[which], _CELL_FLOATS * self._lists[which]
        name = f"{name} for {self.operation.direction}"
        return self.operation.memory(name, lists * zeros, lists * self.sample_positions)

    def _packed(self, blob: Blob, cells: Array, **given: Any) -> KernelCall:
        """The launch that packs a blob; ``given`` are further macros of the kernel."""
        operation, local = self.operation, group_size(self.operation.tuning.model)
        lists = cells.per_sample // (_CELL_FLOATS * self.sample_positions)
        size = GlobalSize(local, 1, lists, positions=self.sample_positions, tile=local)
        facts = {"SOURCE": blob, "CELLS": cells, "GROUP_UNITS": blob.shape.units // operation.groups, "CELL": self.cell}
        facts |= {"POSITIONS": self.sample_positions, "ROW_POSITIONS": self.places.size, "PHASES_X": 1}
        facts |= dict.fromkeys(("FIRST_PHASE_Y", "FIRST_PHASE_X"), 0) | dict.fromkeys(("STRIDE_Y", "STRIDE_X"), 1)
        return operation.call("convolution/pack_cells", size, local, f"{operation.label}: cells", **{**facts, **given})

    def _packed_source(self) -> KernelCall:
        """The launch that packs the source, as those of its phases that taps read."""
        (lists, _), phase = self._lists, self.phases(self.operation)[0]
        facts = {"LEAD": self.lead, "TAIL": self.tail, "UNIT_CELLS": lists // (self.runs * self.operation.groups)}
        facts |= {"FIRST_PHASE_Y": self.rows.phases[0], "FIRST_PHASE_X": self.places.phases[0]}
        facts |= {"STRIDE_Y": phase.vertical.stride, "STRIDE_X": phase.horizontal.stride}
        return self._packed(self.operation.source, self._cells("cells", 0), **facts, PHASES_X=len(self.places.phases))

    def _products(self) -> list[KernelCall]:
        return [self._packed_source(), *super()._products()]

    def calls(self) -> list[KernelCall]:
        if not self.of_weights:
            return super().calls()
        operation, tile = self.operation, self.tile
        deltas, unit_cells = self._cells("delta's cells", 1), self._lists[1] // operation.groups
        facts = {**self.facts(self.phases(operation)[0]), **tile.macros, "DELTAS": deltas, "DELTA_TAIL": tile.depth}
        facts |= {"BLOCK_TABLE": table_text(self._tap_blocks), "DELTA_CELLS": unit_cells}
        facts |= {"SOURCE_CELLS": self.depth_steps * self.depth_cells}
        tiles = tile.count(operation.units, operation.depth) * len(self._tap_blocks)
        size = GlobalSize(tiles * tile.items, self.splits, operation.groups, per_sample=False)
        return [
            self._packed_source(),
            self._packed(operation.output, deltas, LEAD=0, TAIL=tile.depth, UNIT_CELLS=unit_cells),
            *operation.summed("weight", self.splits, self.kernel, size, tile.items, **facts),
        ]
