"""The result of an epoch, which stays on the device until somebody asks for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from blobnet.device.device import Device
from blobnet.errors import OutOfMemoryError
from blobnet.memory.blob import FLOAT32, FloatArray


class Place(NamedTuple):
    """The place of float32 numbers on a device: at the start of a buffer."""

    buffer: Any
    elements: int


class Room:
    """Memory of a device for copies of what is about to change there.

    Args:
        device: whose.
        most: bytes that it may take.
    """

    def __init__(self, device: Device, most: int) -> None:
        self._device, self._left = device, most
        self._buffers: dict[str, Any] = {}

    def copied(self, places: Mapping[str, Place]) -> dict[str, Place] | None:
        """Return copies, in place of those of the last time by the same names; None where there is no room."""
        missing = {name: FLOAT32.itemsize * place.elements for name, place in places.items()}
        missing = {name: size for name, size in missing.items() if name not in self._buffers}
        if sum(missing.values()) > self._left:
            return None
        try:
            made = dict(zip(missing, self._device.memory.allocate_together(list(missing.values())), strict=True))
            copies = {name: Place({**self._buffers, **made}[name], place.elements) for name, place in places.items()}
            for name, place in places.items():
                self._device.memory.copy(place.buffer, copies[name].buffer)
            if made:
                self._device.queue.finish()  # Drivers may look for memory when it is first used.
        except OutOfMemoryError:  # Others use the device too.
            self._left = 0
            return None
        self._left -= sum(missing.values())
        self._buffers |= made
        return copies


class KeptArrays(Mapping[str, FloatArray]):
    """Arrays by name, which are read from a device when one of them is first asked for; not to be changed.

    Args:
        device: where they are.
        places: the memory that is read, by name.
        names: of the arrays.
        unpack: makes the arrays of what was read.
    """

    def __init__(
        self,
        device: Device,
        places: Mapping[str, Place],
        names: Sequence[str],
        unpack: Callable[[Mapping[str, FloatArray]], Mapping[str, FloatArray]] = dict,
    ) -> None:
        self._device, self._places, self._names, self._unpack = device, dict(places), list(names), unpack
        self._arrays: dict[str, FloatArray] | None = None
        #: Another thread may ask for them while they are copied.
        self._lock = threading.Lock()

    def read(self) -> dict[str, FloatArray]:
        """Return all of them; from then on they need the device no more."""
        with self._lock:
            if self._arrays is None:
                read = {name: self._device.memory.read(*place) for name, place in self._places.items()}
                self._arrays, self._places = dict(self._unpack(read)), {}
            return self._arrays

    def preserve(self, room: Room) -> None:
        """To be called before their memory changes: copies what nobody has read, on the device if there is room."""
        with self._lock:
            copies = room.copied(self._places) if self._arrays is None else {}
            if copies is not None:
                self._places = copies
                return
        self.read()

    def __getitem__(self, name: str) -> FloatArray:
        return self.read()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
