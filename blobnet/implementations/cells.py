"""Convolutions on tensor cores that take both factors from local memory, as cells (kernels/convolution/cell_product.h).

A cell is 16 bytes: units of one position, side by side, of the type of products. Positions of all samples are one row,
in which zeros right of a row are those left of the next one, so that a tap is the same cells from another position on.
Blobs that have cells are read where they lie, if the zeros between positions do, else copied cell by cell; blobs of
numbers are packed into cells first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any, Literal

from blobnet.hardware.device_model import HOPPER
from blobnet.implementations.base import BACKWARD_DATA, BACKWARD_WEIGHTS, Implementation
from blobnet.implementations.cell_taps import CellTaps, TapTable
from blobnet.implementations.operation import Operation, Phase
from blobnet.implementations.tile import LAUNCH_COST, VALUE_COST, Tile
from blobnet.implementations.tiled import Tiled
from blobnet.launch.kernel_call import Array, Blob, GlobalSize, KernelCall, rounded_up
from blobnet.launch.kernel_source import Macro, table_text
from blobnet.launch.work_sizes import group_size
from blobnet.memory.blob import CELLS_OF, BlobLayout, Shape
from blobnet.memory.windows import Pair

#: Bytes of a cell, and the floats that it is as long as.
_CELL_BYTES, _CELL_FLOATS = 16, 4
#: Bytes of local memory of a compute unit, and what each work-group takes of it besides its cells, alignment included.
_LOCAL_BYTES, _GROUP_BYTES = 228 << 10, (1 << 10) + 128
#: Bytes that the cells of a blob may take.
_MAX_BYTES = 1 << 30
#: The most steps of the weights, or of the gradient's factors, that lie in local memory at once, and the fewest.
_STAGES, _MIN_STAGES = 4, 3
#: The fewest runs of the source that lie there; units of a result that leave through local memory at once.
_MIN_RUNS, _STAGED_UNITS = 2, 32
#: The cost of packing few cells, which wait for memory; and of a launch with much local memory, before and after which
#: compute units divide theirs anew: with 35 of these mobilenet_v2 takes 0.58 ms for an image, without 0.40 (H200).
_PACKING_COST, _DIVIDING_COST = 4 * LAUNCH_COST, 2 * LAUNCH_COST
#: Most products in which some factors are zeros, or whose sums nobody wants, as a multiple of the fewest.
_ZEROS = 4 / 3
#: Rows of a warp group's product, and its work-items.
_GROUP_ROWS, _GROUP_ITEMS = 64, 128


@dataclass(frozen=True)
class CellTile(Tile):
    """A tile of which a warp group, 128 work-items, keeps the sums of some positions; ``depth`` is of cells.

    These are 64, for all units of the tile; or more, for 64 units (kernels/convolution/cell_product.h).
    """

    group_positions: int = field(default=_GROUP_ROWS, kw_only=True)

    @property
    def all_taps(self) -> int:
        """Taps that have sums of their own."""
        return 1

    @property
    def positions(self) -> int:
        """Positions of a step."""
        return self.columns

    @property
    def staged_cells(self) -> int:
        """Local memory for results, in cells (kernels/convolution/cell_product.h)."""
        return _STAGED_UNITS * (self.columns + 4) // _CELL_FLOATS

    @property
    def units_are_rows(self) -> bool:
        """Whether units are rows of a warp group's product, and positions columns."""
        return self.group_positions > _GROUP_ROWS

    @property
    def items(self) -> int:
        return self.columns // self.group_positions * _GROUP_ITEMS

    def __str__(self) -> str:
        turned = f"/{self.group_positions}" if self.units_are_rows else ""
        return f"{self.units}x{self.columns}{turned}"


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
    def positions(self) -> int:
        return self.depth

    @property
    def items(self) -> int:
        return self.units // _GROUP_ROWS * self.tap_groups * _GROUP_ITEMS

    def __str__(self) -> str:
        return f"{self.units}x{self.columns}x{self.depth}/{self.all_taps}"

    @property
    def macros(self) -> dict[str, Macro]:
        return {**super().macros, "GROUP_TAPS": self.taps, "TAP_GROUPS": self.tap_groups}


