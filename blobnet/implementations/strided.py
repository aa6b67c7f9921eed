"""Convolutions at a stride by tiles of sums in registers, straight from the input: for CPUs, where units are few."""

from __future__ import annotations

from blobnet.implementations.base import FORWARD
from blobnet.implementations.direct import Direct
from blobnet.implementations.operation import Operation

#: The stride along rows of which a shuffle of two vectors makes one (kernels/vector.h).
_STRIDE = 2


class Strided(Direct):
    """Tiles of sums in registers, of every second value that is loaded: without a copy of the input's phases."""

    directions = (FORWARD,)
    splits_input = False
    #: It was measured on images alone, one at a time.
    is_guess = True

    @classmethod
    def matches(cls, operation: Operation) -> bool:
        return super().matches(operation) and operation.strides[1] == _STRIDE
