"""Convolutions as products of matrices through local memory: how GPUs compute them (kernels/convolution/tiled.h)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from math import prod
from typing import ClassVar

from blobnet.implementations.base import BACKWARD_WEIGHTS, Implementation
from blobnet.implementations.blocking import powers_of_two
from blobnet.implementations.operation import Operation, Phase
from blobnet.implementations.tile import LAUNCH_COST, VALUE_COST, Tile, tiles_for
from blobnet.launch.kernel_call import Array, GlobalSize, KernelCall, rounded_up
from blobnet.launch.kernel_source import Macro
from blobnet.launch.work_sizes import cell_work, elementwise_work, group_size
from blobnet.memory.blob import FLOAT32
from blobnet.memory.windows import Pair

#: Tiles of forward and backward data. Speeds were fitted to times on an NVIDIA H200 (docs/performance.md).
TILES = (
    Tile(128, 64, 16, 8, 8, speed=1.0, busy=1.3, overhead=14),
    Tile(64, 128, 8, 8, 8, speed=0.97, busy=1.4, overhead=12),
    Tile(32, 256, 8, 8, 8, speed=0.94, busy=1.5, overhead=20),
    Tile(32, 64, 16, 4, 4, speed=0.71, busy=2.3, overhead=14),
)
#: Tiles of the gradient of the weights.
WEIGHT_TILES = (
    Tile(128, 64, 16, 8, 8, speed=1.0, busy=1.5, overhead=30),
    Tile(64, 128, 8, 8, 8, speed=0.98, busy=1.5, overhead=30),
    Tile(64, 64, 16, 8, 8, speed=0.85, busy=5, overhead=30),
    Tile(64, 32, 16, 8, 4, speed=0.8, busy=8, overhead=60),
    Tile(32, 32, 16, 4, 4, speed=0.6, busy=8, overhead=60),
)
#: Tiles for each compute unit up to which a sum over rows may be split, the most splits, and the least rows of each.
SPLIT_TILES, MAX_SPLITS, MIN_ROWS = 4, 32, 64
#: The most splits of a sum over positions, and in how many rounds cores may make the tiles of all splits.
MAX_POSITION_SPLITS, _ROUNDS = 256, (1, 2, 3)
#: The part of a tile's local memory that may be added to hold how far rows are.
_SHIFTS_PART = 8
#: Weights that kernels load at once.
_QUAD = 4
#: The cost of the launch that adds up splits of a prediction: for one image it takes 7 us (docs/performance.md).
#: In a training it costs LAUNCH_COST: there the device has more to do than the host.
_SUM_COST = 4 * LAUNCH_COST


class Tiled(Implementation):
    """Products of matrices through local memory, the weights packed first; in splits where there are few tiles.

    The packed weights are a matrix, of which a row is a tap and a source unit, a column a unit of the result. Weights
    that lie so are read where they are.
    """

    tile: Tile

    lanes = True
    #: On an H200 by 10 to 30 % (docs/measurements.md).
    slower: ClassVar[tuple[str, ...]] = (BACKWARD_WEIGHTS,)
    #: The kernel that packs the weights.
    packer: ClassVar[str] = "convolution/pack_weight"
    #: Whether it takes weights as they are: a row for each tap and source unit, of units side by side.
    takes_rows: ClassVar[bool] = True

    def __init__(self, operation: Operation, tile: Tile, wanted: int = 0) -> None:
        super().__init__(operation, tile, suffix=f" in {wanted}" if wanted > 1 else "")
        #: Parts of the sums, 0: as many as are the cheapest (``splits``).
        self.wanted = wanted
        #: Whether it makes the gradient of the weights, of which nothing is packed.
        self.of_weights = operation.direction == BACKWARD_WEIGHTS
        phase = self.phases(operation)[0]
        #: Units of a group: phases side by side have more.
        self.units = operation.units * phase.beside
        #: Whether the weights lie as packed ones would.
        self.in_place = self.takes_rows and not self.of_weights and self._lie_in_rows()
        #: Rows of zeros after the last tap: what there is to read beyond a depth that is not of whole tiles.
        self.zero_rows = int(self.takes_rows and not self.in_place)
        #: Columns of the weights: packed ones are whole tiles of units.
        self.unit_columns = self.units if self.in_place else rounded_up(self.units, tile.units)
        depth, padded = operation.depth, rounded_up(operation.depth, tile.depth)
        #: Rows of a tap: whole tiles, unless that wastes too much.
        self.depth_rows = padded if depth >= 4 * tile.depth or not self.zero_rows else depth
        #: Values of the packed weights.
        self.elements = operation.groups * (phase.filter_taps * self.depth_rows + self.zero_rows) * self.unit_columns

    @classmethod
    def phases(cls, operation: Operation) -> list[Phase]:
        """The phases that there is a product for."""
        return operation.plain.phases

    @classmethod
    def tiles(cls, operation: Operation) -> Sequence[Tile]:
        if operation.direction == BACKWARD_WEIGHTS:
            return tiles_for(WEIGHT_TILES, operation.tuning, rows=None)
        return tiles_for(TILES, operation.tuning, [phase.taps * operation.depth for phase in cls.phases(operation)])

    @classmethod
    def candidates(cls, operation: Operation) -> Iterator[Implementation]:
        for tile in cls.tiles(operation):
            yield from (cls(operation, tile, splits) for splits in cls(operation, tile).row_splits())

    def _lie_in_rows(self) -> bool:
        """Return True if weights lie as packed ones would: of one tap, those of a source unit in whole quads.

        In columns after the last unit is what lies there, and their sums are not stored; of rows there are none.
        """
        operation = self.operation
        is_matrix = operation.unit_stride == operation.taps == 1 and self.units == operation.units
        is_whole = operation.units % _QUAD == operation.depth % self.tile.depth == 0
        return is_matrix and is_whole and operation.parameter("WEIGHT").type == FLOAT32

    @property
    def cost(self) -> float:
        cost = self._product_cost(self.splits)
        if self.of_weights:
            return cost
        packing = 0 if self.in_place else LAUNCH_COST + 2 * self.elements * VALUE_COST / self.operation.cores
        return cost + packing + (len(self._work) - 1) * LAUNCH_COST

    @cached_property
    def _work(self) -> list[Pair]:
        """Columns and rows of each product: of backward weights one, else one of each phase."""
        operation, samples = self.operation, self.operation.batch_size
        if self.of_weights:
            return [(operation.columns, samples * operation.positions)]
        phases = self.phases(operation)
        return [(samples * self.positions(phase), self.taps(phase) * self.depth_rows) for phase in phases]

    @cached_property
    def splits(self) -> int:
        """Parts of the sums."""
        if self.wanted:
            return self.wanted
        most = min(MAX_POSITION_SPLITS, -(-self._work[0][1] // self.tile.depth))
        # Powers of two, and as many as keep all cores busy in some rounds.
        tiles = self.operation.groups * self.tiles_of_sums
        full = {rounds * self.operation.cores // tiles for rounds in _ROUNDS}
        counts = {*powers_of_two(most), *(count for count in full if 0 < count <= most)}
        return min(sorted(counts), key=self._product_cost)

    @property
    def tiles_of_sums(self) -> int:
        """Tiles of the sums of a group, and a split."""
        return self.tile.count(self.units, self._work[0][0])

    def _product_cost(self, splits: int) -> float:
        """The cost of the products and of the sums of their parts."""
        operation, tile, cores = self.operation, self.tile, self.operation.cores
        results = operation.weights if self.of_weights else operation.batch_size * operation.result.shape.elements
        product = sum(
            (rows / splits + tile.overhead) * tile.cost(self.units, columns, operation.groups * splits, cores)
            for columns, rows in self._work
        )
        launch = _SUM_COST if operation.keeps_weights else LAUNCH_COST
        return product + (launch + results * (splits + 1) * VALUE_COST / cores if splits > 1 else 0)

    def calls(self) -> list[KernelCall]:
        operation, tile = self.operation, self.tile
        if not self.of_weights:
            return self._products()
        # Multiplies the delta with the input over all positions.
        width = self.tiles_of_sums * tile.items
        size = GlobalSize(width, self.splits, operation.groups, per_sample=False)
        return operation.summed("weight", self.splits, self.kernel, size, tile.items, **tile.macros)

    def addresses(self, phase: Phase) -> dict[str, Macro]:
        """The macro of addresses: in few instructions unless a table of rows takes much room.

        It has all rows (1), or, where steps lie within them, those of a row of taps (2).
        """
        tile, all_rows = self.tile, phase.taps * self.operation.depth
        most = tile.local_bytes // (FLOAT32.itemsize * _SHIFTS_PART)
        tap_row = phase.horizontal.count * self.operation.depth
        if not self.operation.cheap_addresses:
            return {"CHEAP_ADDRESSES": 0}
        if self.depth_rows % tile.depth == 0 or rounded_up(all_rows, tile.depth) <= most:
            return {"CHEAP_ADDRESSES": 1}
        return {"CHEAP_ADDRESSES": 2 if tap_row % tile.depth == 0 and tap_row <= most else 0}

    @property
    def packing_items(self) -> int:
        """Work-items that pack the weights."""
        return self.operation.groups * (self.depth_rows + self.zero_rows) * self.unit_columns

    # -- forward and backward data: packs the weights, and multiplies them with the source, phase by phase ------------

    def facts(self, phase: Phase) -> dict[str, Array | Macro]:
        """What the kernel takes besides, to make a phase."""
        return {**self.addresses(phase), "ROW_POSITIONS": self.row(phase)}

    def taps(self, phase: Phase) -> int:
        """Taps of a phase that have rows of their own."""
        return phase.taps

    def row(self, phase: Phase) -> int:
        """Positions from one row of results to the next; sums of those beyond the width are not stored."""
        return phase.horizontal.size

    def positions(self, phase: Phase) -> int:
        """Columns of the product that makes a phase of a sample."""
        return (phase.vertical.size - 1) * self.row(phase) + phase.horizontal.size

    @property
    def most_tiles(self) -> int:
        """Tiles of positions that there are work-groups for, each of which takes several; 0: of one each."""
        return 0

    def row_splits(self) -> Iterator[int]:
        """Into how many parts the rows of the largest product may go: more of them only until the device is full."""
        if self.of_weights:
            return iter([0])
        columns, rows = max(self._work, key=prod)
        tiles = self.operation.groups * self.tile.count(self.units, columns)
        full = 1 if self.tile.doubt else 2 * SPLIT_TILES * self.operation.cores // tiles
        return powers_of_two(min(full, rows // MIN_ROWS, MAX_SPLITS))

    def _products(self) -> list[KernelCall]:
        operation, tile, splits, shape = self.operation, self.tile, self.splits, self.operation.result.shape
        packed = operation.parameter("WEIGHT")
        if not self.in_place:
            packed = operation.memory(f"weights packed for {operation.direction}", self.elements)
        lie = {"DEPTH_ROWS": self.depth_rows, "ZERO_ROWS": self.zero_rows, "UNIT_COLUMNS": self.unit_columns}
        lie |= {"PACKED_UNITS": self.unit_columns, "PACKED_DEPTH": self.depth_rows}
        macros = {**lie, "SPLITS": splits, **tile.macros}
        # NOTE: a kernel takes no null array; were it the matrix, that would not count as constant. The bias also where
        # it is not read, since the weights may be there only to be packed.
        arrays = {"PACKED": packed, "BIAS": operation.parameter("BIAS")}
        cleared, products, others = list[KernelCall](), [], []
        if splits == 1:
            arrays["PARTIALS"] = operation.memory("no partials", 1)
        else:  # What is left to do is done to the sums of all parts.
            kernel, label = "convolution/split_sum", f"{operation.label}: sum"
            arrays["PARTIALS"] = operation.memory(f"{operation.direction} partials", per_sample=splits * shape.elements)
            work = cell_work(operation.result.layout.shape, operation.tuning, operation.tuning.of(kernel)["CELLS"])
            others.append(operation.call(kernel, *work, label, PARTIALS=arrays["PARTIALS"], **macros))
            operation = operation.plain
        for phase in self.phases(operation):
            facts = {**phase.macros, **macros, **self.facts(phase)}
            if phase.taps or splits > 1:
                size = GlobalSize(
                    tile.count(self.units, 1) * tile.items,
                    operation.groups,
                    splits,
                    positions=self.positions(phase),
                    tile=tile.columns,
                    most=self.most_tiles,
                )
                products.append(operation.call(self.kernel, size, tile.items, **arrays, **facts))
            elif not operation.accumulate and not cleared:
                # What no tap meets is 0. Of a product in splits, the partial sums must be.
                work = elementwise_work(operation.result.layout.shape, operation.tuning, operation.batch_size)
                cleared = [operation.call("convolution/clear", *work, f"{operation.label}: clear")]
        if not products or self.in_place:
            return [*cleared, *products, *others]
        size, local = GlobalSize(self.packing_items, per_sample=False), group_size(operation.tuning.model)
        phase = self.phases(operation)[0]
        facts, label = {**phase.macros, **macros, **self.facts(phase)}, f"{operation.label}: pack"
        packing = operation.call(self.packer, size, local, label, PACKED=packed, **facts)
        return [*cleared, packing, *products, *others]
