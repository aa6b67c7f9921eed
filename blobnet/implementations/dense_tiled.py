"""Dense layers as products of matrices through local memory, for GPUs and batches (kernels/dense/tiled.h)."""

from __future__ import annotations

from blobnet.implementations.base import BACKWARD_DATA, BACKWARD_WEIGHTS, Implementation
from blobnet.implementations.blocking import splits_for
from blobnet.implementations.operation import Operation
from blobnet.implementations.tile import LAUNCH_COST, Tile, fitting
from blobnet.launch.kernel_call import GlobalSize, KernelCall, rounded_up

#: Tiles: samples x output units (forward), samples x elements (backward data), output units x elements (weights).
TILES = (
    Tile(64, 128, 8, 8, 8, speed=0.98),
    Tile(64, 32, 16, 8, 4, speed=0.88),
    Tile(32, 32, 16, 4, 4, speed=0.83),
)
#: Tiles for each compute unit that split sums should have, the most splits, and their least rows.
_SPLIT_TILES, _MAX_SPLITS, _MIN_ROWS = 4, 64, 64


class DenseTiled(Implementation):
    """Dense layers: products of matrices through local memory; forward and backward data in splits of their sums."""

    tile: Tile

    lanes = True
    families = ("dense",)

    @classmethod
    def matches(cls, operation: Operation) -> bool:
        # Samples are rows of matrices, whose cells an int can count.
        layout = operation.input.layout
        countable = operation.batch_size * layout.memory_elements < 2**31
        return super().matches(operation) and layout.is_contiguous and countable

    @classmethod
    def tiles(cls, operation: Operation) -> tuple[Tile, ...]:
        return fitting(TILES, operation.tuning.model)

    def __init__(self, operation: Operation, tile: Tile) -> None:
        super().__init__(operation, tile)
        #: Of forward and backward data: values that each sum is of, sums of a sample, and parts of the sums.
        self.rows, self.values = operation.source.shape.elements, operation.result.shape.elements
        tiles, most = tile.count(operation.batch_size, self.values), min(_MAX_SPLITS, -(-self.rows // _MIN_ROWS))
        self.splits = splits_for(tiles, _SPLIT_TILES * operation.cores, most)

    @property
    def cost(self) -> float:
        tile, operation, batch = self.tile, self.operation, self.operation.batch_size
        if operation.direction == BACKWARD_WEIGHTS:
            product = tile.cost(operation.units, operation.columns, 1, operation.cores)
            return product * rounded_up(batch, tile.depth) + LAUNCH_COST * (operation.bias_mode > 0)
        product = tile.cost(batch, self.values, self.splits, operation.cores) * self.rows / self.splits
        # NOTE: forward, the speeds of both ways were fitted to times with all launches.
        return product + LAUNCH_COST * (operation.direction == BACKWARD_DATA)

    def calls(self) -> list[KernelCall]:
        operation, tile, values, splits = self.operation, self.tile, self.values, self.splits
        if operation.direction == BACKWARD_WEIGHTS:
            size = GlobalSize(tile.count(operation.units, operation.columns) * tile.items, per_sample=False)
            return [operation.call(self.kernel, size, tile.items, **tile.macros), *operation.bias_gradient()]
        partials = operation.memory(f"{operation.direction} partials", per_sample=splits * values)
        facts = {"UNITS": values, "ELEMENTS": values, "SPLITS": splits, **tile.macros}
        size = GlobalSize(tile.count(operation.batch_size, values) * tile.items, splits, per_sample=False)
        return [
            operation.call(self.kernel, size, tile.items, PARTIALS=partials, **facts),
            operation.call("dense/split_sum", GlobalSize(values), 64, PARTIALS=partials, **facts),
        ]
