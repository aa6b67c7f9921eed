"""A device's memory: buffers, copies to and from them, and the host memory that these go through."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import itertools
import mmap
import os
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from blobnet.device import opencl
from blobnet.device.discovery import is_forked
from blobnet.device.opencl import cl
from blobnet.device.queue import Queue
from blobnet.errors import DeviceError, OutOfMemoryError

#: What buffers are filled with, word by word.
_ZERO = np.zeros(1, np.uint32)
#: What lies around guarded buffers.
_CANARY = 0x7FC0CA7A
#: Batches that may be on their way to a processor at once, in so many bytes. NOTE: on Intel's runtime who waits for the
#: oldest one waits for all of them, and then it has no work as long as the host prepares the next.
BATCHES_AHEAD, BYTES_AHEAD = 16, 1 << 20
#: Bytes of exported memory on which NVIDIA's driver 580.159 crashes, as on more; nothing between 128 MB and these was
#: tried.
_MIN_CRASH = 1 << 31
#: Bytes of a page, which no two buffers share, and of a large one.
_PAGE, _LARGE_PAGE = 1 << 12, 1 << 21


class ExportedMemory(Protocol):
    """Memory of a device that a file descriptor stands for.

    Attributes:
        size: bytes.
    """

    size: int

    def export(self) -> int:
        """Return a file descriptor of it. The caller closes it."""


class Memory:
    """Allocates a device's buffers and copies to and from them, behind what a queue has launched.

    Args:
        queue: the device's.

    Attributes:
        queue: the device's.
        guarded: what :meth:`allocate_together` has allocated, of what :meth:`guarding` returned; else empty.
    """

    guarded: tuple[Guarded, ...] = ()
    #: What allocates between canaries; None unless :meth:`guarding` made this.
    _guard: Memory | None = None

    def __init__(self, queue: Queue) -> None:
        self.queue, self._info = queue, queue.info

    def guarding(self) -> Memory:
        """Return the same memory, whose buffers lie between canaries from now on: ``guarded`` has them."""
        other = copy.copy(self)
        other._guard = self
        return other

    def allocate(self, size: int) -> cl.Buffer:
        """Return a buffer of at least ``size`` bytes, all zero.

        Raises:
            OutOfMemoryError: the device has no room for it.
        """
        return self.allocate_together([size])[0]

    def allocate_together(self, sizes: Sequence[int]) -> list[cl.Buffer]:
        """Return buffers of at least so many bytes, all zero; those of a processor lie side by side, in large pages.

        Raises:
            OutOfMemoryError: the device has no room for one of them.
        """
        if self._guard is not None:
            made = tuple(map(self._guard.allocate_guarded, sizes))
            self.guarded += made
            return [item.buffer for item in made]
        sizes = [-(-size // _ZERO.nbytes) * _ZERO.nbytes for size in sizes]
        found = []
        for size, own in zip(sizes, _large_pages(self.queue, sizes), strict=True):
            try:
                flags = cl.mem_flags.READ_WRITE | (0 if own is None else cl.mem_flags.USE_HOST_PTR)
                buffer = cl.Buffer(self.queue.context, flags, size if own is None else 0, own)
                if own is None:
                    cl.enqueue_fill_buffer(self.queue.handle, buffer, _ZERO, 0, size)
                found.append(buffer)
            except cl.Error as error:
                rule, hint = "the device must have room for a buffer", "use a smaller batch."
                raise OutOfMemoryError(self._info.name, rule, bytes=size, cause=error, hint=hint) from error
        return found

    def allocate_guarded(self, size: int) -> Guarded:
        """Return a buffer of at least ``size`` bytes, all zero, in the middle of a larger one that says who leaves it.

        Raises:
            OutOfMemoryError: the device has no room for it.
        """
        size = -(-size // _ZERO.nbytes) * _ZERO.nbytes
        room = max(_PAGE, self._info.handle.mem_base_addr_align // 8)
        whole = self.allocate(size + 2 * room)
        with self.queue.reporting("taking a part of a buffer"):
            return Guarded(self, whole, whole.get_sub_region(room, size), room)

    def import_memory(self, memory: ExportedMemory) -> cl.Buffer:
        """Return a buffer, all zero, of memory of this device that others have allocated, and which lives as long.

        Raises:
            DeviceError: the driver refuses it.
        """
        if memory.size >= _MIN_CRASH:
            rule = "the driver must take memory that CUDA has exported, and crashes from 2 GiB on"
            raise DeviceError(self._info.name, rule, bytes=memory.size)
        code, descriptor = ctypes.c_int(), memory.export()
        properties = (ctypes.c_uint64 * 3)(opencl.OPAQUE_FD, descriptor, 0)
        handle = opencl.CREATE_BUFFER and opencl.CREATE_BUFFER(
            self.queue.context.int_ptr, properties, cl.mem_flags.READ_WRITE, memory.size, None, ctypes.byref(code)
        )
        if not handle:
            os.close(descriptor)
            rule = "the driver must take memory that CUDA has exported"
            raise DeviceError(self._info.name, rule, code=code.value)
        buffer = cast(cl.Buffer, cl.Buffer.from_int_ptr(handle, retain=False))
        buffer.memory = memory  # type: ignore[attr-defined]
        self.fill_zero(buffer, memory.size)
        return buffer

    def host_memory(self, size: int) -> npt.NDArray[np.uint8]:
        """Return host memory of ``size`` bytes; page-locked for a GPU, which then can copy it by itself."""
        if not self._info.is_host:
            flags = cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR
            with contextlib.suppress(cl.Error):  # It is not needed, only faster.
                memory = cl.Buffer(self.queue.context, flags, size)
                how: Any = (cl.map_flags.WRITE, 0, (size,), np.dtype("u1"))
                mapped = cl.enqueue_map_buffer(self.queue.handle, memory, *how)
                return np.asarray(mapped[0])
        return np.empty(size, np.uint8)

    def pieces(self, size: int) -> int:
        """Return how many pieces of host memory, of ``size`` bytes each, take turns for what is on its way."""
        return max(2, min(BATCHES_AHEAD, BYTES_AHEAD // max(1, size))) if self._info.is_host else 2

    def write(self, buffer: cl.Buffer, values: npt.NDArray[Any], offset: int = 0) -> None:
        """Copy an array into a buffer, from byte ``offset`` on; done when it returns."""
        if values.size:
            with self.queue.reporting("writing to a buffer"):
                source = np.ascontiguousarray(values)
                cl.enqueue_copy(self.queue.handle, buffer, source, dst_offset=offset, is_blocking=True)

    def write_async(
        self, buffer: cl.Buffer, source: npt.NDArray[Any], offset: int = 0, after: cl.Event | None = None
    ) -> cl.Event:
        """Begin to copy an array into a buffer, from byte ``offset`` on; return the event of its end.

        Args:
            buffer: where to.
            source: page-locked memory if it should be fast; it must not change before the copy is done.
            offset: bytes.
            after: if given, the copy waits for this alone, beside all that was launched (see ``Queue.record_event``),
                and launches must wait for it (see ``Queue.wait_event``); else it has its place behind what was
                launched.
        """
        queue = self.queue.handle if after is None else self.queue.transfers
        with self.queue.reporting("writing to a buffer"):
            wait = None if after is None else [after]
            return cl.enqueue_copy(queue, buffer, source, dst_offset=offset, is_blocking=False, wait_for=wait)

    def read(self, buffer: cl.Buffer, elements: int, dtype: npt.DTypeLike = np.float32, offset: int = 0) -> Any:
        """Return ``elements`` values from byte ``offset`` of a buffer."""
        values = np.empty(elements, dtype)
        if elements:
            with self.queue.reporting("reading a buffer"):
                cl.enqueue_copy(self.queue.handle, values, buffer, src_offset=offset, is_blocking=True)
        return values

    def read_async(self, buffer: cl.Buffer, values: npt.NDArray[Any], offset: int = 0) -> PendingRead:
        """Begin to read a buffer from byte ``offset`` on into ``values``, behind what was launched.

        Page-locked ``values`` need no waiting.
        """
        with self.queue.reporting("reading a buffer"):
            event = cl.enqueue_copy(self.queue.handle, values, buffer, src_offset=offset, is_blocking=False)
            return PendingRead(self.queue, values, event)

    def copy(self, source: cl.Buffer, target: cl.Buffer, offset: int = 0, to: int = 0, size: int | None = None) -> None:
        """Fill a buffer from byte ``to`` on with what is in another one from ``offset`` on, behind what was launched.

        ``size``: how many bytes; None: as far as both go.
        """
        with self.queue.reporting("copying a buffer"):
            size = min(target.size - to, source.size - offset) if size is None else size
            cl.enqueue_copy(self.queue.handle, target, source, byte_count=size, src_offset=offset, dst_offset=to)

    def fill_zero(self, buffer: cl.Buffer, size: int) -> None:
        """Set the first ``size`` bytes of a buffer to zero."""
        with self.queue.reporting("filling a buffer"):
            whole = size // _ZERO.nbytes * _ZERO.nbytes
            cl.enqueue_fill_buffer(self.queue.handle, buffer, _ZERO, 0, whole)
            if size > whole:
                cl.enqueue_fill_buffer(self.queue.handle, buffer, _ZERO.view(np.uint8)[:1], whole, size - whole)

    @contextlib.contextmanager
    def filling(self, buffer: cl.Buffer, elements: int, dtype: npt.DTypeLike) -> Iterator[npt.NDArray[Any]]:
        """Yield an array to set, which the start of a buffer gets; a processor's buffer is that array itself.

        What is not set is 0, or of a processor's buffer what it was.
        """
        if not self._info.is_host:
            values = np.zeros(elements, dtype)
            yield values
            self.write(buffer, values)
            return
        with self.mapped((buffer, range(elements)), dtype=dtype) as (own,):
            yield own

    @contextlib.contextmanager
    def mapped(
        self, *places: tuple[cl.Buffer, range], dtype: npt.DTypeLike = np.float32
    ) -> Iterator[list[npt.NDArray[Any]]]:
        """Yield some elements of a processor's buffers, to read and to set, once all that was launched is done.

        Nothing is launched within the block.
        """
        kind = np.dtype(dtype)
        flags: Any = cl.map_flags.READ | cl.map_flags.WRITE
        found = [np.empty(0, kind) for _ in places]
        # NOTE: all are mapped before the host waits: Intel's runtime takes 0.1 ms to begin anew with what comes later.
        with self.queue.reporting("mapping a buffer"):
            for number, (buffer, own) in enumerate(places):
                if own:
                    at = kind.itemsize * own.start, (len(own),), kind
                    found[number], _ = cl.enqueue_map_buffer(self.queue.handle, buffer, flags, *at, is_blocking=False)
        self.queue.finish()
        try:
            yield found
        finally:
            for values in found:
                memory: Any = values.base
                if memory is not None:
                    memory.release(self.queue.handle)


class _Region(mmap.mmap):
    """Memory that is not given back before a queue has done what was launched: drivers do not own it."""

    queue: Any = None

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # A queue that failed, or an interpreter that ends.
            if not is_forked():
                self.queue.finish()


def _large_pages(queue: Queue, sizes: Sequence[int]) -> list[npt.NDArray[np.uint8] | None]:
    """Memory for buffers of a processor, all zero as the system gives it; None where its driver finds some.

    NOTE: a network reads thousands of pages of 4 KB in turn, more than processors remember. Drivers do not ask for
    larger ones.
    """
    starts = list(itertools.accumulate((-(-size // _PAGE) * _PAGE for size in sizes), initial=0))
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if sys.platform == "win32" or not queue.info.is_host or advice is None or starts[-1] < _LARGE_PAGE:
        return [None] * len(sizes)
    try:
        region = _Region(-1, starts[-1] + _LARGE_PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        region.madvise(advice)
        region.queue = queue.handle
    except OSError:  # The driver may have words for it; or the system has no such pages.
        return [None] * len(sizes)
    values = np.frombuffer(region, np.uint8)
    values = values[-values.ctypes.data % _LARGE_PAGE :]
    return [values[start : start + size] for start, size in zip(starts, sizes, strict=False)]


class Guarded:
    """A buffer between canaries: quiet NaNs that no computation makes.

    Attributes:
        buffer: to be used.
    """

    def __init__(self, memory: Memory, whole: cl.Buffer, buffer: cl.Buffer, room: int) -> None:
        self.buffer = buffer
        self._memory, self._whole, self._places = memory, whole, (0, room + buffer.size)
        self._canaries = np.full(room // _ZERO.nbytes, _CANARY, np.uint32)
        for place in self._places:
            memory.write(whole, self._canaries, place)

    def is_touched(self) -> bool:
        """Return whether somebody wrote before the buffer, or behind it."""
        return any(
            not np.array_equal(self._memory.read(self._whole, self._canaries.size, np.uint32, place), self._canaries)
            for place in self._places
        )


class PendingRead:
    """Values on their way from the device."""

    def __init__(self, queue: Queue, values: npt.NDArray[Any], event: cl.Event) -> None:
        self._queue, self._values, self._event = queue, values, event

    def is_done(self) -> bool:
        """Return whether they have arrived (or never will)."""
        return self._queue.is_done(self._event)

    def values(self) -> npt.NDArray[Any]:
        """Wait for them, and return them.

        Raises:
            DeviceError: something that was launched before failed.
        """
        self._queue.synchronize(self._event)
        return self._values


class StagingRing:
    """Copies small arrays to the start of a buffer, one after another, while the device works.

    Each array is first copied to a piece of host memory, page-locked on a GPU; the pieces take turns. The device copies
    it from there behind all that was launched before, while the host goes on.

    Args:
        memory: the buffer's.
        buffer: where arrays go.
    """

    def __init__(self, memory: Memory, buffer: cl.Buffer) -> None:
        self._memory, self._buffer = memory, buffer
        self._pieces: deque[tuple[npt.NDArray[np.uint8], cl.Event | None]] = deque(
            (memory.host_memory(buffer.size), None) for _ in range(memory.pieces(buffer.size))
        )

    def write(self, values: npt.NDArray[Any]) -> None:
        """Put an array at the start of the buffer, for launches that follow; ``values`` may change at once."""
        piece, copied = self._pieces.popleft()
        if copied is not None:
            self._memory.queue.synchronize(copied)
        source = piece[: values.nbytes]
        np.copyto(source.view(values.dtype).reshape(values.shape), values)
        self._pieces.append((piece, self._memory.write_async(self._buffer, source)))
