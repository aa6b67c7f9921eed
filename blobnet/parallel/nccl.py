"""NVIDIA's NCCL, and CUDA's driver for memory that both it and OpenCL see: the only module that calls them.

Both are called as they are, through ctypes. A device's memory is allocated and exported by CUDA's driver, and OpenCL
takes it for a buffer (docs/many_devices.md).
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from ctypes import c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from blobnet.errors import DeviceError, OutOfMemoryError, extra

__all__ = ["INSTALL", "WITHOUT", "Communicator", "Memory", "find", "identifier", "is_wanted", "missing"]

#: The hints of errors: how to install NCCL, and how to do without it.
INSTALL = extra("nccl")
WITHOUT = "BLOBNET_NCCL=0 exchanges through MPI instead."

_ID_BYTES, _UUID_BYTES = 128, 16
_FLOAT32, _SUM = 7, 0  # ncclFloat32, ncclSum
_NOT_READY, _OUT_OF_MEMORY = 600, 2  # CUDA_ERROR_NOT_READY, CUDA_ERROR_OUT_OF_MEMORY
_NON_BLOCKING_STREAM = 1
_PINNED, _ON_DEVICE, _DESCRIPTOR, _READ_WRITE = 1, 1, 1, 3  # CU_MEM_*
#: Seconds for which waiting keeps a core busy, and between two looks after them.
_SPIN, _LOOK = 2e-3, 1e-4


class _Id(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_char * _ID_BYTES),)


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


_CUDA_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuDeviceGetCount": (c_void_p,),
    "cuDeviceGet": (c_void_p, c_int),
    "cuDeviceGetUuid_v2": (c_void_p, c_int),
    "cuDevicePrimaryCtxRetain": (c_void_p, c_int),
    "cuCtxSetCurrent": (c_void_p,),
    "cuStreamCreate": (c_void_p, c_uint),
    "cuStreamQuery": (c_void_p,),
    "cuMemGetAllocationGranularity": (c_void_p, c_void_p, c_int),
    "cuMemCreate": (c_void_p, c_size_t, c_void_p, c_uint64),
    "cuMemAddressReserve": (c_void_p, c_size_t, c_size_t, c_uint64, c_uint64),
    "cuMemMap": (c_uint64, c_size_t, c_size_t, c_uint64, c_uint64),
    "cuMemSetAccess": (c_uint64, c_size_t, c_void_p, c_size_t),
    "cuMemExportToShareableHandle": (c_void_p, c_uint64, c_int, c_uint64),
    "cuMemUnmap": (c_uint64, c_size_t),
    "cuMemAddressFree": (c_uint64, c_size_t),
    "cuMemRelease": (c_uint64,),
    "cuGetErrorString": (c_int, c_void_p),
}
_NCCL_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "ncclGetVersion": (c_void_p,),
    "ncclGetUniqueId": (c_void_p,),
    "ncclCommInitRank": (c_void_p, c_int, _Id, c_int),
    "ncclCommGetAsyncError": (c_void_p, c_void_p),
    "ncclGroupStart": (),
    "ncclGroupEnd": (),
    "ncclSend": (c_uint64, c_size_t, c_int, c_int, c_void_p, c_void_p),
    "ncclRecv": (c_uint64, c_size_t, c_int, c_int, c_void_p, c_void_p),
    "ncclAllReduce": (c_uint64, c_uint64, c_size_t, c_int, c_int, c_void_p, c_void_p),
    "ncclGetErrorString": (c_int,),
    "ncclGetLastError": (c_void_p,),
}


@dataclass(frozen=True)
class Libraries:
    """NCCL and CUDA's driver.

    Attributes:
        nccl: the first.
        cuda: the other.
        version: NCCL's.
    """

    nccl: Any
    cuda: Any
    version: str

    def call(self, name: str, *arguments: Any) -> None:
        """Calls a function that returns a status.

        Raises:
            OutOfMemoryError: CUDA's driver finds no memory.
            DeviceError: it fails otherwise, in the library's own words.
        """
        self.check(name, getattr(self.cuda if name.startswith("cu") else self.nccl, name)(*arguments))

    def check(self, name: str, code: int) -> None:
        """Raises what :meth:`call` does where a function has returned a status that says so."""
        if not code:
            return
        is_cuda = name.startswith("cu")
        kind = OutOfMemoryError if is_cuda and code == _OUT_OF_MEMORY else DeviceError
        raise kind("NCCL", f"{name} must succeed", code=code, cause=self._words(is_cuda, code), hint=WITHOUT)

    def _words(self, is_cuda: bool, code: int) -> str:
        if is_cuda:
            text = c_char_p()
            self.cuda.cuGetErrorString(code, ctypes.byref(text))
            return (text.value or b"unknown").decode(errors="replace")
        words = [self.nccl.ncclGetErrorString(code), self.nccl.ncclGetLastError(None)]
        return ": ".join(word.decode(errors="replace").strip() for word in words if word)


def _places() -> Iterator[str]:
    """Yield the places where NCCL may lie: PyPI's package, then where the system looks for libraries."""
    with suppress(ImportError, ValueError):
        spec = importlib.util.find_spec("nvidia.nccl")
        for folder in (spec and spec.submodule_search_locations) or ():
            path = Path(folder, "lib", "libnccl.so.2")
            if path.exists():
                yield str(path)
    yield "libnccl.so.2"


