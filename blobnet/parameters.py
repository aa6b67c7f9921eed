"""All parameters of a graph: where they lie in one buffer, and that buffer on a device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from blobnet.blob import FloatArray
from blobnet.graph import Graph

if TYPE_CHECKING:
    from blobnet.device import Device

#: Parameters start at multiples of this many elements.
PARAMETER_ALIGNMENT = 16
#: Elements behind the last blob or parameter of every buffer that vector loads may read, and throw away.
READ_OVERRUN = 4096


@dataclass(frozen=True)
class ParameterSlice:
    """Where a parameter lies within the buffer of all parameters (and its gradient within that of all gradients)."""

    offset: int
    shape: tuple[int, ...]
    elements: int


@dataclass(frozen=True)
class ParameterTable:
    """All parameters of a graph in one buffer: first those that decay, then the other trainable ones, then the rest."""

    slices: Mapping[str, ParameterSlice]
    decayed_elements: int
    trainable_elements: int
    elements: int

    def pack(self, weights: Mapping[str, FloatArray]) -> FloatArray:
        """All parameters in one flat array, as they lie in the buffer."""
        flat = np.zeros(self.elements, np.float32)
        for name, piece in self.slices.items():
            flat[piece.offset : piece.offset + piece.elements] = weights[name].reshape(-1)
        return flat

    def unpack(self, flat: FloatArray) -> dict[str, FloatArray]:
        """Every parameter (or gradient), by name, of a flat array."""
        return {
            name: flat[piece.offset : piece.offset + piece.elements].reshape(piece.shape).copy()
            for name, piece in self.slices.items()
        }


def parameter_table(graph: Graph) -> ParameterTable:
    """Lays out all parameters of a graph."""
    ranked = sorted(graph.named_parameters.items(), key=lambda item: (not item[1].trainable, not item[1].decayed))
    slices: dict[str, ParameterSlice] = {}
    offset = decayed = trainable = 0
    for name, spec in ranked:
        slices[name] = ParameterSlice(offset, spec.shape, spec.elements)
        offset += -(-spec.elements // PARAMETER_ALIGNMENT) * PARAMETER_ALIGNMENT
        if spec.trainable:
            trainable = offset
            decayed = offset if spec.decayed else decayed
    return ParameterTable(slices, decayed, trainable, max(offset, 1))


class DeviceParameters:
    """All parameters of a graph on a device, for every plan of that graph there.

    Args:
        device: where they are.
        graph: whose they are.

    Attributes:
        table: where each of them lies.
        buffer: the memory.
        version: another number whenever they have changed: plans that hold something made of them make it anew.
    """

    def __init__(self, device: Device, graph: Graph) -> None:
        self.table = parameter_table(graph)
        self.buffer: Any = device.allocate(4 * (self.table.elements + READ_OVERRUN))
        self.version = 0
        self._device = device

    def write(self, weights: Mapping[str, FloatArray]) -> None:
        """Sets all of them, by name; done when it returns."""
        self._device.write(self.buffer, self.table.pack(weights))
        self.changed()

    def read(self) -> dict[str, FloatArray]:
        """All of them, by name."""
        return self.table.unpack(self._device.read(self.buffer, self.table.elements))

    def changed(self) -> None:
        """To be called after launches that write them."""
        self.version += 1
