"""Convolutions of units that are apart (depthwise) whose blobs have cells (kernels/convolution/cellwise.h)."""

from __future__ import annotations

from blobnet.implementations.base import BACKWARD_DATA, BACKWARD_WEIGHTS, Implementation
from blobnet.implementations.blocking import splits_for
from blobnet.implementations.operation import Operation
from blobnet.launch.kernel_call import GlobalSize, KernelCall, rounded_up
from blobnet.launch.work_sizes import group_size, power_of_two

#: Cells side by side that a work-item makes, and the fewest work-items of a group.
_RUN, _FEWEST_ITEMS = 4, 32
#: Groups of the gradient of the weights for each compute unit.
_GROUPS = 8


class Cellwise(Implementation):
    """Units that are apart, of blobs of cells: a few cells of a row for each work-item."""

    lanes = True
    takes_cells = True
    needs_cells = True

    @classmethod
    def matches(cls, operation: Operation) -> bool:
        apart = operation.units == operation.depth == 1 and operation.bias_mode < 2
        return super().matches(operation) and apart and operation.input.type.cell == operation.output.type.cell > 1

    @property
    def cost(self) -> float:
        return self.operation.batch_size * self.operation.weights * self.operation.positions / self.operation.cores

    def calls(self) -> list[KernelCall]:
        operation, stride = self.operation, self.operation.horizontal.stride
        of_weights, backward = operation.direction == BACKWARD_WEIGHTS, operation.direction == BACKWARD_DATA
        planes = operation.output.layout.shape if of_weights else operation.result.layout.shape
        run = rounded_up(_RUN, stride) if backward else _RUN
        runs = -(-planes.width // run)
        items, facts = planes.height * runs, {"RUN": run, "RUNS": runs}
        if not of_weights:
            local = power_of_two(max(items, _FEWEST_ITEMS), group_size(operation.tuning.model))
            size = GlobalSize(rounded_up(items, local), 1, planes.units)
            return [operation.call(self.kernel, size, local, WEIGHT=operation.parameter("WEIGHT"), **facts)]
        local, rows = group_size(operation.tuning.model), operation.vertical.kernel
        most = -(-operation.batch_size * items // local)
        splits = splits_for(planes.units * rows, _GROUPS * operation.cores, min(most, operation.batch_size))
        size = GlobalSize(local, rows * splits, planes.units, per_sample=False)
        return operation.summed("weight", splits, self.kernel, size, local, **facts)
