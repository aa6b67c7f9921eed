"""Convolutions at a stride by tiles of sums in registers, straight from the input: for CPUs, where units are few."""

from __future__ import annotations

from blobnet.implementations.base import FORWARD
from blobnet.implementations.direct import Direct, Part
from blobnet.implementations.operation import Operation

#: The stride along rows of which a shuffle of two vectors makes one (kernels/vector.h).
_STRIDE = 2


class Strided(Direct):
    """Tiles of sums in registers, of every second value that is loaded: without a copy of the input's phases."""

    directions = (FORWARD,)

    @classmethod
    def matches(cls, operation: Operation) -> bool:
        return super().matches(operation) and operation.strides[1] == _STRIDE

    @classmethod
    def kernel_of(cls, direction: str) -> str:
        return "convolution/forward_flat"

    def __init__(self, operation: Operation, tile: object = "", *parts: Part) -> None:
        super().__init__(operation, tile, *parts)
        self.copies, self.layout, self.steps = False, operation.source.layout, operation.strides
        self.pitch = self.layout.unit_memory_width

    @property
    def is_guess(self) -> bool:
        """It was measured on images alone, one at a time."""
        return True
