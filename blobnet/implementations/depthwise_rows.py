"""Convolutions of units that are apart (depthwise) on processors, whose blobs have cells: vectors of units."""

from __future__ import annotations

from blobnet.implementations.base import FORWARD, Implementation
from blobnet.implementations.blocking import VECTOR_COST, Block
from blobnet.implementations.depthwise import MAX_TAPS, STORE_COST, SUM_COST, shares_of_planes
from blobnet.implementations.operation import Operation
from blobnet.implementations.rows import has_vectors, packed_vectors
from blobnet.launch.kernel_call import KernelCall
from blobnet.memory.blob import CELL_UNITS


class DepthwiseRows(Implementation):
    """Units that are apart, of blobs of cells: vectors of one cell or of two neighbours, several of a row at a time."""

    tile: Block

    lanes = False
    directions = (FORWARD,)
    takes_cells = True
    needs_cells = True

    @classmethod
    def matches(cls, operation: Operation) -> bool:
        fits = operation.units == operation.depth == 1 and operation.input.type == operation.output.type
        return super().matches(operation) and fits and operation.taps <= MAX_TAPS and has_vectors(operation)

    @classmethod
    def tiles(cls, operation: Operation) -> list[Block]:
        """Runs of one position, or of two, as even as may be."""
        tunables, width = cls.tunables(operation), operation.output.shape.width
        most = tunables["MAXIMUM_LANES"] // CELL_UNITS if operation.horizontal.stride == 1 else 1
        found = []
        for positions in range(1, min(most, width) + 1):
            runs = -(-width // (positions * tunables["MAXIMUM_ACCUMULATORS"]))
            found.append(Block(0, 1, min(-(-width // (positions * runs)), width // positions), positions * CELL_UNITS))
        return found

    @property
    def cost(self) -> float:
        operation, output, tile = self.operation, self.operation.output.shape, self.tile
        runs = -(-output.width // (tile.vectors * tile.lanes // CELL_UNITS))
        vectors = output.height * runs * tile.vectors * output.units // CELL_UNITS * operation.batch_size
        return SUM_COST * vectors * VECTOR_COST * (operation.taps + STORE_COST) / operation.cores

    def calls(self) -> list[KernelCall]:
        operation, tile = self.operation, self.tile
        packed, packing = packed_vectors(operation, CELL_UNITS)
        size, shares = shares_of_planes(operation, 1)
        facts = {"LANES": tile.lanes, "RUN": tile.vectors, **shares}
        return [packing, operation.call(self.kernel, size, PACKED=packed, **facts)]
