"""Convolutions of units that are apart (depthwise) on CPUs: rows of planes, straight from the input."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from blobnet.implementations.base import Candidate, Implementation
from blobnet.implementations.operation import Operation
from blobnet.kernel_call import GlobalSize, KernelCall

#: What a multiply-add and a load cost, and what it costs to store a vector in these; work-items of a compute unit.
SUM_COST, STORE_COST, WORK_ITEMS = 0.7, 4, 8
#: Taps up to which this kernel, which unrolls them all, is worth compiling.
MOST_TAPS = 49


class Depthwise(Implementation):
    """Units that are apart: blocks of rows of a plane, of several heights."""

    lanes = False
    forward = "convolution/forward_depthwise"

    def matches(self, operation: Operation) -> bool:
        apart = operation.input_units == operation.output_units == 1
        return super().matches(operation) and apart and operation.taps <= MOST_TAPS

    def candidates(self, operation: Operation) -> Iterator[Candidate]:
        tunables, output = operation.tuning.of(self.forward), operation.output.shape
        # Vectors that are whole, in a row.
        lanes = 1 << (min(output.width, tunables["MAXIMUM_LANES"]).bit_length() - 1)
        for rows in sorted({min(rows, output.height) for rows in (tunables["MAXIMUM_ROWS"], 2, 1)}):
            vectors = -(-output.height // rows) * rows * -(-output.width // lanes) * output.units * operation.batch_size
            loads = (rows - 1) * operation.vertical.stride + operation.vertical.span
            steps = operation.taps + loads * operation.horizontal.kernel / rows + STORE_COST
            # A vector that holds less than the most lanes takes as long.
            cost = SUM_COST * vectors * tunables["MAXIMUM_LANES"] * steps / operation.cores
            yield Candidate(self.way(f"{rows}x{lanes}"), cost, partial(self._calls, operation, lanes, rows))

    def _calls(self, operation: Operation, lanes: int, block_rows: int) -> list[KernelCall]:
        output = operation.output.shape
        blocks = -(-output.height // block_rows)
        parts = min(blocks, max(1, -(-WORK_ITEMS * operation.cores // (output.units * operation.batch_size))))
        rows = -(-blocks // parts) * block_rows
        size = GlobalSize(1, -(-output.height // rows), output.units)
        macros = {"LANES": lanes, "BLOCK_ROWS": block_rows, "ROWS": rows}
        return [operation.call(self.forward, size, macros=macros)]