#: Tiles of forward and backward data. Speeds are for tf32, and were fitted to times on an NVIDIA H200.
TILES = (
    CellTile(128, 128, 8, 128, 1, speed=7.7, busy=1, overhead=210),
    CellTile(64, 128, 8, 64, 1, speed=5.8, busy=2, overhead=170),
    CellTile(256, 128, 8, 256, 1, speed=10, busy=1, overhead=220),
    CellTile(128, 256, 8, 128, 1, speed=10, busy=1, overhead=250),
    CellTile(64, 256, 8, 64, 1, speed=7, busy=1, overhead=170),
    CellTile(64, 256, 8, 64, 1, speed=8.5, busy=1, overhead=245, group_positions=256),
    CellTile(64, 64, 8, 64, 1, speed=4.8, busy=3, overhead=150),
    CellTile(32, 128, 8, 32, 1, speed=3.8, busy=3, overhead=240),
    CellTile(96, 128, 8, 96, 1, speed=6.7, busy=2, overhead=220),
    CellTile(192, 128, 8, 192, 1, speed=10.1, busy=1, overhead=260),
)
#: Tiles of the gradient of the weights.
WEIGHT_TILES = (
    GradientTile(64, 64, 128, 64, 64, 3, 3, speed=12, busy=1, overhead=300),
    GradientTile(64, 64, 64, 64, 64, 3, 3, speed=10, busy=1, overhead=300),
    GradientTile(64, 64, 128, 64, 64, 2, 2, speed=8, busy=1, overhead=300),
    GradientTile(128, 64, 128, 64, 64, 3, 1, speed=10.5, busy=1, overhead=300),
    GradientTile(128, 64, 64, 64, 64, 3, 1, speed=8, busy=1, overhead=300),
    GradientTile(64, 64, 64, 64, 64, speed=5, busy=3, overhead=300),
    GradientTile(64, 128, 64, 64, 128, speed=7, busy=2, overhead=300),
    GradientTile(128, 128, 128, 64, 128, speed=10, busy=1, overhead=300),
    GradientTile(128, 256, 64, 64, 256, speed=10, busy=1, overhead=300),
)
#: Those of tf32, whose work-items load what they multiply (kernels/warp_group.h), also for few columns.
TF32_WEIGHT_TILES = (
    GradientTile(64, 64, 64, 64, 64, 3, 3, speed=5, busy=1, overhead=300),
    GradientTile(64, 64, 32, 64, 64, 3, 3, speed=4.3, busy=1, overhead=300),
    GradientTile(128, 64, 64, 64, 64, 2, 2, speed=4.3, busy=1, overhead=300),
    GradientTile(64, 64, 64, 64, 64, 2, 2, speed=3.2, busy=1, overhead=300),
    GradientTile(128, 64, 32, 64, 64, 3, 1, speed=3.3, busy=1, overhead=300),
    GradientTile(128, 128, 64, 64, 128, speed=3.6, busy=1, overhead=300),
    GradientTile(128, 64, 64, 64, 64, speed=2.6, busy=1, overhead=300),
    GradientTile(64, 128, 64, 64, 128, speed=2.2, busy=1, overhead=300),
    GradientTile(64, 64, 64, 64, 64, speed=1.8, busy=1, overhead=300),
)
#: Those for taps that lie as units do: there are few columns, and a step has more positions.
FEW_TILES = (
    GradientTile(64, 64, 128, 64, 64, 2, 2, speed=9, busy=1, overhead=300),
    GradientTile(64, 64, 128, 64, 64, 3, 1, speed=5, busy=1, overhead=300),
    GradientTile(64, 64, 128, 64, 64, 1, 1, speed=4, busy=3, overhead=300),
)


