"""All parameters of a graph: where they lie in one buffer, and that buffer on a device."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from blobnet.errors import PlanError
from blobnet.layers.initializers import FirstWeights
from blobnet.memory.blob import FLOAT32, FloatArray, StorageType
from blobnet.network.graph import Graph

if TYPE_CHECKING:
    from blobnet.device.device import Device

#: Parameters start at multiples of this many elements.
PARAMETER_ALIGNMENT = 16
#: Elements after the last blob or parameter of every buffer that vector loads may read, and throw away.
READ_OVERRUN = 4096


@dataclass(frozen=True)
class ParameterSlice:
    """The place of a parameter in the buffer of all parameters, and of its gradient in that of all gradients."""

    offset: int
    shape: tuple[int, ...]
    elements: int


@dataclass(frozen=True)
class ParameterGroup:
    """A run of trained parameters, in which those that decay come first.

    Attributes:
        offset: where it begins in the buffer.
        elements: how long it is.
        decayed_elements: how many of them decay.
        factor: of the learning rate.
    """

    offset: int
    elements: int
    decayed_elements: int
    factor: float


@dataclass(frozen=True)
class ParameterTable:
    """All parameters of a graph in one buffer: first those that are trained, then the frozen ones and the statistics.

    Every plan that runs on one buffer of parameters must have the same table. What is trained follows from it alone.

    Attributes:
        slices: where each parameter lies, by name.
        groups: the trained parameters, one group after the other, from the start of the buffer on.
        elements: all of them, with the gaps between them.
        type: of the numbers in the buffer. Those of gradients, and what optimizers keep, are float32.
    """

    slices: Mapping[str, ParameterSlice]
    groups: tuple[ParameterGroup, ...]
    elements: int
    type: StorageType = FLOAT32

    @property
    def bytes(self) -> int:
        """The bytes of the buffer."""
        return self.type.itemsize * (self.elements + READ_OVERRUN)

    @property
    def trainable_elements(self) -> int:
        """Elements of the trained parameters, and so of the gradients."""
        return sum(group.elements for group in self.groups)

    def trains(self, name: str) -> bool:
        """Return True if a parameter is trained, and so has a gradient."""
        return self.slices[name].offset < self.trainable_elements

    def pack(self, weights: Mapping[str, FloatArray]) -> FloatArray:
        """All parameters in one flat array, as they lie in the buffer; not to be changed."""
        flat = np.zeros(self.elements, self.type.dtype)
        if isinstance(weights, FirstWeights):  # Which need no memory of their own.
            weights.put_into(self._places(flat))
        else:
            self.put_into(flat, weights)
        return flat

    def put_into(self, flat: FloatArray, weights: Mapping[str, FloatArray]) -> None:
        """Sets all parameters in such an array; what lies between them stays as it is."""
        for name, place in self._places(flat).items():
            place.reshape(weights[name].shape)[...] = weights[name]

    def _places(self, flat: FloatArray) -> dict[str, FloatArray]:
        return {name: flat[piece.offset : piece.offset + piece.elements] for name, piece in self.slices.items()}

    def unpack(self, flat: FloatArray) -> dict[str, FloatArray]:
        """Every parameter, by name, of a flat array, of which they are parts."""
        return self._unpack(flat, self.slices)

    def unpack_gradients(self, flat: FloatArray) -> dict[str, FloatArray]:
        """The gradient of every trained parameter, by name, of a flat array, of which they are parts."""
        return self._unpack(flat, filter(self.trains, self.slices))

    def _unpack(self, flat: FloatArray, names: Iterable[str]) -> dict[str, FloatArray]:
        pieces = {name: self.slices[name] for name in names}
        return {
            name: flat[piece.offset : piece.offset + piece.elements].reshape(piece.shape)
            for name, piece in pieces.items()
        }


def parameter_table(
    graph: Graph,
    frozen: Collection[str] = (),
    factors: Mapping[str, float] | None = None,
    kind: StorageType | None = None,
) -> ParameterTable:
    """Lays out all parameters of a graph.

    Args:
        graph: whose they are.
        frozen: names of trainable parameters that are not to be trained.
        factors: of the learning rate, by name; 1 for those that are not named.
        kind: the type of the numbers in the buffer; None: what the layers say.

    Raises:
        PlanError: parameters are of several types.
    """
    factors = factors or {}
    kinds = {kind or spec.type for spec in graph.named_parameters.values()} or {kind or FLOAT32}
    if len(kinds) > 1:
        rule = "all parameters lie in one buffer, and must be of one type"
        raise PlanError("parameters", rule, types=", ".join(sorted(item.name for item in kinds)))
    ranks = {
        name: (not spec.trainable or name in frozen, -factors.get(name, 1.0), not spec.decayed)
        for name, spec in graph.named_parameters.items()
    }
    slices: dict[str, ParameterSlice] = {}
    groups: dict[float, ParameterGroup] = {}
    offset = 0
    for name in sorted(ranks, key=lambda name: ranks[name]):
        spec = graph.named_parameters[name]
        slices[name] = ParameterSlice(offset, spec.shape, spec.elements)
        room = -(-spec.elements // PARAMETER_ALIGNMENT) * PARAMETER_ALIGNMENT
        is_fixed, _, is_plain = ranks[name]
        if not is_fixed:
            factor = factors.get(name, 1.0)
            group = groups.get(factor, ParameterGroup(offset, 0, 0, factor))
            decayed = 0 if is_plain else room
            groups[factor] = replace(
                group, elements=group.elements + room, decayed_elements=group.decayed_elements + decayed
            )
        offset += room
    return ParameterTable(slices, tuple(groups.values()), max(offset, 1), *kinds)


class DeviceParameters:
    """All parameters of a graph on a device, for every plan of that graph there.

    Args:
        device: where they are.
        graph: whose they are.
        table: where each of them lies; if None, with all trainable ones trained.

    Attributes:
        table: where each of them lies.
        buffer: the memory.
        version: another number whenever they have changed: plans that hold something made of them make it anew.
        frozen_version: the same, of those that no training changes.
    """

    def __init__(self, device: Device, graph: Graph, table: ParameterTable | None = None) -> None:
        self.table = table or parameter_table(graph)
        self.buffer: Any = device.memory.allocate(self.table.bytes)
        self.version = self.frozen_version = 0
        self._device = device

    def write(self, weights: Mapping[str, FloatArray]) -> None:
        """Sets all of them, by name; done when it returns."""
        if isinstance(weights, FirstWeights):
            self._device.memory.write(self.buffer, self.table.pack(weights))
        else:
            with self._device.memory.filling(self.buffer, self.table.elements, self.table.type.dtype) as flat:
                self.table.put_into(flat, weights)
        self.changed()

    def read(self) -> dict[str, FloatArray]:
        """All of them, by name."""
        return self.table.unpack(self._device.memory.read(self.buffer, self.table.elements, self.table.type.dtype))

    def changed(self, *, only_trained: bool = False) -> None:
        """To be called after launches that write them."""
        self.version += 1
        self.frozen_version += not only_trained
