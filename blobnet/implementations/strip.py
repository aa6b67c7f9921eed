"""Convolutions with few units a group (depthwise, images) on GPUs: a work-item makes a strip of rows for all."""

from __future__ import annotations

from blobnet.implementations.base import BACKWARD_DATA, BACKWARD_WEIGHTS, Implementation
from blobnet.implementations.blocking import splits_for
from blobnet.implementations.operation import Operation
from blobnet.implementations.tile import LAUNCH_COST, VALUE_COST
from blobnet.launch.kernel_call import GlobalSize, KernelCall
from blobnet.launch.work_sizes import group_size

#: Sums that a work-item keeps in registers, and rows of a strip, at most; the latter for gradients of weights where
#: addresses are dear: what is loaded is multiplied more often (docs/history/drivers.md).
_SUMS, _ROWS, _CHEAP_ROWS = 24, 4, 8
#: Work-items in a group that sums.
_SUMMING = 64
#: Units of the result in a group, and weights of one source unit, up to which these kernels, which unroll all taps, are
#: worth compiling.
_FEW_UNITS, _MAX_FACTORS = 4, 512
#: What loading a weight costs in multiply-adds, as two times on an NVIDIA H200 have it (docs/performance.md).
_FACTOR_COST = 3.2
#: The widest rows: work-items of the last blocks read, and do not use, up to a row after the halo.
_MAX_PITCH = 2048


class Strip(Implementation):
    """Few units a group: strips of rows of the result, backward of blocks of stride x stride cells."""

    lanes = True

    @classmethod
    def matches(cls, operation: Operation) -> bool:
        layouts = operation.input.layout, operation.output.layout
        # Strips of the whole batch are counted by an int.
        countable = all(operation.batch_size * layout.memory_elements < 2**31 for layout in layouts)
        narrow = all(layout.width.memory <= _MAX_PITCH for layout in layouts)
        units = operation.units * (operation.depth if operation.direction == BACKWARD_WEIGHTS else 1)
        few = units <= _FEW_UNITS and operation.taps * units <= _MAX_FACTORS
        return super().matches(operation) and countable and narrow and few

    @property
    def cost(self) -> float:
        """0 where it was measured as the fastest wherever it fits; backward data may have many taps."""
        operation = self.operation
        if operation.direction != BACKWARD_DATA:
            return 0.0
        rows, columns, strip = self._strips()
        products = rows * columns * operation.groups * operation.units * operation.depth * operation.taps
        values = operation.source.shape.elements + operation.result.shape.elements
        work = products * (1 + _FACTOR_COST / strip) + values * VALUE_COST
        return LAUNCH_COST + operation.batch_size * work / operation.cores

    def calls(self) -> list[KernelCall]:
        operation, result = self.operation, self.operation.result.shape
        if operation.direction == BACKWARD_WEIGHTS:
            # A work-group for each pair of units and split.
            strip, pairs = min(result.height, _ROWS), operation.groups * operation.units * operation.depth
            if operation.cheap_addresses:  # As many rows in each, so that few count twice.
                strip = -(-result.height // -(-result.height // _CHEAP_ROWS))
            strips = operation.batch_size * -(-result.height // strip) * result.width
            splits = splits_for(pairs, 2048, min(128, -(-strips // _SUMMING)))
            size = GlobalSize(_SUMMING, splits, pairs, per_sample=False)
            return operation.summed("weight", splits, self.kernel, size, _SUMMING, STRIP=strip)
        rows, columns, strip = self._strips()
        local = group_size(operation.tuning.model)
        size = GlobalSize(local, positions=columns * -(-rows // strip) * operation.groups, tile=local)
        return [operation.call(self.kernel, size, local, STRIP=strip)]

    def _strips(self) -> tuple[int, int, int]:
        """Rows and columns of blocks, and rows of a strip; a block is as many cells as phases backward, one forward."""
        operation, result = self.operation, self.operation.result.shape
        block = operation.strides if operation.direction == BACKWARD_DATA else (1, 1)
        rows, columns = -(-result.height // block[0]), -(-result.width // block[1])
        return rows, columns, min(rows, max(1, _SUMS // (operation.units * block[0] * block[1])), _ROWS)