def _room(groups: int) -> int:
    """Cells of local memory for each of some work-groups side by side on a compute unit."""
    return (_LOCAL_BYTES // groups - _GROUP_BYTES) // _CELL_BYTES


def _list_pitch(cells: int, precision: str) -> int:
    """From list to list of a gradient in local memory: LIST_PITCH of kernels/warp_group.h."""
    return cells if precision != "tf32" else (cells + 3) // 8 * 8 + 4


def _folded(operation: Operation) -> int:
    """Taps of a row that lie in cells as units do; 1 where units alone fill a cell."""
    few = operation.depth <= CELLS_OF[operation.tuning.precision].cell and operation.source.type.cell == 1
    return operation.horizontal.kernel if few and operation.direction != BACKWARD_DATA else 1


@dataclass(frozen=True)
class _Lists:
    """Where cells lie: for each cell of the units a list of a sample's positions.

    Attributes:
        cells: lists of a group.
        list, sample: cells from list to list, and from sample to sample.
        base: the cell of the first position.
        way: they ``lie`` so in the blob, are ``scattered`` there, so that products copy them one by one, or ``packed``:
            copied by a launch before.
    """

    cells: int
    list: int
    sample: int
    base: int
    way: Literal["lie", "scattered", "packed"]


@dataclass(frozen=True)
class _Positions:
    """How positions and cells are counted.

    Attributes:
        row, sample: positions of a row, and of a sample with the zeros around it.
        tables: of the taps of each phase of results.
        lists: the source's, and a gradient's delta's.
        whole: whether work-groups copy samples whole, as few long pieces; samples are whole warp groups then.
    """

    row: int
    sample: int
    tables: Sequence[TapTable]
    lists: Sequence[_Lists]
    whole: bool


def _window(operation: Operation, phase: Phase, folded: int) -> dict[str, Macro]:
    """How the filter's taps lie in the packed weights (kernels/convolution/pack_weight_cells.cl)."""
    taps = phase.filter_taps // folded
    facts: dict[str, Macro] = {"FILTER_TAPS": taps, "TAPS": taps, "RESULT_CELL": operation.result.type.cell}
    facts["WINDOW_WIDTH"] = phase.horizontal.filter_taps // folded
    axes = (
        (phase.vertical, operation.vertical, "Y", "HEIGHT", 1),
        (phase.horizontal, operation.horizontal, "X", "WIDTH", folded),
    )
    for axis, filters, y, height, of_units in axes:
        facts[f"DILATION_{y}"] = filters.dilation if axis.is_window else 1
        facts[f"WAY_{y}"] = axis.offset + filters.padding[0] - axis.shift * axis.beside if axis.is_window else 0
        facts[f"KERNEL_{height}"] = filters.kernel // of_units
    return facts


class Cells(Tiled):
    """Products of matrices on tensor cores that take both factors from local memory.

    Blobs have cells, or are packed as cells; the weights are in the order in which work-groups copy them.
    """

    tile: CellTile

    precisions = ("tf32", "bf16", "fp16")
    slower = ()
    packer = "convolution/pack_weight_cells"
    takes_rows = False
    takes_cells = True

    def __init__(self, operation: Operation, tile: CellTile, wanted: int = 0) -> None:
        super().__init__(operation, tile, wanted)
        #: Units of a cell.
        self.cell = CELLS_OF[self.precision].cell
        #: Taps of a row that count as units of the source: where units alone fill no cell. The depth with these.
        self.folded = _folded(operation)
        self.depth = operation.depth * self.folded
        cells = -(-self.depth // self.cell)
        #: Cells of the depth in a step, and steps. Of gradients: cells of a tile, and tiles.
        of_tile = tile.columns // self.cell
        steps = -(-cells // tile.depth)
        self.depth_cells = of_tile if self.of_weights else rounded_up(-(-cells // steps), 2)
        self.depth_steps = -(-cells // self.depth_cells)
        #: Floats of the cells of a tap, for each unit.
        self.depth_rows = _CELL_FLOATS * self.depth_steps * self.depth_cells
        phases = self.phases(operation)
        self.elements = operation.groups * phases[0].filter_taps // self.folded * self.depth_rows * self.unit_columns
        #: What taps read.
        self.source_taps = CellTaps.of(operation, phases, self.folded)
        # As they lie, where that leaves room for a few steps; the last way packs all, which can always be counted.
        ways = product((True, False), repeat=len(self.read))
        for as_they_lie, beside in product(ways, self.source_taps.ways_beside):
            if counted := self._counted(as_they_lie):
                self.counted = counted
                source = counted.lists[0]
                is_scattered = source.way == "scattered"
                #: Phases of the source in a run: of packed ones one.
                self.beside = beside if is_scattered else 1
                apart = operation.groups * source.cells * source.list
                pitch = operation.source.layout.width.memory if is_scattered else 0
                # Where taps reach further than a tile is long, a run of all takes much local memory, most of it for
                # what none reads.
                in_rows = [not self.of_weights and span > tile.positions for _, span, _ in counted.tables]
                self.runs = [
                    self.source_taps.runs(table, apart, pitch, tile.positions, self.beside, in_rows=each)
                    for table, each in zip(counted.tables, in_rows, strict=True)
                ]
                #: Positions between the first and the last tap of a run.
                self.span = max(runs.span for runs in self.runs)
                #: Steps of a tile: a tap of a block of the depth each; of a gradient many.
                self.steps = _STAGES
                if not self.of_weights:
                    self.steps = self.depth_steps * max(len(runs.taps) for runs in self.runs)
                packed = max((lists.sample for lists in counted.lists if lists.way == "packed"), default=0)
                has_memory = operation.batch_size * _CELL_BYTES * packed <= _MAX_BYTES
                has_ways = self.source_taps.is_dense or is_scattered
                self.fits = has_ways and has_memory and self.stages >= min(_MIN_STAGES, self.steps)
                if self.fits:
                    break

    @property
    def read(self) -> list[Blob]:
        """What is read as cells: the source, and of a gradient the delta."""
        return [self.operation.source, *[self.operation.output] * self.of_weights]

    def _counted(self, as_they_lie: Sequence[bool]) -> _Positions | None:
        """Return how positions are counted if some of the blobs are read as they lie; None if these cannot be."""
        rows = {blob.layout.width.memory for blob, lies in zip(self.read, as_they_lie, strict=True) if lies}
        row = rows.pop() if rows else self.source_taps.places.size
        if rows or row < self.source_taps.places.size:
            return None
        tables = [self.source_taps.table(number, row) for number in range(len(self.source_taps.phases))]
        first = min(first for _, _, first in tables)
        results = (self.source_taps.rows.results - 1) * row + self.source_taps.places.results
        data = (self.source_taps.rows.data - 1) * row + self.source_taps.places.data
        # Of the source, what taps read before the first position and after the last one; of a delta nothing.
        needs = [(max(0, -first), data), (0, results)]
        bases, sample = [], results + max(0, *(first + span for _, span, first in tables))
        for blob, lies, (before, cells) in zip(self.read, as_they_lie, needs, strict=False):
            layout = blob.layout
            bases.append(layout.height.before * row + layout.width.before if lies else before)
            sample = max(sample, bases[-1] + cells)
            if bases[-1] < before:
                return None
        kind, is_apart = (
            CELLS_OF[self.precision],
            (self.source_taps.rows.stride, self.source_taps.places.stride) != (1, 1),
        )
        lists = []
        for number, (blob, lies, base) in enumerate(zip(self.read, as_they_lie, bases, strict=True)):
            cells = -(-(self.depth, self.operation.units)[number] // self.cell)
            has_cells, is_source = blob.type == kind, number == 0
            # As they lie: whole cells, all zeros there, and side by side.
            if lies and (not has_cells or (is_source and is_apart) or sample > blob.layout.plane_extent):
                return None
            apart = blob.layout.unit_memory_elements, blob.layout.memory_elements
            way: Literal["lie", "scattered", "packed"] = "lie" if lies else "packed"
            if is_source and has_cells and not lies:
                way = "scattered"
            if way == "packed":
                apart = sample, (self.source_taps.source_phases, 1)[number] * self.operation.groups * cells * sample
            lists.append(_Lists(cells, *apart, base, way))
        # A gradient would sum up what is beyond a sample; and lists beyond the last one are another sample's.
        whole = rounded_up(sample, _GROUP_ROWS)
        # The columns of a product all lie the same way, the positions of several samples do not.
        is_whole = not (self.of_weights or self.tile.units_are_rows)
        is_whole = is_whole and lists[0].way == "lie" and lists[0].cells % self.depth_cells == 0
        is_whole = is_whole and self.tile.columns % whole == 0 and whole <= _ZEROS * sample
        return _Positions(row, whole if is_whole else sample, tables, lists, is_whole)

    def _memory(self, number: int) -> Array:
        """Memory for the cells of what is read."""
        name = f"{('cells', 'delta cells')[number]} for {self.operation.direction}"
        return self.operation.memory(name, per_sample=_CELL_FLOATS * self.counted.lists[number].sample)

    def _blob(self, number: int) -> Blob:
        """The blob that has them, of cells or of as many floats."""
        lists = self.counted.lists[number]
        if lists.way != "packed":
            return self.read[number]
        layout = BlobLayout.padded(Shape(lists.sample // lists.list, _CELL_FLOATS * lists.list))
        return Blob(self._memory(number).storage, layout, is_memory=True)

    @classmethod
    def phases(cls, operation: Operation) -> list[Phase]:
        """The phases; at a stride, backward, those along a row or both axes side by side, where few products are zeros.

        Stores of neighbours fill what memory writes at once, and fewer launches read the delta.
        """
        ways = [super().phases(operation), *operation.plain.phases_side_by_side]
        least = min(tile.units for tile in TILES)
        products = [
            sum(phase.taps for phase in way) * rounded_up(operation.units * way[0].beside, least) for way in ways
        ]
        return next(
            way for way, count in reversed(list(zip(ways, products, strict=True))) if count <= _ZEROS * min(products)
        )

    @classmethod
    def matches(cls, operation: Operation) -> bool:
        of_cells = [blob for blob in (operation.input, operation.output) if blob.type.cell > 1]
        is_whole = all(blob.shape.units // operation.groups % blob.type.cell == 0 for blob in of_cells)
        # A bias of positions has numbers.
        fits = is_whole and operation.bias_mode < 2
        return super().matches(operation) and (not of_cells or fits)

    @classmethod
    def tiles(cls, operation: Operation) -> Sequence[Tile]:
        precision, capability = operation.tuning.precision, operation.tuning.model.capability
        if precision not in cls.precisions or capability not in (None, HOPPER):
            return ()
        if operation.direction != BACKWARD_WEIGHTS:
            # Of more units than there are rows other tiles are faster.
            units = operation.units * cls.phases(operation)[0].beside
            return [tile for tile in TILES if not tile.units_are_rows or units <= tile.units]
        if precision != "tf32" and _folded(operation) > 1:
            return FEW_TILES
        tiles = TF32_WEIGHT_TILES if precision == "tf32" else WEIGHT_TILES
        return [tile for tile in tiles if (operation.taps > 1) == (tile.taps > 1)]

    @classmethod
    def candidates(cls, operation: Operation) -> Iterator[Implementation]:
        return (item for item in super().candidates(operation) if item.fits)

    @property
    def stages(self) -> int:
        """Steps of the weights, or of the gradient's factors, in local memory: as many as there is room for."""
        if not self.of_weights:
            return self._in_local_memory[0]
        tile = self.tile
        run = _list_pitch(self.beside * (self.span + tile.positions), self.precision)
        lists = min(self.depth_cells, self.counted.lists[0].cells)
        room = _room(1) - (self.depth_cells - lists) * run
        deltas = tile.units // self.cell * _list_pitch(tile.depth, self.precision)
        return min(_STAGES, room // (deltas + lists * run + 1))

    @property
    def _in_local_memory(self) -> tuple[int, int]:
        """Steps of the weights in local memory, and runs: with the weights of all steps, if there is room for them."""
        room, (run, step) = _room(1) - self.tile.staged_cells, self._cells
        # A run that serves few taps is soon done with.
        taps = min((len(runs.taps) / len(runs.table) for runs in self.runs if runs.taps), default=1)
        most = min(_STAGES, 1 + math.ceil(_STAGES / taps))
        kept = (_room(int(self.tile.busy)) - self.tile.staged_cells - self.steps * step) // run
        if self.wanted == 1 and len(self.runs) == 1 and kept >= most:
            return self.steps, most
        stages = {count: min(_STAGES, (room - count * run) // step) for count in range(most, _MIN_RUNS - 1, -1)}
        count = next((count for count in stages if stages[count] >= _MIN_STAGES), _MIN_RUNS)
        return stages[count], count

    @property
    def most_tiles(self) -> int:
        operation, tile, (steps, runs) = self.operation, self.tile, self._in_local_memory
        run, step = self._cells
        cells = tile.staged_cells + runs * run + steps * step
        side_by_side = max(count for count in range(1, int(tile.busy) + 1) if count == 1 or cells <= _room(count))
        places = operation.cores * operation.tuning.model.parts * side_by_side
        most = places // (tile.count(self.units, 1) * operation.groups * self.splits)
        # With one work-group for all tiles of a block of units some cores would have none.
        return most if most > 1 else 0

    @property
    def _cells(self) -> Pair:
        """Cells of a run, and of the weights of a step: with two signals, which are as long as a cell."""
        counted, columns = self.counted, self.tile.positions
        run = self.beside * (self.span + columns)
        if counted.whole:
            run = columns // counted.sample * counted.lists[0].list
        return self.depth_cells * run + 1, self.depth_cells * self.tile.units + 1

    @cached_property
    def _tap_blocks(self) -> list[tuple[int, int]]:
        """Taps of a work-group of the gradient: the first one, and the end of those of its run."""
        runs, each = [run for run, _, _ in self.runs[0].taps], self.tile.all_taps
        ends = [len(runs) - runs[::-1].index(run) for run in range(len(self.runs[0].table))]
        return [(tap, end) for end, start in zip(ends, [0, *ends], strict=False) for tap in range(start, end, each)]

    @property
    def cost(self) -> float:
        operation = self.operation
        both = [*zip(self.read, self.counted.lists, strict=True)]
        packed = [(blob, lists.sample) for blob, lists in both if lists.way == "packed"]
        moved = sum(blob.shape.elements + _CELL_FLOATS * cells for blob, cells in packed)
        source = self.counted.lists[0]
        if source.way == "scattered":
            # Half of what memory gives for a cell is another's, for each block of units, where that is not copied too.
            cells = operation.groups * source.cells * self.source_taps.source_phases * self.counted.sample
            moved += _CELL_FLOATS * cells * self.tile.count(self.units, 1) // self.beside
        packing = len(packed) * _PACKING_COST + operation.batch_size * moved * VALUE_COST / operation.cores
        return super().cost + packing + _DIVIDING_COST

    @property
    def tiles_of_sums(self) -> int:
        return self.tile.count(self.operation.units, self.depth) * len(self._tap_blocks)

    def _product_cost(self, splits: int) -> float:
        if not self.of_weights:
            return super()._product_cost(splits)
        operation, tile, cores = self.operation, self.tile, self.operation.cores
        products = operation.groups * splits * len(self._tap_blocks)
        rows = operation.batch_size * self.counted.sample / splits + tile.overhead
        cost = rows * tile.all_taps * tile.cost(operation.units, self.depth, products, cores)
        return cost + (LAUNCH_COST + operation.weights * (splits + 1) * VALUE_COST / cores if splits > 1 else 0)

    def taps(self, phase: Phase) -> int:
        return phase.taps // self.folded

    def row(self, phase: Phase) -> int:
        return self.counted.row

    def positions(self, phase: Phase) -> int:
        return self.counted.sample

    @property
    def packing_items(self) -> int:
        return super().packing_items // _CELL_FLOATS

    def facts(self, phase: Phase) -> dict[str, Any]:
        number, source = self.phases(self.operation).index(phase), self.counted.lists[0]
        runs, (_, _, first) = self.runs[number], self.counted.tables[number]
        return {
            "CELL": self.cell,
            "HALVES": int(self.precision == "fp16"),
            "DEPTH_CELLS": self.depth_cells,
            "DEPTH_STEPS": self.depth_steps,
            "SAMPLE_POSITIONS": self.counted.sample,
            "ROW_POSITIONS": self.counted.row,
            "RUNS": len(runs.table),
            "RUN_TABLE": table_text(runs.table),
            "SPAN": runs.span,
            "RUN_PHASES": self.beside,
            "FIRST_CELL": source.base + first,
            "TAP_TABLE": table_text(runs.taps or [(0, 0, 0)]),
            "PHASE_TAPS": len(runs.taps),
            **_window(self.operation, phase, self.folded),
            "FOLDED": self.folded,
            "STAGES": self.stages,
            "RUN_STAGES": self._in_local_memory[1],
            "GROUP_POSITIONS": self.tile.group_positions,
            "CELLS": self._blob(0),
            "SOURCE_CELLS": source.cells,
            "SOURCE_LIST": source.list,
            "SOURCE_SAMPLE": source.sample,
            "SOURCE_BASE": source.base,
            "SOURCE_STRIDE_Y": self.source_taps.rows.stride,
            "SOURCE_STRIDE_X": self.source_taps.places.stride,
            "SCATTERED": int(source.way == "scattered"),
            "WHOLE_SAMPLES": int(self.counted.whole),
        }

    def _packed(self) -> list[KernelCall]:
        """The launches that pack what does not lie in cells."""
        operation, local, sample = self.operation, group_size(self.operation.tuning.model), self.counted.sample
        phase, calls = self.phases(operation)[0], list[KernelCall]()
        phases = {"FIRST_PHASE_Y": self.source_taps.rows.phases[0], "FIRST_PHASE_X": self.source_taps.places.phases[0]}
        phases |= {"STRIDE_Y": phase.vertical.stride, "STRIDE_X": phase.horizontal.stride}
        phases |= {
            "PHASES_X": len(self.source_taps.places.phases),
            "FOLDED": self.folded,
            "STEP_X": phase.horizontal.shift_step,
        }
        if self.folded > 1:
            phases["FIRST_PHASE_X"] = phase.horizontal.shift
        alone = dict.fromkeys(phases, 0) | dict.fromkeys(("STRIDE_Y", "STRIDE_X", "PHASES_X", "FOLDED"), 1)
        for number, (lists, ways) in enumerate(zip(self.counted.lists, (phases, alone), strict=False)):
            if lists.way == "packed":
                blob, rows = self.read[number], (len(self.source_taps.rows.phases), 1)[number]
                facts: dict[str, Any] = {
                    "SOURCE": blob,
                    "CELLS": self._memory(number),
                    "CELL": self.cell,
                    "HALVES": int(self.precision == "fp16"),
                    "LISTS": lists.sample // sample,
                }
                facts |= {"GROUP_UNITS": blob.shape.units // operation.groups, "UNIT_CELLS": lists.cells, **ways}
                facts |= {"POSITIONS": sample, "ROW_POSITIONS": self.counted.row, "BASE": lists.base}
                count, label = operation.groups * lists.cells, f"{operation.label}: cells"
                size = GlobalSize(local, rows, count, positions=sample, tile=local)
                calls.append(operation.call("convolution/pack_cells", size, local, label, **facts))
        return calls

    def calls(self) -> list[KernelCall]:
        if not self.of_weights:
            return [*self._packed(), *super().calls()]
        operation, tile, deltas = self.operation, self.tile, self.counted.lists[1]
        facts = {
            **self.facts(self.phases(operation)[0]),
            **tile.macros,
            "DELTAS": self._blob(1),
            "FIRST_DELTA": deltas.base,
            "BLOCK_TABLE": table_text(self._tap_blocks),
        }
        facts |= {"DELTA_CELLS": deltas.cells, "DELTA_LIST": deltas.list, "DELTA_SAMPLE": deltas.sample}
        size = GlobalSize(self.tiles_of_sums * tile.items, self.splits, operation.groups, per_sample=False)
        return [*self._packed(), *operation.summed("weight", self.splits, self.kernel, size, tile.items, **facts)]
