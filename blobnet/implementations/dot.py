"""Convolutions at few positions on GPUs, bound by reading the weights: dot products over the input units."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from blobnet.implementations.base import Candidate, Implementation
from blobnet.implementations.operation import Operation
from blobnet.kernel_call import GlobalSize, KernelCall, power_of_two
from blobnet.kernel_source import Macro

#: Positions of all samples, and products of a position and a tap, up to which these kernels are worth their unrolling.
MOST_POSITIONS, MOST_PRODUCTS = 8, 128
#: Input units from which the work-items of a group have enough to do.
_LEAST_UNITS = 128
#: Work-items of a warp (kernels/warp.h), and of a group at most.
_WARP, _ITEMS = 32, 256
#: Output units of a group, where each weight is used once.
_UNITS = 4
#: Where weights are used several times: values of the input that a work-item keeps.
_VALUES = 32
#: The same: most values of one input unit, all of which a work-item keeps.
_MOST_WINDOW = 64
#: The same: weights of a group in local memory, of which a compute unit's should hold several groups'.
_WEIGHTS = 6144


@dataclass(frozen=True)
class Window:
    """What all positions read of an input unit, as aligned runs: ``reads`` of ``lanes``, ``skew`` before the first."""

    lanes: int
    reads: int
    skew: int

    @classmethod
    def of(cls, operation: Operation) -> Window:
        """From the first element to the last, with what is between rows."""
        output, layout = operation.output.shape, operation.input.layout
        axes = operation.vertical, operation.horizontal
        height, width = (
            (size - 1) * axis.stride + axis.span for size, axis in zip((output.height, output.width), axes, strict=True)
        )
        lanes = math.gcd(layout.unit_memory_elements, 4)
        skew = int(layout.index(0, -layout.unit_offset, -axes[0].padding[0], -axes[1].padding[0])) % lanes
        return cls(lanes, -(-(skew + (height - 1) * layout.unit_memory_width + width) // lanes), skew)

    @property
    def values(self) -> int:
        """Values that a work-item keeps."""
        return self.lanes * self.reads

    @property
    def macros(self) -> dict[str, Macro]:
        """The window as macros."""
        return {"LANES": self.lanes, "READS": self.reads, "SKEW": self.skew}


class Dot(Implementation):
    """Few positions: a work-group for a few output units, so that each weight is read once."""

    lanes = True
    forward = "convolution/forward_dot"
    #: For several positions.
    local_kernel = "convolution/forward_dot_local"

    def candidates(self, operation: Operation) -> Iterator[Candidate]:
        positions = operation.output.shape.height * operation.output.shape.width
        few = operation.batch_size * positions <= MOST_POSITIONS and positions * operation.taps <= MOST_PRODUCTS
        fits = positions == 1 or Window.of(operation).values <= _MOST_WINDOW
        if few and fits and operation.input_units >= _LEAST_UNITS:
            # The weights' bytes bind, which no other way reads as they lie: measured as the fastest wherever it fits.
            yield Candidate(self.way(), 0.0, partial(self._calls, operation, positions))

    def _calls(self, operation: Operation, positions: int) -> list[KernelCall]:
        # Aligned runs, of weights that are read at once, divide those of an output unit.
        run = 1 if operation.columns % 4 else 4
        if positions == 1:
            kernel, items, block = self.forward, _ITEMS, _UNITS
            macros: dict[str, Macro] = {"LANES": run, "BLOCK_UNITS": block}
        else:
            kernel, block, window = self.local_kernel, 1, Window.of(operation)
            units, items = _round(operation, window)
            macros = {"ITEM_UNITS": units, "RUN": run, **window.macros}
        size = GlobalSize(items * operation.groups * -(-operation.output_units // block))
        return [operation.call(kernel, size, (items, 1, 1), macros=macros)]


def _round(operation: Operation, window: Window) -> tuple[int, int]:
    """Input units a work-item, and work-items a group: as many as there is room, and work, for."""
    units = min(max(1, _VALUES // window.values), -(-operation.input_units // _WARP))
    items = max(_WARP, power_of_two(-(-operation.input_units // units), _ITEMS))
    while items > _WARP and units * items * operation.taps > _WEIGHTS:
        items //= 2
    return units, items
