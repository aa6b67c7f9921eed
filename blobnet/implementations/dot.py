"""Convolutions at few positions on GPUs, bound by reading the weights: dot products over the input units."""

from __future__ import annotations

import math

from blobnet.implementations.base import FORWARD, Implementation
from blobnet.implementations.operation import Operation
from blobnet.launch.kernel_call import GlobalSize, KernelCall
from blobnet.launch.work_sizes import group_size, power_of_two
from blobnet.memory.blob import FLOAT32

#: Positions of all samples, and products of a position and a tap, up to which these kernels are worth their unrolling.
MAX_POSITIONS, MAX_PRODUCTS = 8, 128
#: Input units from which the work-items of a group have enough to do.
_MIN_UNITS = 128
#: Work-items of a warp (kernels/warp.h), and of a group at most.
_WARP, _ITEMS = 32, 256
#: Output units of a group, where each weight is used once.
_UNITS = 4
#: Where weights are used several times: values of the input that a work-item keeps.
_VALUES = 32
#: The same: most values of one input unit, all of which a work-item keeps.
_MAX_WINDOW = 64
#: The same: weights of a group in local memory, of which a compute unit's should hold several groups'.
_WEIGHTS = 6144


class Dot(Implementation):
    """Few positions: a work-group for a few output units, so that each weight is read once."""

    lanes = True
    directions = (FORWARD,)
    #: The weights' bytes bind, which no other way reads as they lie: measured as the fastest wherever it fits.
    cost = 0.0

    @classmethod
    def matches(cls, operation: Operation) -> bool:
        if not super().matches(operation) or operation.depth < _MIN_UNITS:
            return False
        positions = operation.positions
        few = operation.batch_size * positions <= MAX_POSITIONS and positions * operation.taps <= MAX_PRODUCTS
        return few and (positions == 1 or cls(operation).values <= _MAX_WINDOW)

    def __init__(self, operation: Operation, tile: object = "") -> None:
        super().__init__(operation, tile)
        # What all positions read of an input unit, from the first element to the last, with what is between rows.
        y, x, output, layout = operation.vertical, operation.horizontal, operation.output.shape, operation.input.layout
        height, width = ((size - 1) * axis.stride + axis.span for size, axis in ((output.height, y), (output.width, x)))
        first = int(layout.index(0, -layout.unit_offset, -y.padding[0], -x.padding[0]))
        #: It as aligned runs: ``reads`` of ``lanes``, ``skew`` before the first; together so many ``values``.
        self.lanes_read = math.gcd(layout.unit_memory_elements, 4)
        self.skew = first % self.lanes_read
        self.reads = -(-(self.skew + (height - 1) * layout.width.memory + width) // self.lanes_read)
        self.values = self.lanes_read * self.reads

    def calls(self) -> list[KernelCall]:
        operation, model = self.operation, self.operation.tuning.model
        most = group_size(model, _ITEMS)
        # Aligned runs, of weights that are read at once, divide those of an output unit.
        run = 1 if operation.columns % 4 else 4
        if operation.positions == 1:
            size = GlobalSize(most * operation.groups * -(-operation.units // _UNITS))
            return [operation.call(self.kernel, size, most, LANES=run, BLOCK_UNITS=_UNITS)]
        # Input units a work-item, and work-items a group: as many as there is room, and work, for.
        units = min(max(1, _VALUES // self.values), -(-operation.depth // _WARP))
        items = max(_WARP, power_of_two(-(-operation.depth // units), most))
        # The group's weights lie in local memory, and after them its sums (kernels/convolution/dot.h).
        sums, room = power_of_two(operation.positions, MAX_POSITIONS), model.local_memory // FLOAT32.itemsize
        weights = units * operation.taps
        while items > _WARP and (items * weights > _WEIGHTS or items * (weights + sums + sums / _WARP) > room):
            items //= 2
        size = GlobalSize(items * operation.groups * operation.units)
        window = {"LANES": self.lanes_read, "READS": self.reads, "SKEW": self.skew}
        return [operation.call("convolution/forward_dot_local", size, items, ITEM_UNITS=units, RUN=run, **window)]
