"""The layout of a tensor in its buffer: strides, with zeros around the data that readers may use.

The zeros after one row serve as those before the next (docs/memory_layout.md), and so on for every axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from blobnet.contraction.form import Shape

#: Zeros before and after the data along an axis.
Halo = tuple[int, int]


@dataclass(frozen=True)
class Layout:
    """Element ``(i, j, ...)`` is at ``offset + i * strides[0] + j * strides[1] + ...`` of a buffer of ``elements``.

    ``halo`` counts zeros: elements that are not in the tensor but within its halo are 0 in memory.
    """

    shape: Shape
    strides: tuple[int, ...]
    offset: int
    elements: int
    halo: tuple[Halo, ...]

    @classmethod
    def padded(cls, shape: Shape, halo: Sequence[Halo] | None = None, pitch: int = 0) -> Layout:
        """Rows after one another, with zeros between them; ``pitch`` is the least distance of two rows."""
        zeros = tuple(halo) if halo is not None else ((0, 0),) * len(shape)
        strides: list[int] = []
        step, offset, last = 1, 0, 0
        for axis in reversed(range(len(shape))):
            before, after = zeros[axis]
            strides.insert(0, step)
            offset += before * step
            last += (shape[axis] - 1 + after) * step
            period = shape[axis] + max(before, after)
            step *= max(period, pitch) if axis == len(shape) - 1 else period
        return cls(shape, tuple(strides), offset, offset + last + 1, zeros)

    def view(self, buffer: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The data in a buffer, as an array of the tensor's shape that shares its memory."""
        steps = [stride * buffer.itemsize for stride in self.strides]
        return np.lib.stride_tricks.as_strided(buffer[self.offset :], self.shape, steps)

    def filled(self, values: npt.ArrayLike, dtype: npt.DTypeLike = np.float32) -> npt.NDArray[Any]:
        """A buffer with these values, and zeros around them."""
        array = np.asarray(values, dtype)
        if self.elements == array.size:
            return np.ascontiguousarray(array).reshape(-1)
        buffer = np.zeros(self.elements, dtype)
        self.view(buffer)[...] = array
        return buffer
