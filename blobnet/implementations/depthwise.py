"""Convolutions of units that are apart (depthwise) on CPUs: rows of planes, straight from the input."""

from __future__ import annotations

from blobnet.implementations.base import FORWARD, Implementation
from blobnet.implementations.blocking import VECTOR_COST, Block
from blobnet.implementations.operation import Operation
from blobnet.launch.kernel_call import GlobalSize, KernelCall, rounded_up
from blobnet.launch.kernel_source import Macro

#: What a multiply-add and a load cost, and what it costs to store a vector in these; work-items of a compute unit, if
#: planes can be cut, or units done together.
SUM_COST, STORE_COST, WORK_ITEMS = 0.7, 4, 8
#: Taps up to which this kernel, which unrolls them all, is worth compiling.
MAX_TAPS = 49


class Depthwise(Implementation):
    """Units that are apart: blocks of rows of a plane, of several heights."""

    tile: Block

    lanes = False
    directions = (FORWARD,)

    @classmethod
    def matches(cls, operation: Operation) -> bool:
        apart = operation.units == operation.depth == 1
        return super().matches(operation) and apart and operation.taps <= MAX_TAPS

    @classmethod
    def tiles(cls, operation: Operation) -> list[Block]:
        """So many rows of vectors that are whole."""
        tunables, output = cls.tunables(operation), operation.output.shape
        width = 1 << (min(output.width, tunables["MAXIMUM_LANES"]).bit_length() - 1)
        heights = {min(rows, output.height) for rows in (tunables["MAXIMUM_ROWS"], 2, 1)}
        return [Block(0, rows, width) for rows in sorted(heights)]

    @property
    def cost(self) -> float:
        operation, output, rows, width = self.operation, self.operation.output.shape, self.tile.units, self.tile.vectors
        vectors = rounded_up(output.height, rows) * -(-output.width // width) * output.units * operation.batch_size
        loads = (rows - 1) * operation.vertical.stride + operation.vertical.span
        steps = operation.taps + loads * operation.horizontal.kernel / rows + STORE_COST
        return SUM_COST * vectors * VECTOR_COST * steps / operation.cores

    def calls(self) -> list[KernelCall]:
        operation, block_rows = self.operation, self.tile.units
        size, shares = shares_of_planes(operation, block_rows)
        facts = {"LANES": self.tile.vectors, "BLOCK_ROWS": block_rows, **shares}
        return [operation.call(self.kernel, size, **facts)]


def shares_of_planes(operation: Operation, block_rows: int) -> tuple[GlobalSize, dict[str, Macro]]:
    """Work-items that make some rows, whole blocks, of a few planes of the output, and the macros that say how many."""
    output, wanted = operation.output.layout.shape, WORK_ITEMS * operation.cores
    planes, blocks = output.units * operation.batch_size, -(-output.height // block_rows)
    rows = -(-blocks // min(blocks, max(1, -(-wanted // planes)))) * block_rows
    parts = -(-output.height // rows)
    # Many small planes: a work-item takes some time to begin.
    most = max(1, min(planes * parts // wanted, output.units))
    at_once = max(count for count in range(1, most + 1) if output.units % count == 0)
    return GlobalSize(1, parts, output.units // at_once), {"ROWS": rows, "UNITS_AT_ONCE": at_once}
