"""Convolutions of blobs of cells on processors: vectors of units (kernels/convolution/forward_rows.cl)."""

from __future__ import annotations

from collections.abc import Mapping

from blobnet.implementations.base import FORWARD, Implementation
from blobnet.implementations.blocking import READ_COST, VECTOR_COST, Block, blocks, order, reads
from blobnet.implementations.operation import Operation
from blobnet.launch.kernel_call import Array, GlobalSize, KernelCall, rounded_up
from blobnet.memory.blob import CELL_UNITS, FLOAT32, FLOAT32_CELLS

#: What a multiply-add costs, and what it costs where each number of the input must be loaded into a vector (AVX2).
PRODUCT_COST, LOADED_PRODUCT_COST = 0.7, 0.78
#: What it costs, in multiply-adds, to store a vector: of cells, and of numbers, each in another plane.
STORE_COST, SCATTER_COST = 60, 600
#: Lanes from which on a processor multiplies with a number in memory (AVX-512).
_BROADCASTING = 16


class UnitVectors(Implementation):
    """Blobs of cells: vectors of units, some positions of a row at a time."""

    tile: Block

    lanes = False
    directions = (FORWARD,)
    takes_cells = True
    needs_cells = True

    @classmethod
    def matches(cls, operation: Operation) -> bool:
        return super().matches(operation) and operation.groups == 1 and has_vectors(operation)

    @classmethod
    def tiles(cls, operation: Operation) -> list[Block]:
        """Blocks of positions of a row x vectors, the cheapest first."""
        return unit_blocks(operation, operation.output.shape.width, cls.tunables(operation))

    @property
    def cost(self) -> float:
        operation, tile = self.operation, self.tile
        product = PRODUCT_COST if operation.tuning.model.lanes >= _BROADCASTING else LOADED_PRODUCT_COST
        product *= tile.cost * operation.output.shape.height * operation.columns
        store = STORE_COST if operation.output.type.cell > 1 else SCATTER_COST
        stores = store * operation.positions * -(-operation.units // tile.lanes)
        return (operation.batch_size * (product + stores) + READ_COST * operation.weights) / operation.cores

    def calls(self) -> list[KernelCall]:
        operation, tile, output = self.operation, self.tile, self.operation.output.shape
        unit_blocks = -(-operation.units // tile.values)
        tiles = output.height * -(-output.width // tile.units)
        read = reads(operation.weights, unit_blocks, operation.source.shape.elements, tiles)
        (width, height), in_order = order(unit_blocks, tiles, read, tied=operation.depth > operation.units)
        items = self.tunables(operation)["TARGET_ITEMS"] * operation.cores
        at_once = max(1, width * height * operation.batch_size // items)
        packed, packing = packed_vectors(operation, tile.lanes, operation.source.type.cell)
        own = {"LANES": tile.lanes, "BLOCK_VECTORS": tile.vectors, "RUN": tile.units, "BLOCKS_AT_ONCE": at_once}
        facts = {**in_order, **own, "SOURCE_CELL": operation.source.type.cell}
        size = GlobalSize(-(-width * height // at_once))
        return [packing, operation.call(self.kernel, size, PACKED=packed, **facts)]


def has_vectors(operation: Operation) -> bool:
    """Return True if an operation has cells of float32, and no more than a bias for each unit."""
    types = operation.input.type, operation.output.type
    return operation.has_cells and {*types} <= {FLOAT32, FLOAT32_CELLS} and operation.bias_mode < 2


def unit_blocks(operation: Operation, positions: int, tunables: Mapping[str, int]) -> list[Block]:
    """Blocks of positions x vectors of units, the cheapest first; ``units`` of a block are its positions."""
    lanes = min(tunables["MAXIMUM_LANES"], rounded_up(operation.units, CELL_UNITS))
    limits = tunables["MAXIMUM_RUN"], tunables["MAXIMUM_VECTORS"], tunables["MAXIMUM_ACCUMULATORS"]
    found = blocks(positions, -(-operation.units // lanes), *limits)
    return [Block(item.cost * VECTOR_COST, item.units, item.vectors, lanes) for item in found]


def packed_vectors(operation: Operation, lanes: int, together: int = 1) -> tuple[Array, KernelCall]:
    """The weights of ``lanes`` output units side by side, and the launch that packs them.

    They are (vectors, input units of a group / ``together``, taps, ``together``, lanes), and a row of zeros behind each
    vector; units after the last one are 0.
    """
    units = operation.output.shape.units
    columns = rounded_up(units, lanes)
    packed = operation.memory("weights packed for forward", columns * (operation.columns + 1))
    packing = operation.call(
        "convolution/pack_weight",
        GlobalSize((operation.depth + 1) * columns, per_sample=False),
        None,
        f"{operation.label}: pack",
        GROUPS=1,
        UNITS=units,
        DEPTH_ROWS=operation.depth,
        UNIT_COLUMNS=columns,
        PACKED_UNITS=lanes,
        PACKED_DEPTH=together,
        PACKED=packed,
    )
    return packed, packing
