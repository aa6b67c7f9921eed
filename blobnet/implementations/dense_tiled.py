"""Dense layers as products of matrices through local memory, for GPUs and batches (kernels/dense/tiled.h)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from blobnet.implementations.base import BACKWARD_WEIGHTS, FORWARD, Candidate, Implementation
from blobnet.implementations.blocking import splits_for
from blobnet.implementations.operation import Operation
from blobnet.implementations.sums import bias_gradient
from blobnet.implementations.tile import Tile, fitting, product_cost
from blobnet.kernel_call import GlobalSize, KernelCall

#: Tiles: samples x output units (forward), samples x elements (backward data), output units x elements (weights).
TILES = (
    Tile(64, 128, 8, 8, 8, speed=0.98),
    Tile(64, 32, 16, 8, 4, speed=0.88),
    Tile(32, 32, 16, 4, 4, speed=0.83),
)
#: Tiles for each compute unit that split sums should have, the most splits, and their least rows.
_SPLIT_TILES, _MOST_SPLITS, _LEAST_ROWS = 4, 64, 64


class DenseTiled(Implementation):
    """Dense layers: products of matrices through local memory; forward and backward data in splits of their sums."""

    lanes = True
    families = ("dense",)
    forward = "dense/forward_tiled"
    backward_data = "dense/backward_data_tiled"
    backward_weights = "dense/backward_weight_tiled"

    def matches(self, operation: Operation) -> bool:
        # Samples are rows of matrices, whose cells an int can count.
        layout = operation.input.layout
        countable = operation.batch_size * layout.memory_elements < 2**31
        return super().matches(operation) and layout.is_contiguous and countable

    def candidates(self, operation: Operation) -> Iterator[Candidate]:
        batch, units, elements = operation.batch_size, operation.output_units, operation.columns
        cores = operation.cores
        for tile in fitting(TILES, operation.tuning.model):
            if operation.direction == BACKWARD_WEIGHTS:
                steps = -(-batch // tile.depth)
                cost, splits = product_cost(tile, units, elements, 1, cores) * steps * tile.depth, 1
            else:
                columns, rows = (units, elements) if operation.direction == FORWARD else (elements, units)
                tiles = -(-batch // tile.units) * -(-columns // tile.columns)
                splits = splits_for(tiles, _SPLIT_TILES * cores, min(_MOST_SPLITS, -(-rows // _LEAST_ROWS)))
                cost = product_cost(tile, batch, columns, splits, cores) * rows / splits
            yield Candidate(self.way(tile), cost, partial(self._calls, operation, tile, splits))

    def _calls(self, operation: Operation, tile: Tile, splits: int) -> list[KernelCall]:
        kernel, local, batch = self.kernel(operation), (tile.items, 1, 1), operation.batch_size
        if operation.direction == BACKWARD_WEIGHTS:
            size = _work(tile, operation.output_units, operation.columns)
            return [operation.call(kernel, size, local, macros=tile.macros), *bias_gradient(operation)]
        values = operation.result.shape.elements
        partials = {"PARTIALS": operation.memory(f"{operation.direction} partials", per_sample=splits * values)}
        facts = {"UNITS": values, "ELEMENTS": values, "SPLITS": splits, **tile.macros}
        return [
            operation.call(kernel, _work(tile, batch, values, splits), local, facts=facts, arrays=partials),
            operation.call("dense/split_sum", GlobalSize(values), (64, 1, 1), facts=facts, arrays=partials),
        ]


def _work(tile: Tile, units: int, columns: int, splits: int = 1) -> GlobalSize:
    """The work of ``splits`` products of ``units`` x ``columns`` sums."""
    tiles = -(-units // tile.units) * -(-columns // tile.columns)
    return GlobalSize(tiles * tile.items, splits, per_sample=False)
