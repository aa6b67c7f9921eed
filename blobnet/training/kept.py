"""The result of an epoch, which stays on the device until somebody asks for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from blobnet.device.device import Device
from blobnet.errors import OptionError, OutOfMemoryError
from blobnet.losses.base import LOSS_SCALE, LOSS_SCALE_ELEMENTS
from blobnet.memory.blob import FLOAT32, FloatArray
from blobnet.network.parameters import DeviceParameters
from blobnet.optimizers import Optimizer
from blobnet.optimizers.base import SLOW


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


#: The names among the optimizer's slots of the parameters themselves and of their averages, in files whose weights are
#: not those: the parameters where there are averages, both where the file's weights are of an earlier epoch.
_PARAMETERS, _AVERAGES = "parameters", "averages"
#: That of the loss scale. Where one precision has it, and another goes on, it begins anew or is dropped.
_SCALE = "loss_scale"


class StepState:
    """What a file has of a training: the weights, and the optimizer's state.

    Args:
        device: where they are.
        parameters: that are trained.
        result: those that training is for: their averages, or the same.
        optimizer: whose state.
        memory: where that is, by the names of its storage.
    """

    def __init__(
        self,
        device: Device,
        parameters: DeviceParameters,
        result: DeviceParameters,
        optimizer: Optimizer,
        memory: Mapping[str, Any],
    ) -> None:
        self._device, self._parameters, self._result = device, parameters, result
        self._has_average, size = result is not parameters, parameters.table.trainable_elements
        self._slots = {slot: Place(memory[optimizer.storage(slot)], size) for slot in optimizer.state_slots}
        if LOSS_SCALE in memory:
            self._slots[_SCALE] = Place(memory[LOSS_SCALE], LOSS_SCALE_ELEMENTS)

    def start_anew(self) -> None:
        """Has lookahead take the parameters as they are for those that it goes back to."""
        if SLOW in self._slots:
            slow = self._slots[SLOW]
            self._device.memory.copy(self._parameters.buffer, slow.buffer, size=FLOAT32.itemsize * slow.elements)

    def weights(self) -> KeptArrays:
        """The arrays of the result by name, as they are now: see KeptArrays."""
        table = self._parameters.table
        places = {"weights": Place(self._result.buffer, table.elements)}
        return KeptArrays(self._device, places, list(table.slices), lambda read: table.unpack(read["weights"]))

    def slots(self, *, is_whole: bool = False) -> KeptArrays:
        """A flat array for each slot of the optimizer; with an average also the parameters themselves.

        ``is_whole``: with all parameters, and their averages, for a file that holds others.
        """
        places = self._places(is_whole=is_whole)
        return KeptArrays(self._device, places, list(places))

    def _places(self, *, is_whole: bool) -> dict[str, Place]:
        places, elements = dict(self._slots), self._parameters.table.elements
        if self._has_average or is_whole:
            places[_PARAMETERS] = Place(self._parameters.buffer, elements)
        if self._has_average and is_whole:
            places[_AVERAGES] = Place(self._result.buffer, elements)
        return places

    def restore(self, arrays: Mapping[str, FloatArray]) -> bool:
        """Puts what :meth:`slots` gave where it was; OptionError if that does not fit.

        Returns:
            Whether it was whole, so that the result holds other weights than before.
        """
        is_whole = (_AVERAGES if self._has_average else _PARAMETERS) in arrays
        places = self._places(is_whole=is_whole)
        if (_SCALE in arrays) != (_SCALE in places):
            arrays = {name: values for name, values in arrays.items() if name != _SCALE}
            places.pop(_SCALE, None)
        wanted = {slot: place.elements for slot, place in places.items()}
        sizes = {slot: values.size for slot, values in arrays.items()}
        if sizes != wanted:
            rule = "the optimizer's state must be that of the parameters that are trained"
            raise OptionError("resume", rule, saved=sizes, wanted=wanted)
        scale = arrays.get(_SCALE)
        if scale is not None and not (np.isfinite(scale).all() and scale[0] > 0 and scale[1] >= 0):
            raise OptionError("resume", "the loss scale must be a finite number above 0", loss_scale=scale.tolist())
        for slot, values in arrays.items():
            self._device.memory.write(places[slot].buffer, values)
        for parameters in {self._parameters, self._result}:
            parameters.changed()
        return is_whole
