"""CUDA's driver on a host: what ranks say to each other to copy, on memory that processes share."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pyopencl as cl

from blobnet.device.discovery import DeviceInfo
from blobnet.device.memory import Memory
from blobnet.parallel import cuda


class Memories:
    """CUDA's driver, as far as memory goes, of which each piece is a file that all may map."""

    def __init__(self) -> None:
        self.files: dict[int, int] = {}
        self.maps: dict[int, mmap.mmap] = {}
        self.lock = threading.Lock()
        self.looks = 0
        #: Of a thread: the address that it has asked for, which is known once there is a map, and its copies.
        self.own = threading.local()

    def cuGetErrorString(self, code: int, text: Any) -> int:  # noqa: N802
        text._obj.value = b"out of memory"
        return 0

    def cuMemGetAllocationGranularity(self, unit: Any, *_: Any) -> int:  # noqa: N802
        unit._obj.value = mmap.PAGESIZE
        return 0

    def cuMemCreate(self, handle: Any, size: int, *_: Any) -> int:  # noqa: N802
        file = os.memfd_create("memory")
        os.ftruncate(file, size)
        return self.cuMemImportFromShareableHandle(handle, file, 1)

    def cuMemImportFromShareableHandle(self, handle: Any, file: int, kind: int) -> int:  # noqa: N802
        with self.lock:
            handle._obj.value = 7 + len(self.files)
            self.files[handle._obj.value] = os.dup(file)
        return 0

    def cuMemExportToShareableHandle(self, file: Any, handle: int, *_: Any) -> int:  # noqa: N802
        file._obj.value = os.dup(self.files[handle])
        return 0

    def cuMemAddressReserve(self, address: Any, size: int, *_: Any) -> int:  # noqa: N802
        self.own.address = address._obj
        return 0

    def cuMemMap(self, address: Any, size: int, offset: int, handle: Any, flags: int) -> int:  # noqa: N802
        mapped = mmap.mmap(self.files[getattr(handle, "value", handle)], size)
        self.own.address.value = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        self.maps[self.own.address.value] = mapped
        return 0

    def cuMemcpyDtoDAsync_v2(self, target: int, source: int, size: int, stream: Any) -> int:  # noqa: N802
        self.own.copies = [*getattr(self.own, "copies", []), (target, source, size)]
        return 0

    def cuStreamQuery(self, stream: Any) -> int:  # noqa: N802
        self.looks += 1
        if self.looks % 3:
            return 600
        for copy in getattr(self.own, "copies", []):
            ctypes.memmove(*copy)
        self.own.copies = []
        return 0

    def __getattr__(self, name: str) -> Callable[..., int]:
        if not name.startswith("cu"):
            raise AttributeError(name)
        return lambda *_: 0


class HostDevices(cuda.Driver):
    """A driver that takes each rank of this host for a device."""

    def devices(self) -> dict[bytes, int]:
        return {_uuid(rank): rank for rank in range(int(os.environ["PMI_SIZE"]))}

    def can_reach(self, device: int, other: int) -> bool:
        return True


def _uuid(rank: int) -> bytes:
    return bytes([rank] * 16)


def _imported(device: Memory, memory: cuda.Memory) -> cl.Buffer:
    values = np.ctypeslib.as_array((ctypes.c_uint8 * memory.size).from_address(memory.address))
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
    buffer = cl.Buffer(device.queue.context, flags, hostbuf=values)
    buffer.memory = memory  # type: ignore[attr-defined]
    return buffer


def pretend() -> None:
    """Have the ranks of this process's world copy as GPUs do, for good."""
    driver = HostDevices(Memories())
    cuda.find = lambda: driver
    cuda.missing = str
    DeviceInfo.uuid = property(lambda _: _uuid(int(os.environ["PMI_RANK"])))
    Memory.import_memory = _imported
