"""CUDA's driver, for memory that OpenCL and the devices of other ranks see: the only module that calls it.

It is called as it is, through ctypes. A device's memory is allocated and exported by CUDA's driver; OpenCL takes it
for a buffer, and each other rank's process maps it, to copy from it by its own device (docs/many_devices.md).
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from ctypes import c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from functools import cache
from typing import Any

from blobnet.errors import DeviceError, OutOfMemoryError

__all__ = ["WITHOUT", "Communicator", "Memory", "Place", "find", "is_wanted", "missing", "out_of_reach"]

#: The hint of errors: how to do without it.
WITHOUT = "BLOBNET_CUDA=0 exchanges through MPI instead."

_UUID_BYTES = 16
_NOT_READY, _OUT_OF_MEMORY = 600, 2  # CUDA_ERROR_NOT_READY, CUDA_ERROR_OUT_OF_MEMORY
_NON_BLOCKING_STREAM = 1
_PINNED, _ON_DEVICE, _DESCRIPTOR, _READ_WRITE = 1, 1, 1, 3  # CU_MEM_*
#: The module, with what type checkers for Windows do not find there; ``missing`` keeps it from being called.
_sockets: Any = socket
#: Seconds for which waiting keeps a core busy, and between two looks after them.
_SPIN, _LOOK = 2e-3, 1e-4
#: What a rank says of what it gives: the bytes of the memory, and the first one; and that it has taken.
_GIVEN, _TAKEN = struct.Struct("qq"), b"."

#: Some bytes of memory: the first one, and how many.
Place = tuple["Memory", int, int]


class _Location(ctypes.Structure):
    _fields_ = (("type", c_int), ("id", c_int))


class _Allocation(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("type", c_int),
        ("handles", c_int),
        ("location", _Location),
        ("win32", c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class _Access(ctypes.Structure):
    _fields_ = (("location", _Location), ("flags", c_int))


_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuDeviceGetCount": (c_void_p,),
    "cuDeviceGet": (c_void_p, c_int),
    "cuDeviceGetUuid_v2": (c_void_p, c_int),
    "cuDeviceCanAccessPeer": (c_void_p, c_int, c_int),
    "cuDevicePrimaryCtxRetain": (c_void_p, c_int),
    "cuCtxSetCurrent": (c_void_p,),
    "cuStreamCreate": (c_void_p, c_uint),
    "cuStreamQuery": (c_void_p,),
    "cuMemcpyDtoDAsync_v2": (c_uint64, c_uint64, c_size_t, c_void_p),
    "cuMemGetAllocationGranularity": (c_void_p, c_void_p, c_int),
    "cuMemCreate": (c_void_p, c_size_t, c_void_p, c_uint64),
    "cuMemAddressReserve": (c_void_p, c_size_t, c_size_t, c_uint64, c_uint64),
    "cuMemMap": (c_uint64, c_size_t, c_size_t, c_uint64, c_uint64),
    "cuMemSetAccess": (c_uint64, c_size_t, c_void_p, c_size_t),
    "cuMemExportToShareableHandle": (c_void_p, c_uint64, c_int, c_uint64),
    "cuMemImportFromShareableHandle": (c_void_p, c_void_p, c_int),
    "cuMemUnmap": (c_uint64, c_size_t),
    "cuMemAddressFree": (c_uint64, c_size_t),
    "cuMemRelease": (c_uint64,),
    "cuGetErrorString": (c_int, c_void_p),
}


class Driver:
    """CUDA's driver.

    Args:
        library: it, loaded.
    """

    def __init__(self, library: Any) -> None:
        self._library = library

    def call(self, name: str, *arguments: Any) -> None:
        """Calls a function that returns a status.

        Raises:
            OutOfMemoryError: it finds no memory.
            DeviceError: it fails otherwise, in the driver's own words.
        """
        self.check(name, getattr(self._library, name)(*arguments))

    def check(self, name: str, code: int) -> None:
        """Raises what :meth:`call` does where a function has returned a status that says so."""
        if code:
            text = c_char_p()
            self._library.cuGetErrorString(code, ctypes.byref(text))
            cause = (text.value or b"unknown").decode(errors="replace")
            kind = OutOfMemoryError if code == _OUT_OF_MEMORY else DeviceError
            raise kind("CUDA", f"{name} must succeed", code=code, cause=cause, hint=WITHOUT)

    def is_ready(self, stream: c_void_p) -> bool:
        """Return True if all that was put into a stream is done."""
        code = self._library.cuStreamQuery(stream)
        if code != _NOT_READY:
            self.check("cuStreamQuery", code)
        return bool(code != _NOT_READY)

    def devices(self) -> dict[bytes, int]:
        """Return CUDA's numbers of the devices, by their UUIDs."""
        self.call("cuInit", 0)
        count, found = c_int(), dict[bytes, int]()
        self.call("cuDeviceGetCount", ctypes.byref(count))
        for number in range(count.value):
            device, own = c_int(), ctypes.create_string_buffer(_UUID_BYTES)
            self.call("cuDeviceGet", ctypes.byref(device), number)
            self.call("cuDeviceGetUuid_v2", own, device)
            found[own.raw] = device.value
        return found

    def can_reach(self, device: int, other: int) -> bool:
        """Return True if a device can copy from the memory of another one by itself."""
        can = c_int()
        self.call("cuDeviceCanAccessPeer", ctypes.byref(can), device, other)
        return bool(can.value)