def _typed(library: Any, functions: dict[str, tuple[Any, ...]]) -> Any:
    for name, types in functions.items():
        getattr(library, name).argtypes = types
    return library


@cache
def find() -> Libraries:
    """Both libraries.

    Raises:
        OSError, AttributeError: one of them is not there, or is too old.
    """
    cuda = _typed(ctypes.CDLL("libcuda.so.1"), _CUDA_FUNCTIONS)
    nccl = _typed(ctypes.CDLL(next(_places())), _NCCL_FUNCTIONS)
    for name in ("ncclGetErrorString", "ncclGetLastError"):
        getattr(nccl, name).restype = c_char_p
    number = c_int()
    nccl.ncclGetVersion(ctypes.byref(number))
    major, rest = divmod(number.value, 10000)
    return Libraries(nccl, cuda, f"{major}.{rest // 100}.{rest % 100}")


def missing() -> str:
    """Return the loader's words on why NCCL cannot be used here; empty if it can."""
    try:
        find()
    except (OSError, AttributeError) as error:
        return str(error)
    return ""


def is_wanted() -> bool:
    """Return True unless $BLOBNET_NCCL forbids it."""
    return os.environ.get("BLOBNET_NCCL", "1") != "0"


def identifier() -> bytes:
    """Return the identifier by which ranks find each other: one of them makes it, all give it to their Communicator."""
    found = _Id()
    find().call("ncclGetUniqueId", ctypes.byref(found))
    return bytes(found)


