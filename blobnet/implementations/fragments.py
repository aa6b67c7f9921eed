"""Convolutions on the matrix unit of a processor, in bfloat16 (kernels/fragment.h)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from blobnet.hardware.device_model import MATRIX_UNITS
from blobnet.implementations.base import BACKWARD_WEIGHTS, Implementation
from blobnet.implementations.blocking import splits_for
from blobnet.implementations.operation import Operation, Phase
from blobnet.implementations.source_taps import SourceTaps
from blobnet.launch.kernel_call import Array, GlobalSize, KernelCall, rounded_up
from blobnet.launch.kernel_source import Macro, table_text
from blobnet.launch.work_sizes import power_of_two
from blobnet.memory.blob import BFLOAT16

#: Rows and columns of a fragment's sums; positions of a tile, or numbers that a factor has of each row or column.
_FRAGMENT, _TILE = 16, 32
#: What it costs to pack a number of the source, of weights and of a gradient's delta, and to store a result and a
#: gradient, in multiply-adds of fp32, with AMX. Fitted to times on a Xeon (docs/performance.md).
PACK_COST, WEIGHT_COST, DELTA_COST, STORE_COST, GRADIENT_COST = 55, 200, 50, 45, 333
#: Work-items that a compute unit should have, so that none waits long for the last.
WORK_ITEMS = 8
#: Bytes of a cache's line.
_LINE = 64


class Fragments(Implementation):
    """Products of fragments on the matrix unit of a processor, for those who asked for bfloat16.

    Blobs are packed as pairs of units, whose positions are the columns of a product.
    """

    lanes = False
    precisions = ("bf16",)
    #: Units of a source that are packed together.
    cell = 2

    @classmethod
    def candidates(cls, operation: Operation) -> Iterator[Implementation]:
        if operation.tuning.precision in cls.precisions:
            yield (_Gradient if operation.direction == BACKWARD_WEIGHTS else cls)(operation)

    def __init__(self, operation: Operation) -> None:
        super().__init__(operation)
        self.phases = operation.plain.phases
        _, height, width = operation.source.shape.axes
        self.rows = SourceTaps.of([phase.vertical for phase in self.phases], height)
        self.columns = SourceTaps.of([phase.horizontal for phase in self.phases], width)
        #: Rows of a phase, and positions of a row, from the first that a tap reads. The zeros right of a row are those
        #: left of the next.
        self.row_count, self.row_positions = self.rows.reads, min(self.columns.reads, self.columns.size)
        self.tables = [self._taps(phase, number) for number, phase in enumerate(self.phases)]
        rows = self._row_units
        #: Fragments of units that are rows of a product, in a block, and blocks of a group.
        self.unit_tiles = min(2, -(-rows // _FRAGMENT))
        self.blocks = -(-rows // (self.unit_tiles * _FRAGMENT))
        pairs = -(-operation.depth // 2)
        self._unit = MATRIX_UNITS[operation.tuning.model.matrix_unit or "amx_bf16"]
        #: Steps of the depth, and pairs of units in a step.
        self.steps = -(-pairs // _FRAGMENT)
        self.pairs = -(-pairs // self.steps)
        #: Positions of a plane: an odd number of lines, so that planes lie in different places of the first cache.
        line = _LINE // (self.cell * BFLOAT16.itemsize)
        lines = -(-self._plane // line)
        self.plane = line * (lines + 1 - lines % 2)

    @property
    def _row_units(self) -> int:
        """Units that are rows of a product, of a group."""
        return self.operation.units

    @property
    def _plane(self) -> int:
        """Positions that a plane must have."""
        rows = len(self.rows.phases) * len(self.columns.phases) * self.row_count
        return (rows - 1) * self.row_positions + self.columns.reads

    @property
    def _cells(self) -> int:
        """Planes of a group."""
        return self.steps * self.pairs

    @property
    def _block_units(self) -> int:
        """Rows of all products of a group."""
        return self.blocks * self.unit_tiles * _FRAGMENT

    def _positions(self, phase: Phase) -> int:
        """Positions from the first to the last result of a sample."""
        return (phase.vertical.size - 1) * self.row_positions + phase.horizontal.size

    def _taps(self, phase: Phase, number: int) -> list[tuple[int, int]]:
        """Shift among the positions of a plane, and number in the filter, of each tap of a phase."""
        found = []
        rows, columns = self.rows, self.columns
        for i, (row_phase, row) in enumerate(rows.ways[number]):
            for j, (column_phase, column) in enumerate(columns.ways[number]):
                y, x = (axis.first + tap * axis.step for axis, tap in ((phase.vertical, i), (phase.horizontal, j)))
                plane = (row_phase - rows.phases[0]) * len(columns.phases) + column_phase - columns.phases[0]
                line = plane * self.row_count + row - rows.shifts[0]
                shift = line * self.row_positions + column - columns.shifts[0]
                found.append((shift, y * phase.horizontal.filter_taps + x))
        return found

    @property
    def _packed(self) -> int:
        """Numbers of all planes of a sample."""
        return self.operation.groups * self._cells * self.plane * self.cell

    @property
    def cost(self) -> float:
        operation = self.operation
        weights = operation.groups * self._block_units * operation.taps * self._cells * 2
        columns = sum(rounded_up(self._positions(phase), _FRAGMENT) * phase.taps for phase in self.phases)
        products = columns * self._block_units * self._cells * 2 * operation.groups
        moves = PACK_COST * self._packed + STORE_COST * operation.result.shape.elements
        return self._together(products * operation.batch_size, moves * operation.batch_size + WEIGHT_COST * weights)

    def _together(self, products: float, moves: float) -> float:
        """The cost of multiply-adds of fragments, and of what is moved for them."""
        return (products / self._unit.speed + moves * self._unit.moves) / self.operation.cores

    def calls(self) -> list[KernelCall]:
        operation, rows = self.operation, self._block_units
        elements = operation.groups * rows * operation.taps * self.steps * self.pairs
        packed = operation.memory(f"weights packed for {operation.direction}", elements)
        lie: dict[str, Any] = {"STEP_PAIRS": self.pairs, "DEPTH_STEPS": self.steps, "UNIT_TILES": self.unit_tiles}
        lie |= {"BLOCKS": self.blocks, "PLANE": self.plane, "ROW_POSITIONS": self.row_positions, "PACKED": packed}
        kernel, size = "convolution/pack_weight_fragments", GlobalSize(rows, operation.groups, per_sample=False)
        pack, cells = self._pack_source()
        calls = [operation.call(kernel, size, None, f"{operation.label}: pack", **lie), pack]
        arrays = {"CELLS": cells, "BIAS": operation.parameter("BIAS")}
        for phase, taps in zip(self.phases, self.tables, strict=True):
            if taps or not operation.accumulate:
                tiles, blocks = -(-self._positions(phase) // _TILE), self.blocks * operation.groups
                items = tiles * blocks * operation.batch_size
                at_once = max(1, min(tiles, items // (WORK_ITEMS * operation.cores)))
                facts = {**phase.macros, **lie, **_table(taps), "TILES_AT_ONCE": at_once}
                size = GlobalSize(blocks * -(-tiles // at_once))
                calls.append(operation.call(self.kernel, size, **arrays, **facts))
        return calls

    def _pack_source(self) -> tuple[KernelCall, Array]:
        """The launch that packs the source, and what it packs it into."""
        operation, axes = self.operation, (self.phases[0].vertical, self.phases[0].horizontal)
        # What a tile reads after the last plane is of no use.
        cells = operation.memory(f"source packed for {operation.direction}", _TILE, self._packed // 2)
        facts: dict[str, Macro] = {"GROUP_UNITS": operation.depth, "GROUP_CELLS": self._cells, "CELL": self.cell}
        facts |= {"PLANE": self.plane, "ROWS": self.row_count, "ROW_POSITIONS": self.row_positions}
        for name, axis, reads in zip("YX", axes, (self.rows, self.columns), strict=True):
            first = reads.phases[0] + reads.shifts[0] * reads.stride
            facts |= {f"STRIDE_{name}": axis.stride, f"FIRST_{name}": first, f"PHASES_{name}": len(reads.phases)}
        inside = -(-operation.source.shape.width // axes[1].stride)
        facts |= {"LANES": max(2, power_of_two(inside + 1, 32) // 2)}
        facts |= {"IS_BFLOAT": int(operation.source.type == BFLOAT16)}
        kernel, label = "convolution/pack_fragments", f"{operation.label}: pack source"
        size = GlobalSize(operation.groups * self._cells)
        return operation.call(kernel, size, None, label, SOURCE=operation.source, CELLS=cells, **facts), cells


class _Gradient(Fragments):
    """Backward weights: rows of products are input units, columns output units, and what is summed positions."""

    cell = 1

    @cached_property
    def tile_count(self) -> int:
        """Tiles of positions of a sample."""
        return -(-self._positions(self.phases[0]) // _TILE)

    @cached_property
    def tile_pairs(self) -> int:
        """Pairs of positions of a tile."""
        return -(-self._positions(self.phases[0]) // (2 * self.tile_count))

    @property
    def _summed(self) -> int:
        """Positions of all tiles of a sample, which a product sums over."""
        return self.tile_count * self.tile_pairs * 2

    @property
    def _row_units(self) -> int:
        return self.operation.depth

    @property
    def _plane(self) -> int:
        # All that a tap reads: beyond the last position its values are multiplied with 0.
        last = max(shift for shift, _ in self.tables[0]) + self._summed
        return max(super()._plane, last)

    @property
    def _cells(self) -> int:
        return self._block_units

    @property
    def cost(self) -> float:
        operation = self.operation
        units = rounded_up(operation.units, 2 * _FRAGMENT)
        products = (self._unit.alone if self.unit_tiles == 1 else 1.0) * operation.groups
        products *= self._summed * operation.taps * self._block_units * units
        moves = PACK_COST * self._packed + DELTA_COST * operation.groups * units * self._summed
        moves = moves * operation.batch_size + GRADIENT_COST * operation.weights
        return self._together(products * operation.batch_size, moves)

    def _splits(self, items: int, units: int) -> int:
        """The parts of the samples: enough for all cores, and few samples each.

        Taps read the same numbers: those of a part should stay in the second cache, if that needs no more memory for
        sums than there is for what is packed.
        """
        operation = self.operation
        samples = operation.batch_size
        splits = splits_for(items, WORK_ITEMS * operation.cores, samples)
        caches = operation.tuning.model.caches
        if operation.taps > 1 and len(caches) > 1:
            read = (self.unit_tiles * self.plane + 2 * self._summed) * _FRAGMENT * BFLOAT16.itemsize
            sums = operation.taps * self._block_units * units
            most = samples * (self._packed + units * self._summed * operation.groups) // (2 * sums * operation.groups)
            splits = max(splits, min(-(-samples * read // (caches[1] // 2)), most))
        return min(splits, samples)

    def calls(self) -> list[KernelCall]:
        operation, units = self.operation, self.operation.output.shape.units
        unit_blocks, columns = -(-operation.units // (2 * _FRAGMENT)), self._block_units
        items = operation.groups * operation.taps * self.blocks * unit_blocks
        splits = self._splits(items, 2 * unit_blocks * _FRAGMENT)
        elements = 2 * unit_blocks * operation.groups * self._summed // 2 * _FRAGMENT
        gradient = operation.parameter("WEIGHT_GRADIENT")
        in_place = operation.taps == splits == 1 and columns == operation.depth
        pack, cells = self._pack_source()
        sums = splits * operation.taps * units * columns
        arrays = {"CELLS": cells, "DELTAS": operation.memory("delta packed", per_sample=elements), "GRADIENT": gradient}
        arrays["PARTIALS"] = gradient if in_place else operation.memory("weight partials", sums)
        facts: dict[str, Any] = {"COLUMNS": columns, "GROUP_BLOCKS": 2 * unit_blocks, "SPLITS": splits}
        facts |= {
            "TILES": self.tile_count,
            "TILE_PAIRS": self.tile_pairs,
            "UNIT_TILES": self.unit_tiles,
            "UNITS": units,
        }
        facts |= {"GROUP_CELLS": self._cells, "PLANE": self.plane}
        facts |= {"ROW_POSITIONS": self.row_positions, "LANES": _FRAGMENT, **_table(self.tables[0])}
        launches = [
            ("convolution/pack_fragment_deltas", GlobalSize(2 * unit_blocks * operation.groups), "pack delta"),
            (self.kernel, GlobalSize(items, 1, splits, per_sample=False), "product"),
            (
                "convolution/unitwise_gradient",
                GlobalSize(-(-operation.depth // _FRAGMENT), units, per_sample=False),
                "sum",
            ),
        ]
        return [
            pack,
            *(
                operation.call(kernel, size, None, f"{operation.label}: {label}", **arrays, **facts)
                for kernel, size, label in launches[: 2 if in_place else 3]
            ),
        ]


def _table(taps: Sequence[tuple[int, int]]) -> Mapping[str, Macro]:
    """The macros of taps."""
    return {"TAP_TABLE": table_text(taps or [(0, 0)]), "PHASE_TAPS": len(taps)}