@cache
def find() -> Driver:
    """Return the driver.

    Raises:
        OSError, AttributeError: it is not there, or is too old.
    """
    library = ctypes.CDLL("libcuda.so.1")
    for name, types in _FUNCTIONS.items():
        getattr(library, name).argtypes = types
    return Driver(library)


def missing() -> str:
    """Return the loader's words on why the driver cannot be used here; empty if it can."""
    if not hasattr(socket, "send_fds") or not sys.platform.startswith("linux"):
        return "processes give each other memory on Linux alone"
    try:
        find()
    except (OSError, AttributeError) as error:
        return str(error)
    return ""


def is_wanted() -> bool:
    """Return True unless $BLOBNET_CUDA forbids it, or $BLOBNET_NCCL, as it was called before."""
    return "0" not in (os.environ.get("BLOBNET_CUDA"), os.environ.get("BLOBNET_NCCL"))


def out_of_reach(own: bytes, others: Sequence[bytes]) -> str:
    """Return why a device, by its UUID, cannot copy from the memory of one of the others; empty if it can."""
    try:
        numbers = find().devices()
    except DeviceError as error:
        return str(error)
    unknown = [uuid.hex() for uuid in (own, *others) if uuid not in numbers]
    if unknown:
        return f"CUDA does not find {unknown[0]}; is CUDA_VISIBLE_DEVICES set?"
    far = [uuid.hex() for uuid in others if not find().can_reach(numbers[own], numbers[uuid])]
    return f"{own.hex()} cannot read the memory of {far[0]}" if far else ""


class Memory:
    """Memory of a device, as long as this object lives, that a device of this process reads and writes.

    Args:
        driver: which has allocated it.
        device: CUDA's number of the device that is to see it.
        size: bytes, a multiple of the driver's granularity.
        handle: the driver's, which this object releases.

    Attributes:
        address: of the first byte, for CUDA.
        size: bytes.

    Raises:
        DeviceError: the driver fails.
    """

    def __init__(self, driver: Driver, device: int, size: int, handle: int) -> None:
        self._driver, self._handle, self.size, address = driver, handle, size, c_uint64()
        self._undo: list[tuple[str, tuple[int, ...]]] = [("cuMemRelease", (handle,))]
        driver.call("cuMemAddressReserve", ctypes.byref(address), size, 0, 0, 0)
        self._undo.append(("cuMemAddressFree", (address.value, size)))
        driver.call("cuMemMap", address, size, 0, handle, 0)
        self._undo.append(("cuMemUnmap", (address.value, size)))
        access = _Access(_Location(_ON_DEVICE, device), _READ_WRITE)
        driver.call("cuMemSetAccess", address, size, ctypes.byref(access), 1)
        self.address = address.value

    def export(self) -> int:
        """Return a file descriptor of it; the caller closes it."""
        descriptor = c_int()
        self._driver.call("cuMemExportToShareableHandle", ctypes.byref(descriptor), self._handle, _DESCRIPTOR, 0)
        return descriptor.value

    def __del__(self) -> None:
        for name, arguments in reversed(getattr(self, "_undo", [])):
            with suppress(Exception):  # An interpreter that ends.
                self._driver.call(name, *arguments)