class Memory:
    """Memory of a device that CUDA's driver has allocated, as long as this object lives.

    Args:
        libraries: which allocate it.
        device: CUDA's number of the device.
        size: bytes at least.

    Attributes:
        address: of the first byte, for CUDA and NCCL.
        size: bytes.

    Raises:
        OutOfMemoryError: the device has no room for it.
    """

    def __init__(self, libraries: Libraries, device: int, size: int) -> None:
        self._libraries, call = libraries, libraries.call
        place = _Location(_ON_DEVICE, device)
        wanted, unit = _Allocation(_PINNED, _DESCRIPTOR, place), c_size_t()
        call("cuMemGetAllocationGranularity", ctypes.byref(unit), ctypes.byref(wanted), 0)
        self.size = max(1, -(-size // unit.value)) * unit.value
        handle, address = c_uint64(), c_uint64()
        self._undo: list[tuple[str, tuple[int, ...]]] = []
        call("cuMemCreate", ctypes.byref(handle), self.size, ctypes.byref(wanted), 0)
        self._handle = handle.value
        self._undo.append(("cuMemRelease", (handle.value,)))
        call("cuMemAddressReserve", ctypes.byref(address), self.size, 0, 0, 0)
        self._undo.append(("cuMemAddressFree", (address.value, self.size)))
        call("cuMemMap", address, self.size, 0, handle, 0)
        self._undo.append(("cuMemUnmap", (address.value, self.size)))
        access = _Access(place, _READ_WRITE)
        call("cuMemSetAccess", address, self.size, ctypes.byref(access), 1)
        self.address = address.value

    def export(self) -> int:
        """A file descriptor of it, which who takes it closes."""
        descriptor = c_int()
        self._libraries.call("cuMemExportToShareableHandle", ctypes.byref(descriptor), self._handle, _DESCRIPTOR, 0)
        return descriptor.value

    def __del__(self) -> None:
        for name, arguments in reversed(getattr(self, "_undo", [])):
            with suppress(Exception):  # An interpreter that ends.
                self._libraries.call(name, *arguments)


class Communicator:
    """The devices of several processes, one each; all must make theirs, which waits for the others.

    Args:
        rank: the number of this process.
        size: how many there are.
        name: what :func:`identifier` gave one of them.
        uuid: of this process's device.

    Raises:
        DeviceError: CUDA does not find the device, or NCCL fails.
    """

    def __init__(self, rank: int, size: int, name: bytes, uuid: bytes) -> None:
        self.libraries = find()
        call = self.libraries.call
        call("cuInit", 0)
        self._device = self._numbered(uuid)
        context, stream, communicator = c_void_p(), c_void_p(), c_void_p()
        call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device)
        self._context = context
        self._enter()
        call("cuStreamCreate", ctypes.byref(stream), _NON_BLOCKING_STREAM)
        call("ncclCommInitRank", ctypes.byref(communicator), size, _Id.from_buffer_copy(name), rank)
        self._stream, self._communicator = stream, communicator

    def _numbered(self, uuid: bytes) -> int:
        """CUDA's device of a UUID."""
        call, count = self.libraries.call, c_int()
        call("cuDeviceGetCount", ctypes.byref(count))
        for number in range(count.value):
            device, own = c_int(), ctypes.create_string_buffer(_UUID_BYTES)
            call("cuDeviceGet", ctypes.byref(device), number)
            call("cuDeviceGetUuid_v2", own, device)
            if own.raw == uuid:
                return device.value
        rule = "CUDA must find the device that OpenCL has found"
        raise DeviceError("NCCL", rule, uuid=uuid.hex(), hint=f"is CUDA_VISIBLE_DEVICES set? {WITHOUT}")

    def _enter(self) -> None:
        """CUDA has a context for each thread."""
        self.libraries.call("cuCtxSetCurrent", self._context)

    def allocate(self, size: int) -> Memory:
        """Memory of this process's device.

        Raises:
            OutOfMemoryError: it has no room.
        """
        self._enter()
        return Memory(self.libraries, self._device, size)

    def swap(self, swaps: Sequence[tuple[int, tuple[int, int], tuple[int, int]]]) -> None:
        """Sends elements of float32 to other ranks, which call it too, and takes others; done when it returns.

        Args:
            swaps: with each of them its rank, the address of what is sent and how many, and likewise of what comes.
        """
        with self._waited_for():
            for partner, given, taken in swaps:
                for name, (address, count) in (("ncclSend", given), ("ncclRecv", taken)):
                    if count:
                        arguments = address, count, _FLOAT32, partner, self._communicator, self._stream
                        self.libraries.call(name, *arguments)

    def add(self, address: int, count: int) -> None:
        """Makes elements of float32 their sums over all ranks, which all call it; done when it returns."""
        with self._waited_for():
            arguments = address, address, count, _FLOAT32, _SUM, self._communicator, self._stream
            self.libraries.call("ncclAllReduce", *arguments)

    @contextmanager
    def _waited_for(self) -> Iterator[None]:
        """Begin all calls within together; they are done after it.

        NOTE: a rank that is lost may leave NCCL waiting for ever: then another thread ends this process (heartbeat).
        """
        self._enter()
        self.libraries.call("ncclGroupStart")
        yield
        self.libraries.call("ncclGroupEnd")
        started = time.monotonic()
        while (code := self.libraries.cuda.cuStreamQuery(self._stream)) == _NOT_READY:
            if time.monotonic() - started > _SPIN:
                self._check()
                time.sleep(_LOOK)
        self.libraries.check("cuStreamQuery", code)
        self._check()

    def _check(self) -> None:
        """Raises DeviceError where NCCL has failed meanwhile."""
        code = c_int()
        self.libraries.call("ncclCommGetAsyncError", self._communicator, ctypes.byref(code))
        self.libraries.check("ncclCommGetAsyncError", code.value)
