"""The transports that carry elements of a device's buffers from rank to rank (docs/many_devices.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from blobnet.device.device import Device
from blobnet.errors import DeviceError
from blobnet.memory.blob import FLOAT32, FloatArray
from blobnet.parallel.cuda import WITHOUT, Communicator, Place
from blobnet.parallel.heartbeat import State

__all__ = ["Copies", "Elements", "HostMemory", "Swap", "Transport"]

#: Some elements of a device's buffer of float32.
Elements: TypeAlias = tuple[Any, range]
#: Waits for what was launched before and sends it; gives what waits for what others send.
Begun: TypeAlias = Callable[[], Callable[[], None]]


class Swap(NamedTuple):
    """What two ranks give each other.

    Attributes:
        partner: the other rank.
        given: what to send.
        taken: where what comes goes, which no launch touches until it has come.
    """

    partner: int
    given: Elements
    taken: Elements


class Transport:
    """The transport of a single rank, which has everything already.

    Attributes:
        name: what it is called.
        all_at_once: whether a rank should swap with all others at once, and not with one after the other.
        adds: whether it has sums of its own: see :meth:`adding`.
    """

    name = "nothing"
    all_at_once = False
    adds = True

    def allocate(self, device: Device, size: int) -> Any:
        """A buffer of at least so many bytes, all zero, whose elements can be swapped and added.

        Raises:
            OutOfMemoryError: the device has no room for it.
        """
        return device.memory.allocate(size)

    def swapping(self, swaps: Sequence[Swap], device: Device, key: str) -> Begun:
        """Begin to swap elements with other ranks, behind what is launched.

        Launches behind the end find those that came. All of them call it, each with as many to take as the other one
        gives.

        Args:
            swaps: with each of them. Of several, those of all ranks come in an order in which ranks have each other at
                the same place.
            device: whose buffers they are in: of :meth:`allocate`.
            key: tells what is under way at the same time apart.
        """
        raise NotImplementedError

    def adding(self, device: Device, elements: Elements, key: str) -> Begun:
        """Begin to sum elements over all ranks, in an order of its own, behind what is launched."""
        raise NotImplementedError

    def release(self) -> None:
        """Let go of what ranks hold of one another's buffers; all must call it."""

    def fill(self, device: Device, buffer: Any, own: range) -> None:
        """Brings this rank the elements of the others, of which each has as many, side by side in the ranks' order.

        Args:
            device: whose buffer it is, any.
            buffer: of the elements of all.
            own: those that this rank has.
        """


class HostMemory(Transport):
    """MPI, through page-locked memory; a processor's own buffers are where they are.

    Args:
        mpi: the library.
        doing: says what this rank does: see Heartbeat.
    """

    name = "MPI"

    def __init__(self, mpi: Any, doing: Callable[[State], AbstractContextManager[None]]) -> None:
        self._mpi, self._all, self._doing = mpi, mpi.COMM_WORLD, doing
        self._memory: dict[str, npt.NDArray[np.float32]] = {}

    def swapping(self, swaps: Sequence[Swap], device: Device, key: str) -> Begun:
        begun = [self._swapping(swap, device, f"{key} {swap.partner}") for swap in swaps]

        def swap_all() -> Callable[[], None]:
            for each in begun:
                each()
            return _nothing

        return swap_all

    def _swapping(self, both: Swap, device: Device, key: str) -> Callable[[], None]:
        partner, given, taken = both
        (source, own), (target, other) = given, taken

        def swap(out: FloatArray, into: FloatArray) -> None:
            with self._doing("waits"):
                self._all.Sendrecv(out, partner, recvbuf=into, source=partner)

        def swap_there() -> None:
            with device.memory.mapped(given, taken) as (out, into):
                swap(out, into)

        if device.is_host:
            return swap_there
        out = self._host(device, f"out {key}", len(own))
        into = self._host(device, f"into {key}", len(other))
        reading = device.memory.read_async(source, out, FLOAT32.itemsize * own.start) if own else None

        def finish() -> None:
            if reading is not None:
                reading.values()
            swap(out, into)
            if other:
                device.memory.write(target, into, FLOAT32.itemsize * other.start)

        return finish

    def adding(self, device: Device, elements: Elements, key: str) -> Begun:
        buffer, own = elements

        def add(values: FloatArray) -> None:
            with self._doing("waits"):
                self._all.Allreduce(self._mpi.IN_PLACE, values)

        def add_there() -> Callable[[], None]:
            with device.memory.mapped(elements) as (values,):
                add(values)
            return _nothing

        if device.is_host:
            return add_there
        values = self._host(device, f"out {key}", len(own))
        reading = device.memory.read_async(buffer, values, FLOAT32.itemsize * own.start)

        def add_here() -> Callable[[], None]:
            add(reading.values())
            device.memory.write(buffer, values, FLOAT32.itemsize * own.start)
            return _nothing

        return add_here

    def fill(self, device: Device, buffer: Any, own: range) -> None:
        values = self._host(device, "filled", len(own) * self._all.Get_size())
        values[own.start : own.stop] = device.memory.read(buffer, len(own), offset=FLOAT32.itemsize * own.start)
        with self._doing("waits"):
            self._all.Allgather(self._mpi.IN_PLACE, values)
        device.memory.write(buffer, values)

    def _host(self, device: Device, name: str, elements: int) -> npt.NDArray[np.float32]:
        memory = self._memory.get(name)
        if memory is None or memory.size < elements:
            memory = self._memory[name] = device.memory.host_memory(FLOAT32.itemsize * max(1, elements)).view(
                np.float32
            )
        return memory[:elements]


class Copies(Transport):
    """Copies from GPU to GPU by CUDA's driver, of memory that OpenCL and CUDA share.

    NOTE: neither knows what the other has under way, so that the host waits in between. Copies take no turns with what
    a GPU computes, where NCCL's kernels would (docs/history/many_devices.md).

    Args:
        communicator: the ranks' devices.
        host: what few elements go through that lie elsewhere.
        doing: says what this rank does: see Heartbeat.
    """

    name = "CUDA"
    all_at_once = True
    adds = False

    def __init__(
        self, communicator: Communicator, host: Transport, doing: Callable[[State], AbstractContextManager[None]]
    ) -> None:
        self._communicator, self._host, self._doing = communicator, host, doing

    def allocate(self, device: Device, size: int) -> Any:
        memory = self._communicator.allocate(size)
        try:
            return device.memory.import_memory(memory)
        except DeviceError as error:
            raise error.with_hint(WITHOUT) from error

    def swapping(self, swaps: Sequence[Swap], device: Device, key: str) -> Begun:
        changed = device.queue.record_event()
        places = [(swap.partner, _place(swap.given), _place(swap.taken)) for swap in swaps]

        def copy() -> Callable[[], None]:
            device.queue.synchronize(changed)
            with self._doing("waits"):
                finish = self._communicator.swap(places)

            def wait() -> None:
                with self._doing("waits"):
                    finish()

            return wait

        return copy

    def release(self) -> None:
        self._communicator.release()

    def fill(self, device: Device, buffer: Any, own: range) -> None:
        self._host.fill(device, buffer, own)


def _nothing() -> None:
    """Everything has come."""


def _place(elements: Elements) -> Place:
    buffer, own = elements
    return buffer.memory, FLOAT32.itemsize * own.start, FLOAT32.itemsize * len(own)