class _Link:
    """The way to another rank, on the same host.

    Args:
        way: a socket that keeps messages apart.
    """

    def __init__(self, way: socket.socket) -> None:
        self._way = way
        #: What the other rank has mapped of this one's memory, and this one of the other's: what was given last.
        self._given: Memory | None = None
        self._mapped: Memory | None = None

    def give(self, memory: Memory, first: int) -> None:
        """Say where what is given lies: it does not change until the other rank has taken it."""
        descriptors = [] if memory is self._given else [memory.export()]
        self._send(_GIVEN.pack(memory.size, first), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        self._given = memory

    def find(self, take: Callable[[int, int], Memory]) -> int:
        """Wait for the other rank to say where what it gives lies; return the address here.

        ``take`` maps memory of so many bytes by its file descriptor.
        """
        words, descriptors = self._receive(_GIVEN.size)
        size, first = _GIVEN.unpack(words)
        if descriptors:
            self._mapped = None  # Unmapped before there is more.
            self._mapped = take(descriptors[0], size)
        assert self._mapped is not None, "a rank gives its memory before it says where in it"
        return self._mapped.address + int(first)

    def finish(self) -> None:
        """Say that what the other rank gave is taken."""
        self._send(_TAKEN)

    def wait(self) -> None:
        """Wait until the other rank has taken what it was given."""
        words, _ = self._receive(_GIVEN.size)
        assert words == _TAKEN, "ranks say the same things in the same order"

    def release(self) -> None:
        """Let go of what was given, and of what the other rank gave; that one must do so too."""
        self._given = self._mapped = None

    def _send(self, words: bytes, descriptors: Sequence[int] = ()) -> None:
        try:
            _sockets.send_fds(self._way, [words], descriptors)
        except OSError:
            _wait_for_the_end()

    def _receive(self, size: int) -> tuple[bytes, list[int]]:
        try:
            words, descriptors, _, _ = _sockets.recv_fds(self._way, size, 1)
        except OSError:
            words = b""
        if not words:
            _wait_for_the_end()
        return words, descriptors

    def __del__(self) -> None:
        self._way.close()


def _wait_for_the_end() -> None:
    """Wait for ever: another rank is lost, and the heartbeat of this one ends it, once it has saved what there is."""
    while True:
        time.sleep(1)


class Communicator:
    """The devices of several processes of one host, one each; all must make theirs.

    Args:
        rank: the number of this process.
        size: how many there are.
        name: a name that nobody else has, the same for all.
        uuid: of this process's device.
        meet: waits for the others.

    Raises:
        DeviceError: CUDA fails, or the processes do not find each other.
    """

    def __init__(self, rank: int, size: int, name: str, uuid: bytes, meet: Callable[[], object]) -> None:
        self._driver = find()
        call, self._device = self._driver.call, self._driver.devices()[uuid]
        self._context, self._stream = c_void_p(), c_void_p()
        call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), self._device)
        self._enter()
        call("cuStreamCreate", ctypes.byref(self._stream), _NON_BLOCKING_STREAM)
        try:
            self._links = {other: _Link(way) for other, way in _ways(rank, size, name, meet).items()}
        except OSError as error:
            rule = "the ranks of a host must reach each other by its sockets"
            raise DeviceError("CUDA", rule, cause=error, hint=WITHOUT) from error

    def _enter(self) -> None:
        """CUDA has a context for each thread."""
        self._driver.call("cuCtxSetCurrent", self._context)

    def allocate(self, size: int) -> Memory:
        """Return memory of this process's device, of at least so many bytes.

        Raises:
            OutOfMemoryError: it has no room.
        """
        self._enter()
        wanted = _Allocation(_PINNED, _DESCRIPTOR, _Location(_ON_DEVICE, self._device))
        unit, handle = c_size_t(), c_uint64()
        self._driver.call("cuMemGetAllocationGranularity", ctypes.byref(unit), ctypes.byref(wanted), 0)
        size = max(1, -(-size // unit.value)) * unit.value
        self._driver.call("cuMemCreate", ctypes.byref(handle), size, ctypes.byref(wanted), 0)
        return Memory(self._driver, self._device, size, handle.value)

    def _take(self, descriptor: int, size: int) -> Memory:
        """Return the memory of another process's device, by its file descriptor."""
        handle = c_uint64()
        try:
            self._driver.call("cuMemImportFromShareableHandle", ctypes.byref(handle), descriptor, _DESCRIPTOR)
        finally:
            os.close(descriptor)
        return Memory(self._driver, self._device, size, handle.value)

    def release(self) -> None:
        """Let go of all memory that ranks gave each other, which they map anew in the next swap; all must call it."""
        self._enter()
        for link in self._links.values():
            link.release()

    def swap(self, swaps: Sequence[tuple[int, Place, Place]]) -> Callable[[], None]:
        """Begin to copy bytes from other ranks, which call it too; return what waits until all have what they take.

        Args:
            swaps: with each of them its rank, what is given, and where what comes goes, with the bytes of each.
        """
        self._enter()
        links = [self._links[partner] for partner, _, _ in swaps]
        for link, (_, (memory, first, _), _) in zip(links, swaps, strict=True):
            link.give(memory, first)
        for link, (_, _, (memory, first, size)) in zip(links, swaps, strict=True):
            source = link.find(self._take)
            if size:
                self._driver.call("cuMemcpyDtoDAsync_v2", memory.address + first, source, size, self._stream)

        def finish() -> None:
            started = time.monotonic()
            while not self._driver.is_ready(self._stream):
                if time.monotonic() - started > _SPIN:
                    time.sleep(_LOOK)
            for link in links:
                link.finish()
            for link in links:
                link.wait()

        return finish


def _ways(rank: int, size: int, name: str, meet: Callable[[], object]) -> dict[int, socket.socket]:
    """Return sockets to all other ranks, by rank; all must call it."""

    def address(of: int) -> str:
        return f"\0{name}-{of}"  # Linux's own names, which are no files.

    found, word = dict[int, socket.socket](), struct.Struct("i")
    with socket.socket(_sockets.AF_UNIX, socket.SOCK_SEQPACKET) as door:
        door.bind(address(rank))
        door.listen(size)
        meet()
        for other in range(rank):
            found[other] = socket.socket(_sockets.AF_UNIX, socket.SOCK_SEQPACKET)
            found[other].connect(address(other))
            found[other].send(word.pack(rank))
        for _ in range(rank + 1, size):
            way, _ = door.accept()
            found[word.unpack(way.recv(word.size))[0]] = way
    return found
