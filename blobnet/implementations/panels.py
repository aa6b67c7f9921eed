"""Convolutions as products with panels, copies in the order of reading: for CPUs (kernels/convolution/panels.h)."""

from __future__ import annotations

from blobnet.implementations.base import BACKWARD_DATA, FORWARD, Implementation
from blobnet.implementations.blocking import READ_COST, Block, vector_tiles
from blobnet.implementations.operation import Operation
from blobnet.launch.kernel_call import GlobalSize, KernelCall, rounded_up
from blobnet.memory.blob import FLOAT32

#: What it costs to copy a value into a panel, to store a result, and to transpose a weight, in multiply-adds of a
#: compute unit; and a multiply-add itself, which reads nothing but a panel and weights in their order.
COPY_COST, STORE_COST, TRANSPOSE_COST, PRODUCT_COST = 30, 40, 40, 0.8
#: Rows of a panel at most, and units of a work-item, each of which has a tile of sums in local memory.
MAX_ROWS, MAX_UNITS = 512, 512
#: Work-items that a compute unit should have, so that none waits long for the last, if they have so many units each;
#: and from how many on it does not matter that some compute units have one more.
WORK_ITEMS, FEWEST_UNITS, MANY_ITEMS = 8, 64, 4


class Panels(Implementation):
    """Products with panels, copies of the source in the order of reading; backward data at stride 1."""

    tile: Block

    lanes = False
    directions = (FORWARD, BACKWARD_DATA)

    @classmethod
    def matches(cls, operation: Operation) -> bool:
        return super().matches(operation) and (operation.direction == FORWARD or operation.strides == (1, 1))

    @classmethod
    def tiles(cls, operation: Operation) -> list[Block]:
        positions, stride = operation.batch_size * operation.positions, operation.unit_stride
        return vector_tiles(cls.tunables(operation), operation.units, positions, stride=stride)

    def __init__(self, operation: Operation, tile: Block) -> None:
        super().__init__(operation, tile)
        model, units = operation.tuning.model, operation.units
        #: Tiles of the batch's positions.
        self.count = -(-operation.batch_size * operation.positions // tile.values)
        # Tiles that fit: rows of the panel, sums of a unit each, and what kernels/convolution/panels.h has besides.
        room = model.local_memory // (FLOAT32.itemsize * tile.values) - 4
        wanted = -(-WORK_ITEMS * model.cores // (operation.groups * self.count))
        most_units = max(1, min(MAX_UNITS, room // 2))
        chunks = max(-(-units // most_units), min(wanted, -(-units // FEWEST_UNITS)))
        #: Units of a work-item, and work-items that share those of a group.
        self.units_at_once = rounded_up(-(-units // chunks), tile.units)
        self.chunks = -(-units // self.units_at_once)
        #: Source units in a panel.
        self.depths = min(operation.depth, max(1, min(MAX_ROWS, room - self.units_at_once) // operation.taps))
        #: Whether local memory has room for it.
        self.fits = self.units_at_once + self.depths * operation.taps <= room

    @property
    def cost(self) -> float:
        operation, cores = self.operation, self.operation.cores
        copied = COPY_COST * operation.depth * operation.taps * self.chunks
        positions = operation.batch_size * operation.positions
        values = positions * operation.groups * (copied + STORE_COST * operation.units)
        items = operation.groups * self.chunks * self.count
        product = self.tile.cost * operation.depth * operation.taps * operation.groups
        cost = (PRODUCT_COST * product + values + READ_COST * operation.weights) / cores
        if items < MANY_ITEMS * cores:
            cost *= -(-items // cores) * cores / items
        return cost + (TRANSPOSE_COST * operation.weights / cores if operation.direction == BACKWARD_DATA else 0)

    def calls(self) -> list[KernelCall]:
        operation, tile, calls, arrays = self.operation, self.tile, [], {}
        if operation.direction == BACKWARD_DATA:
            # Puts the weights of an input unit together.
            kernel, label = "convolution/transpose_weight", f"{operation.label}: transpose"
            arrays["WEIGHT"] = weights = operation.memory("weights transposed", operation.weights)
            size = GlobalSize(-(-operation.depth // tile.lanes), operation.groups, per_sample=False)
            calls = [operation.call(kernel, size, None, label, LANES=tile.lanes, TRANSPOSED=weights)]
        size = GlobalSize(operation.groups * self.chunks, positions=operation.positions, tile=tile.values)
        facts = tile.macros | {"UNITS_AT_ONCE": self.units_at_once, "DEPTHS": self.depths}
        facts |= operation.phases[0].macros if operation.phases else {}
        return [*calls, operation.call(self.kernel, size, **arrays, **facts)]
