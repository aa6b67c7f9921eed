"""Convolutions with few units a group (depthwise, images) on GPUs: a work-item makes a strip of rows for all."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from blobnet.implementations.base import BACKWARD_DATA, BACKWARD_WEIGHTS, Candidate, Implementation
from blobnet.implementations.blocking import splits_for
from blobnet.implementations.operation import Operation
from blobnet.implementations.sums import split_sum
from blobnet.kernel_call import GlobalSize, KernelCall

#: Sums that a work-item keeps in registers, and rows of a strip, at most.
_SUMS, _ROWS = 24, 4
#: Work-items in a group that makes values, and in one that sums.
_LOCAL, _SUMMING = 128, 64
#: Units of the result in a group, and weights of one source unit, up to which these kernels, which unroll all taps, are
#: worth compiling.
_FEW_UNITS, _MOST_FACTORS = 4, 512
#: The widest rows: work-items of the last blocks read, and do not use, up to a row behind the halo.
_MOST_PITCH = 2048


class Strip(Implementation):
    """Few units a group: strips of rows of the result, backward of blocks of stride x stride cells."""

    lanes = True
    forward = "convolution/forward_strip"
    backward_data = "convolution/backward_data_strip"
    backward_weights = "convolution/backward_weight_strip"

    def matches(self, operation: Operation) -> bool:
        layouts = operation.input.layout, operation.output.layout
        # Strips of the whole batch are counted by an int.
        countable = all(operation.batch_size * layout.memory_elements < 2**31 for layout in layouts)
        return super().matches(operation) and countable and all(it.unit_memory_width <= _MOST_PITCH for it in layouts)

    def candidates(self, operation: Operation) -> Iterator[Candidate]:
        of_weights = operation.direction == BACKWARD_WEIGHTS
        units = operation.input_units * operation.output_units if of_weights else operation.units
        if units <= _FEW_UNITS and operation.taps * units <= _MOST_FACTORS:
            # Bound by memory: measured as the fastest wherever it fits.
            calls = self._weight_calls if of_weights else self._calls
            yield Candidate(self.way(), 0.0, partial(calls, operation))

    def _calls(self, operation: Operation) -> list[KernelCall]:
        # A block is as many cells as there are phases backward, one forward.
        block = operation.strides if operation.direction == BACKWARD_DATA else (1, 1)
        result = operation.result.shape
        rows, columns = -(-result.height // block[0]), -(-result.width // block[1])
        strip = min(rows, max(1, _SUMS // (operation.units * block[0] * block[1])), _ROWS)
        size = GlobalSize(_LOCAL, positions=columns * -(-rows // strip) * operation.groups, tile=_LOCAL)
        return [operation.call(self.kernel(operation), size, (_LOCAL, 1, 1), macros={"STRIP": strip})]

    def _weight_calls(self, operation: Operation) -> list[KernelCall]:
        """A work-group for each pair of units and split."""
        delta = operation.output.shape
        strip = min(delta.height, _ROWS)
        pairs = operation.groups * operation.output_units * operation.input_units
        strips = operation.batch_size * -(-delta.height // strip) * delta.width
        splits = splits_for(pairs, 2048, min(128, -(-strips // _SUMMING)))
        partials, reductions = split_sum(operation, splits)
        call = operation.call(
            self.backward_weights,
            GlobalSize(_SUMMING, splits, pairs, per_sample=False),
            (_SUMMING, 1, 1),
            macros={"SPLITS": splits, "STRIP": strip},
            arrays={"PARTIALS": partials},
        )
        return [call, *reductions]
