"""An OpenCL device: building and caching programs, buffers, launches."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import hashlib
import itertools
import json
import mmap
import os
import sys
import tempfile
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from blobnet.device import child_builds, opencl
from blobnet.device.builtins import WITHOUT_HEADER, declared
from blobnet.device.bundle import bundled
from blobnet.device.discovery import (
    AMPERE,
    DeviceInfo,
    DriverTraits,
    asked,
    check_precision,
    check_process,
    choose,
    devices,
    is_forked,
)
from blobnet.device.opencl import cl
from blobnet.device.tuning import Tunings
from blobnet.errors import BuildError, DeviceError, FileError, Lines, OutOfMemoryError
from blobnet.hardware.device_model import DeviceModel
from blobnet.launch.kernel_call import Tuning
from blobnet.memory.blob import FLOAT32, FloatArray, Padding, storage_type
from blobnet.support import child_process
from blobnet.support.cores import usable_cores
from blobnet.support.lru import LRUCache
from blobnet.support.system import untouched_memory
from blobnet.support.user_cache import cache_folder, is_usable, read_entry, temporary_folder, write_entry

#: The lanes from which on Intel's compiler does not choose them by what it spills.
_MIN_ASKED_LANES = 16
#: What buffers are filled with, word by word.
_ZERO = np.zeros(1, np.uint32)
#: What lies around guarded buffers.
_CANARY = 0x7FC0CA7A
#: Programs that a device keeps at least for who asks again; each may take megabytes of the process's memory.
MAX_PROGRAMS = 256
#: Threads at least that load programs: each waits for Python between two of the driver's calls.
_MIN_LOADERS = 4
#: Sources that are worth a child process of their own, which takes 0.3 s to start.
_SOURCES_OF_A_CHILD = 4
BUILD_OPTIONS = ("-cl-std=CL1.2", "-cl-mad-enable")
#: Memory that a child process may need which builds programs: a GPU's context, or a compiler on a CPU.
_MEMORY_OF_A_CHILD = 1 << 31
#: Bytes that stand for each buffer of a launch that a child tries: more than any kernel touches for one sample. Nothing
#: of it is taken before it is touched.
_TRIAL_BYTES = 1 << 32
#: Batches that may be on their way to a processor at once, in so many bytes. NOTE: on Intel's runtime who waits for the
#: oldest one waits for all of them, and then it has no work as long as the host prepares the next.
BATCHES_AHEAD, BYTES_AHEAD = 16, 1 << 20
#: Bytes of exported memory on which NVIDIA's driver 580.159 crashes, as on more; nothing between 128 MB and these was
#: tried.
_MIN_CRASH = 1 << 31
#: Bytes of a page, which no two buffers share, and of a large one.
_PAGE, _LARGE_PAGE = 1 << 12, 1 << 21
#: What drivers say of a device that is gone or was reset, and what there is to do.
_LOST = (
    "DEVICE_NOT_AVAILABLE",
    "OUT_OF_RESOURCES",
    "INVALID_COMMAND_QUEUE",
    "EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST",
)
_LOST_HINT = "the device may be lost, or was reset after a launch that took too long; the system's log may know."
#: Tells pyopencl not to keep programs: this module does. (pyopencl's annotation knows only folders.)
_NO_CACHE: Any = False


class _Region(mmap.mmap):
    """Memory that is not given back before a queue has done what was launched: drivers do not own it."""

    queue: Any = None

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # A queue that failed, or an interpreter that ends.
            if not is_forked():
                self.queue.finish()


class Exported(Protocol):
    """Memory of a device that a file descriptor stands for.

    Attributes:
        size: bytes.
    """

    size: int

    def export(self) -> int:
        """A file descriptor of it, which who takes it closes."""


@dataclass(frozen=True, eq=False)
class HostBuffer:
    """Memory of this process that kernels read where it lies, on a device that ``reads_host``.

    Attributes:
        values: an array in one piece, which must stay, and stay as it is, until the launches that read it are done.
    """

    values: npt.NDArray[Any]


@dataclass(frozen=True)
class Trial:
    """A launch of one work-group, to see whether a driver survives it.

    Attributes:
        entry: the kernel.
        local_size: of the work-group.
        arguments: None for memory, the bytes of others.
    """

    entry: str
    local_size: tuple[int, ...]
    arguments: tuple[bytes | None, ...]

    def as_json(self) -> list[Any]:
        """What :meth:`from_json` takes."""
        return [self.entry, self.local_size, [value and value.hex() for value in self.arguments]]

    @classmethod
    def from_json(cls, values: list[Any]) -> Trial:
        """The trial that :meth:`as_json` described."""
        entry, local_size, arguments = values
        return cls(entry, tuple(local_size), tuple(value and bytes.fromhex(value) for value in arguments))


@dataclass(frozen=True)
class _Built:
    """What a source was built to: a program, and what the names of its kernels end in there if that is a bundle."""

    program: cl.Program
    suffix: str = ""


def preamble(model: DeviceModel) -> str:
    """What stands before the text of every program for a device.

    Intel's compiler for CPUs joins work-items to vectors, which takes it half as long again, and crashed it
    (2026.22.10). Here a work-item of a CPU loops over vectors itself, and is as fast alone.

    Where Intel's compiler for GPUs has threads of 16 lanes at least, it gives a kernel 32, with half the registers a
    lane, and stays with them whatever it spills. The model counts with the fewest lanes: they are asked for.
    """
    if model.compiler != "intel":
        return ""
    if model.is_host:
        return _of_kernels("intel_vec_len_hint(1)")
    return _of_kernels(f"intel_reqd_sub_group_size({model.lanes})") if model.lanes >= _MIN_ASKED_LANES else ""


def _of_kernels(attribute: str) -> str:
    """Gives an attribute to all kernels that follow."""
    return f"#define __kernel __attribute__(({attribute})) __kernel\n"


class Device:
    """One OpenCL device with its context and in-order queue; the precision of its products, and how blobs lie."""

    precision = "fp32"
    padding = Padding()
    storage = FLOAT32
    #: Whether programs are first built in child processes: not where a child asks.
    builds_in_children = True
    #: Whether children that have built wait for more: not on a GPU, of whose memory each one holds some.
    keeps_children: bool
    #: What allocates between canaries, and all that it has allocated so: see :meth:`guarding`.
    _guard: Device | None = None
    guarded: tuple[Guarded, ...] = ()

    def __init__(self, info: DeviceInfo | str | None = None) -> None:
        self.info = info if isinstance(info, DeviceInfo) else choose(info)
        self.keeps_children = self.is_host
        try:
            self.context = cl.Context([self.info.handle])
            self.queue = cl.CommandQueue(self.context)
            # Other devices fetch samples while they work; the host would only take time from itself.
            self.transfers = self.queue if self.is_host else cl.CommandQueue(self.context)
        except cl.Error as error:
            raise DeviceError(str(self.info), "the device must give a context and a queue", cause=error) from error
        features = ["-DCOPIES_IN_BACKGROUND"] if (self.info.model.capability or (0, 0)) >= AMPERE else []
        features += ["-DIS_HOST"] if self.is_host else []
        features += ["-DTAKES_PREFETCH"] if self.is_host and self._driver.takes_prefetch else []
        self._build_options = [*BUILD_OPTIONS, *features]
        self._preamble = preamble(self.info.model)
        self._programs: LRUCache[str, _Built] = LRUCache(MAX_PROGRAMS)
        #: The bundles that sources were built in, as far as it is known, by digest.
        self._bundles: dict[str, str] = {}
        #: What a compiler said last in the child process that it crashed, by the program's digest.
        self._crashed: dict[str, str] = {}
        #: Programs that are being loaded, by digest: see :meth:`preload_programs`.
        self._loading: dict[str, Future[cl.Program | None]] = {}
        self._enqueue = None if self.is_host else opencl.function("clEnqueueNDRangeKernel")

    @property
    def is_host(self) -> bool:
        """Whether it is the host's own processor, with its memory."""
        return self.info.is_host

    @cached_property
    def tunings(self) -> Tunings:
        """What was measured on this device."""
        return Tunings(self.info.identity, self.info.model.relatives)

    def beside(self) -> Device:
        """The same device, context and programs, with a queue of its own: what is launched there does not wait.

        Raises:
            DeviceError: the driver gives no further queue.
        """
        _ = self.tunings  # which both then share
        other = copy.copy(self)
        with self._reporting("making another queue"):
            other.queue = cl.CommandQueue(self.context)
        return other

    @property
    def model(self) -> DeviceModel:
        """What is known of the device, with what was measured."""
        return self.info.model.measured(**self.tunings.speeds)

    @property
    def largest_group(self) -> int:
        """The most work-items of a work-group."""
        return self.info.model.group_size

    @property
    def tuning(self) -> Tuning:
        """Values for tunables on this device, and the candidates that were measured as the fastest."""
        return Tuning(self.model, self.precision, self.tunings.choices, self.padding, self.storage)

    def at(self, precision: str, storage: str = FLOAT32.name) -> Device:
        """The same device, context, queue and programs, for products of a precision: fp32 or tf32.

        ``storage`` is what inference keeps between layers, float32 or float16: Tuning.storage.

        Raises:
            OptionError: there is no such precision, or storage.
            DeviceError: the device has no tensor cores.
        """
        check_precision(self.info, precision)
        _ = self.tunings  # which both then share
        other = copy.copy(self)
        other.precision, other.storage = precision, storage_type(storage)
        return other

    def guarding(self) -> Device:
        """The same device, context, queue and programs, whose buffers lie between canaries: ``guarded`` has them."""
        _ = self.tunings
        other = copy.copy(self)
        other._guard = self
        return other

    # -- memory ------------------------------------------------------------------------------------------------------

    def allocate(self, size: int) -> cl.Buffer:
        """A buffer of at least ``size`` bytes, all zero.

        Raises:
            OutOfMemoryError: the device has no room for it.
        """
        return self.allocate_together([size])[0]

    def allocate_together(self, sizes: Sequence[int]) -> list[cl.Buffer]:
        """Buffers of at least so many bytes, all zero; those of a processor lie side by side, in large pages.

        Raises:
            OutOfMemoryError: the device has no room for one of them.
        """
        if self._guard is not None:
            made = tuple(map(self._guard.allocate_guarded, sizes))
            self.guarded += made
            return [item.buffer for item in made]
        sizes = [-(-size // _ZERO.nbytes) * _ZERO.nbytes for size in sizes]
        found = []
        for size, own in zip(sizes, self._large_pages(sizes), strict=True):
            try:
                flags = cl.mem_flags.READ_WRITE | (0 if own is None else cl.mem_flags.USE_HOST_PTR)
                buffer = cl.Buffer(self.context, flags, size if own is None else 0, own)
                if own is None:
                    cl.enqueue_fill_buffer(self.queue, buffer, _ZERO, 0, size)
                found.append(buffer)
            except cl.Error as error:
                rule = "the device must have room for a buffer"
                raise OutOfMemoryError(
                    self.info.name, rule, bytes=size, cause=error, hint="use a smaller batch."
                ) from error
        return found

    def take(self, memory: Exported) -> cl.Buffer:
        """A buffer, all zero, of memory of this device that others have allocated, and which lives as long.

        Raises:
            DeviceError: the driver refuses it.
        """
        if memory.size >= _MIN_CRASH:
            rule = "the driver must take memory that CUDA has exported, and crashes from 2 GiB on"
            raise DeviceError(self.info.name, rule, bytes=memory.size)
        code, descriptor = ctypes.c_int(), memory.export()
        properties = (ctypes.c_uint64 * 3)(opencl.OPAQUE_FD, descriptor, 0)
        handle = opencl.CREATE_BUFFER and opencl.CREATE_BUFFER(
            self.context.int_ptr, properties, cl.mem_flags.READ_WRITE, memory.size, None, ctypes.byref(code)
        )
        if not handle:
            os.close(descriptor)
            rule = "the driver must take memory that CUDA has exported"
            raise DeviceError(self.info.name, rule, code=code.value)
        buffer = cast(cl.Buffer, cl.Buffer.from_int_ptr(handle, retain=False))
        buffer.memory = memory  # type: ignore[attr-defined]
        self.fill_zero(buffer, memory.size)
        return buffer

    def allocate_guarded(self, size: int) -> Guarded:
        """A buffer of at least ``size`` bytes, all zero, in the middle of a larger one that says who leaves it.

        Raises:
            OutOfMemoryError: the device has no room for it.
        """
        size = -(-size // _ZERO.nbytes) * _ZERO.nbytes
        room = max(_PAGE, self.info.handle.mem_base_addr_align // 8)
        whole = self.allocate(size + 2 * room)
        with self._reporting("taking a part of a buffer"):
            return Guarded(self, whole, whole.get_sub_region(room, size), room)

    def _large_pages(self, sizes: Sequence[int]) -> list[npt.NDArray[np.uint8] | None]:
        """Memory for buffers of a processor, all zero as the system gives it; None where its driver finds some.

        NOTE: a network reads thousands of pages of 4 KB in turn, more than processors remember. Drivers do not ask for
        larger ones.
        """
        starts = list(itertools.accumulate((-(-size // _PAGE) * _PAGE for size in sizes), initial=0))
        advice = getattr(mmap, "MADV_HUGEPAGE", None)
        if sys.platform == "win32" or not self.is_host or advice is None or starts[-1] < _LARGE_PAGE:
            return [None] * len(sizes)
        try:
            region = _Region(-1, starts[-1] + _LARGE_PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            region.madvise(advice)
            region.queue = self.queue
        except OSError:  # The driver may have words for it; or the system has no such pages.
            return [None] * len(sizes)
        values = np.frombuffer(region, np.uint8)
        values = values[-values.ctypes.data % _LARGE_PAGE :]
        return [values[start : start + size] for start, size in zip(starts, sizes, strict=False)]

    @cached_property
    def reads_host(self) -> bool:
        """Whether kernels may read any memory of this process: see HostBuffer."""
        capabilities = asked(self.info.handle, "svm_capabilities") or 0
        return opencl.SET_POINTER is not None and bool(capabilities & cl.device_svm_capabilities.FINE_GRAIN_SYSTEM)

    def write(self, buffer: cl.Buffer, values: npt.NDArray[Any], offset: int = 0) -> None:
        """Copies an array into a buffer, from byte ``offset`` on; done when it returns."""
        if values.size:
            with self._reporting("writing to a buffer"):
                cl.enqueue_copy(self.queue, buffer, np.ascontiguousarray(values), dst_offset=offset, is_blocking=True)

    @contextlib.contextmanager
    def filling(self, buffer: cl.Buffer, elements: int, dtype: npt.DTypeLike) -> Iterator[npt.NDArray[Any]]:
        """An array to set in the block, which the start of a buffer gets; a processor's buffer is that array itself.

        What is not set is 0, or of a processor's buffer what it was.
        """
        if not self.is_host:
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
        """Some elements of a processor's buffers, to read and to set in the block, once all that was launched is done.

        Nothing is launched within.
        """
        kind = np.dtype(dtype)
        flags: Any = cl.map_flags.READ | cl.map_flags.WRITE
        found = [np.empty(0, kind) for _ in places]
        # NOTE: all are mapped before the host waits: Intel's runtime takes 0.1 ms to begin anew with what comes later.
        with self._reporting("mapping a buffer"):
            for number, (buffer, own) in enumerate(places):
                if own:
                    at = kind.itemsize * own.start, (len(own),), kind
                    found[number], _ = cl.enqueue_map_buffer(self.queue, buffer, flags, *at, is_blocking=False)
        self.finish()
        try:
            yield found
        finally:
            for values in found:
                memory: Any = values.base
                if memory is not None:
                    memory.release(self.queue)

    def host_memory(self, size: int) -> npt.NDArray[np.uint8]:
        """Host memory of ``size`` bytes; page-locked for a GPU, which then can fetch it by itself."""
        if not self.is_host:
            flags = cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR
            with contextlib.suppress(cl.Error):  # It is not needed, only faster.
                memory = cl.Buffer(self.context, flags, size)
                mapped = cl.enqueue_map_buffer(self.queue, memory, cl.map_flags.WRITE, 0, (size,), np.dtype("u1"))
                return np.asarray(mapped[0])
        return np.empty(size, np.uint8)

    def fetch(
        self, buffer: cl.Buffer, source: npt.NDArray[Any], offset: int = 0, after: cl.Event | None = None
    ) -> cl.Event:
        """Copies memory into a buffer, from byte ``offset`` on; not done when it returns.

        Args:
            buffer: where to.
            source: page-locked memory if it should be fast; it must not change before the copy is done.
            offset: bytes.
            after: if given, the copy waits for this alone, beside all that was launched (see :meth:`mark`), and
                launches must wait for it (see :meth:`hold`); else it has its place behind what was launched.
        """
        queue = self.queue if after is None else self.transfers
        with self._reporting("writing to a buffer"):
            wait = None if after is None else [after]
            return cl.enqueue_copy(queue, buffer, source, dst_offset=offset, is_blocking=False, wait_for=wait)

    def mark(self) -> cl.Event:
        """What has happened once all that was launched before is done; the device begins with that."""
        with self._reporting("marking a launch"):
            event = cl.enqueue_marker(self.queue)
            self.queue.flush()
            return event

    def hold(self, event: cl.Event) -> None:
        """Makes launches that follow wait for a copy of :meth:`fetch`, which begins at once, or for another queue."""
        with self._reporting("waiting for a copy"):
            self.transfers.flush()
            cl.enqueue_barrier(self.queue, wait_for=[event])

    def pieces(self, size: int) -> int:
        """How many pieces of host memory, of ``size`` bytes each, take turns for what is on its way."""
        return max(2, min(BATCHES_AHEAD, BYTES_AHEAD // max(1, size))) if self.is_host else 2

    def is_done(self, event: cl.Event) -> bool:
        """Whether something has happened (or never will)."""
        return bool(event.command_execution_status <= cl.command_execution_status.COMPLETE)

    def wait(self, event: cl.Event) -> None:
        """Waits until something has happened.

        Raises:
            DeviceError: it has failed.
        """
        with self._reporting("waiting for the device"):
            if self.is_host and self._driver.host_works and not self.is_done(event):
                self.queue.finish()
            event.wait()

    def read(self, buffer: cl.Buffer, elements: int, dtype: npt.DTypeLike = np.float32, offset: int = 0) -> Any:
        """``elements`` values from byte ``offset`` of a buffer."""
        values = np.empty(elements, dtype)
        if elements:
            with self._reporting("reading a buffer"):
                cl.enqueue_copy(self.queue, values, buffer, src_offset=offset, is_blocking=True)
        return values

    def read_later(self, buffer: cl.Buffer, values: FloatArray, offset: int = 0) -> Reading:
        """Begins to read a buffer from byte ``offset`` on, behind what was launched.

        Page-locked ``values`` need no waiting.
        """
        with self._reporting("reading a buffer"):
            copy = cl.enqueue_copy(self.queue, values, buffer, src_offset=offset, is_blocking=False)
            return Reading(self, values, copy)

    def copy(self, source: cl.Buffer, target: cl.Buffer, offset: int = 0) -> None:
        """Fills a buffer from byte ``offset`` of another one on, as far as that goes, behind what was launched."""
        with self._reporting("copying a buffer"):
            size = min(target.size, source.size - offset)
            cl.enqueue_copy(self.queue, target, source, byte_count=size, src_offset=offset)

    def fill_zero(self, buffer: cl.Buffer, size: int) -> None:
        """Sets the first ``size`` bytes of a buffer to zero."""
        with self._reporting("filling a buffer"):
            whole = size // _ZERO.nbytes * _ZERO.nbytes
            cl.enqueue_fill_buffer(self.queue, buffer, _ZERO, 0, whole)
            if size > whole:
                cl.enqueue_fill_buffer(self.queue, buffer, _ZERO.view(np.uint8)[:1], whole, size - whole)

    def flush(self) -> None:
        """Makes the device begin with what was launched, without waiting for it."""
        with self._reporting("flushing the launches"):
            self.queue.flush()

    def finish(self) -> None:
        """Waits for all that was launched.

        Raises:
            DeviceError: the driver reports that a launch failed.
        """
        with self._reporting("finishing the launches"):
            self.queue.finish()

    @contextlib.contextmanager
    def _reporting(self, action: str) -> Iterator[None]:
        """Turns a driver's errors into DeviceError; errors of earlier launches arrive here too."""
        check_process()
        try:
            yield
        except cl.Error as error:
            raise _failure(error, self.info.name, f"{action} must succeed") from error

    # -- programs ----------------------------------------------------------------------------------------------------

    def kernel(self, source: str, entry: str, what: str) -> cl.Kernel:
        """A kernel object of its own (never shared between launch sites) of a program: see :meth:`build`.

        Raises:
            BuildError: the driver refuses the source, or finds no kernel ``entry`` in what it built.
            DeviceError: it cannot make a kernel object.
        """
        built = self.build(source, what)
        try:
            return cl.Kernel(built.program, entry + built.suffix)
        except cl.Error as error:
            if error.code != cl.status_code.INVALID_KERNEL_NAME:
                raise _failure(error, what, f"{self.info.name} must make the kernel") from error
            rule = f"{self.info.name} must find the kernel {entry!r} in the program"
            raise BuildError(what, rule, cause=error, hint="is that its name in the source?") from error

    def set_cache_limit(self, programs: int) -> None:
        """Keeps so many programs from now on, if that is more than MAX_PROGRAMS: all that one plan needs.

        Those that were asked for longest ago are forgotten. Kernel objects live on: a driver keeps what they need.
        """
        self._programs.limit(max(MAX_PROGRAMS, programs))

    def entry(self, name: str) -> Path:
        """The file of the cache for what is of use with this device and driver alone."""
        return self._folder / name

    @contextlib.contextmanager
    def preload_programs(self, purpose: str) -> Iterator[set[str]]:
        """Loads, beside what the caller does, the programs that a purpose needed the last time.

        Gives a set for the sources of those that it needs now. What it needs no more was loaded in vain, no worse.
        """
        record = self.entry(f"{purpose}.programs")
        known = None if self._driver.keeps_programs else read_entry(record)
        built, needed = {self._digest(source) for source in self._programs}, set[str]()
        # A line has a program, and which of its sources were needed if it is a bundle.
        programs = {name: sources for name, *sources in map(str.split, (known or b"").decode().splitlines())}
        self._bundles.update({digest: name for name, sources in programs.items() for digest in sources})
        with self._loaders() as pool:
            try:
                missing = (name for name, sources in programs.items() if not built.issuperset(sources or [name]))
                self._loading = {name: pool.submit(self._load, name) for name in missing}
                yield needed
            finally:
                pool.shutdown(cancel_futures=True)
                self._loading = {}
        if not self._driver.keeps_programs:
            self._note(record, known, map(self._digest, needed))

    def _note(self, record: Path, known: bytes | None, digests: Iterable[str]) -> None:
        """Keeps what :meth:`preload_programs` finds the next time, if it is not what was known."""
        programs: dict[str, list[str]] = {}
        for digest in sorted(digests):
            programs.setdefault(self._program_of(digest), []).append(digest)
        lines = (" ".join(dict.fromkeys([name, *sources])) for name, sources in sorted(programs.items()))
        now = "\n".join(lines).encode()
        if now != known:
            with contextlib.suppress(OSError):
                write_entry(record, now)

    @contextlib.contextmanager
    def _loaders(self) -> Iterator[ThreadPoolExecutor]:
        """Threads for the driver's work; all is done at the end."""
        with _without_remarks(), ThreadPoolExecutor(max(_MIN_LOADERS, usable_cores())) as pool:
            yield pool

    def _program_of(self, digest: str) -> str:
        """The digest of the program that a source was built in, if it was: that of a bundle, or its own."""
        if digest not in self._bundles and self._driver.most_bundled > 1:
            bundle = read_entry(self._part(digest))
            if bundle is None:
                return digest
            self._bundles[digest] = bundle.decode()
        return self._bundles.get(digest, digest)

    def _part_of(self, program: cl.Program, name: str, digest: str) -> _Built:
        """What a source was built to, as a part of a program."""
        return _Built(program, "" if name == digest else _suffix(digest))

    def _load(self, digest: str) -> cl.Program | None:
        """A program that was built before; None if its binary is not kept, or not taken."""
        binary = None if self._driver.keeps_programs else read_entry(self._record(digest))
        if binary is not None:
            with contextlib.suppress(cl.Error, RuntimeError):
                program: cl.Program = cl.Program(self.context, [self.info.handle], [binary])
                program.build(cache_dir=_NO_CACHE)
                opencl.touch_kernels(program)
                return program
        return None

    def build(self, source: str, what: str) -> _Built:
        """A program, built once as long as it is kept: see :meth:`set_cache_limit`.

        Raises:
            BuildError: the driver refuses the source; names ``what``, the log and a file with the source.
        """
        check_process()
        built = self._programs.get(source)
        if built is None:
            with _without_remarks():
                built = self._programs[source] = self._build(source, self._digest(source), what)
        return built

    def build_ahead(
        self,
        sources: Iterable[str],
        advance: Callable[[int, int], object] | None = None,
        trials: Callable[[str], Sequence[Trial]] = lambda _: (),
    ) -> None:
        """Builds programs that will be asked for, side by side; what the driver refuses it will refuse again then.

        Those that this driver has not built before are first built in child processes: a compiler that crashes leaves
        this one alive, and :meth:`build` raises BuildError for what crashed it.

        Args:
            sources: of the programs; those that are there already cost nothing.
            advance: told how many programs are built, and of how many, as children build them.
            trials: for a source, launches that children try where the driver leaves work to the first one.
        """
        missing = {self._digest(source): source for source in sources if source not in self._programs}
        self._load_known(missing)
        if self.builds_in_children and missing:
            self._build_in_children(missing, advance, trials)
            self._load_known(missing)
        # Drivers of CPUs have no cores to spare, or compile at the first launch.
        if not self.is_host:
            with self._loaders() as pool:
                futures = {
                    digest: pool.submit(self._build, source, digest, "a kernel") for digest, source in missing.items()
                }
            for digest, future in futures.items():
                with contextlib.suppress(BuildError):
                    self._programs[missing[digest]] = future.result()

    def _load_known(self, missing: dict[str, str]) -> None:
        """Loads what was built before of some sources, by digest, and takes it out of them."""
        names = {digest: self._program_of(digest) for digest in missing}
        with self._loaders() as pool:
            loads = {name: self._loading.get(name) or pool.submit(self._load, name) for name in set(names.values())}
        for digest, name in names.items():
            with contextlib.suppress(CancelledError):  # Another thread foresaw it, and has ended.
                if program := loads[name].result():
                    self._programs[missing.pop(digest)] = self._part_of(program, name, digest)
                else:
                    self._bundles.pop(digest, None)  # It is built anew, perhaps with others.

    def _build_in_children(
        self,
        missing: Mapping[str, str],
        advance: Callable[[int, int], object] | None,
        trials: Callable[[str], Sequence[Trial]],
    ) -> None:
        """Has children build those that the driver has not built before, and notes what crashes its compiler.

        Of a bundle that crashes it each source is tried alone.
        """
        unknown = [digest for digest in missing if self._is_unknown(digest)]
        if not unknown:
            return
        children = min(usable_cores(), self.info.memory // _MEMORY_OF_A_CHILD, -(-len(unknown) // _SOURCES_OF_A_CHILD))
        children = max(1, children)
        size = min(self._driver.most_bundled, -(-len(unknown) // children))
        done = 0

        def job(digests: Sequence[str]) -> str:
            sources = [missing[digest] for digest in digests]
            tried = trials(sources[0]) if self._driver.compiles_at_launch else ()
            return json.dumps([sources, str(self._folder), [trial.as_json() for trial in tried]])

        def more(count: int) -> None:
            nonlocal done
            done += count
            if advance is not None:
                advance(done, len(unknown))

        more(0)  # The first ones take longest.
        waiting = [unknown[start : start + size] for start in range(0, len(unknown), size)]
        while waiting:
            jobs, waiting = {job(digests): digests for digests in waiting}, []
            results = child_builds.build_all(
                self.info.identity, list(jobs), children=children, keep_children=self.keeps_children
            )
            with contextlib.closing(results):
                for text, words in results:
                    digests = jobs[text]
                    if words and len(digests) > 1:
                        waiting += [[digest] for digest in digests]
                        continue
                    more(len(digests))
                    if words:
                        self._crashed[digests[0]] = words
                        with contextlib.suppress(OSError):  # It may have built, and crashed when it was launched.
                            self._record(digests[0]).unlink(missing_ok=True)

    def _is_unknown(self, digest: str) -> bool:
        known = self._driver.keeps_programs and read_entry(self._record(digest)) is not None
        return digest not in self._crashed and not known

    @cached_property
    def _folder(self) -> Path:
        """Where it is noted what this device and driver have built; in the cache, if there can be one."""
        identity = "|".join(self.info.identity.values())
        name = hashlib.sha256(identity.encode()).hexdigest()[:16]
        with contextlib.suppress(FileError):
            folder = cache_folder() / "programs" / name
            if is_usable(folder):
                return folder
        return temporary_folder(f"programs-{name}")  # Of all Devices: they share what is built, and who builds.

    @cached_property
    def _driver(self) -> DriverTraits:
        return DriverTraits.of(self.info)

    def _record(self, digest: str) -> Path:
        """The file that says that the driver has built a program: its binary, or nothing if the driver keeps it."""
        return self._folder / f"{digest}.{'known' if self._driver.keeps_programs else 'program'}"

    def _part(self, digest: str) -> Path:
        """The file that says which bundle a source was built in."""
        return self._folder / f"{digest}.part"

    def _try(self, program: cl.Program, trial: Trial) -> None:
        """Launches a kernel once, with zeros for memory, of which there is more than it takes."""
        kernel, regions = cl.Kernel(program, trial.entry), []
        for index, value in enumerate(trial.arguments):
            if value is None:
                region = np.frombuffer(untouched_memory(_TRIAL_BYTES), np.uint8)
                flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
                regions.append(cl.Buffer(self.context, flags, hostbuf=region))
            kernel.set_arg(index, regions[-1] if value is None else value)
        self._launch_with_event(self.queue, kernel, trial.local_size, trial.local_size).wait()

    def _digest(self, source: str) -> str:
        """What tells a program from others."""
        options = [*self._build_options, *([WITHOUT_HEADER] if self._driver.reads_all else [])]
        return hashlib.sha256("\n".join([*options, self._preamble + source]).encode()).hexdigest()

    def _build(self, source: str, digest: str, what: str) -> _Built:
        if digest in self._crashed:
            rule = f"the compiler of {self.info.name} must build the kernel, and crashed in a process of its own"
            raise self._build_error(what, rule, source, self._crashed[digest])
        try:
            return self._compile(source, digest)
        except (cl.Error, RuntimeError) as error:
            rule = f"{self.info.name} must build the kernel"
            raise self._build_error(what, rule, source, str(error)) from error

    def _compile(self, source: str, digest: str) -> _Built:
        """A program from the cache, or from the driver; cl.Error or RuntimeError if it refuses the source."""
        # A cache that cannot be read or written costs time, not results.
        name = self._program_of(digest)
        if (known := self._load(name)) is not None:
            return self._part_of(known, name, digest)
        record = self._record(digest)
        program = self._from_source(self._preamble + source)
        with contextlib.suppress(cl.Error, OSError):
            if self._driver.keeps_programs:
                write_entry(record, b"")
            else:
                write_entry(record, program.get_info(cl.program_info.BINARIES)[0])
                self._part(digest).unlink(missing_ok=True)  # Of a bundle that cannot be had any more.
        self._bundles.pop(digest, None)
        return _Built(program)

    def _compile_together(self, sources: Sequence[str]) -> bool:
        """Builds a bundle of several sources, and notes for each where it is; whether the driver takes it."""
        parts = {self._digest(source): source for source in sources}
        if len(parts) == 1:
            return False
        text = bundled({_suffix(digest): source for digest, source in parts.items()})
        bundle = self._digest(text)
        try:
            self._compile(text, bundle)
        except (cl.Error, RuntimeError):
            return False
        with contextlib.suppress(OSError):
            for digest in parts:
                write_entry(self._part(digest), bundle.encode())
        return True

    def _from_source(self, source: str) -> Any:
        """A program that the driver compiles, or finds in a cache of its own."""
        short = declared(source) if self._driver.reads_all else None
        if short is not None:
            with contextlib.suppress(cl.Error, RuntimeError):  # What is wrong is said of the source itself.
                return cl.Program(self.context, short).build(
                    options=[*self._build_options, WITHOUT_HEADER], cache_dir=_NO_CACHE
                )
        return cl.Program(self.context, source).build(options=self._build_options, cache_dir=_NO_CACHE)

    def _build_error(self, what: str, rule: str, source: str, log: str) -> BuildError:
        """An error that names the log, and a file with the source."""
        name = "lost, since no file can be written"
        with (
            contextlib.suppress(OSError),
            tempfile.NamedTemporaryFile("w", suffix=".cl", prefix="blobnet-", delete=False) as file,
        ):
            file.write(self._preamble + source)
            name = file.name
        return BuildError(
            what,
            rule,
            options=" ".join(self._build_options),
            source=name,
            log=Lines(f"\n{log.strip()}\n"),
            hint="report this with the source file and the output of 'blobnet devices'.",
        )

    # -- launches ----------------------------------------------------------------------------------------------------

    def set_argument(self, kernel: cl.Kernel, index: int, value: Any) -> None:
        """Sets an argument of a kernel: a buffer, memory that is lent, or a NumPy number or array that is its value.

        Raises:
            DeviceError: the driver refuses memory that is lent.

        NOTE: pyopencl takes 9 us for a value, since it tries all else before, and a network has ten thousand.
        """
        if isinstance(value, HostBuffer):
            assert opencl.SET_POINTER is not None, "it is lent where the device reads it"
            pointer = value.values.__array_interface__["data"][0]  # NOTE: ``ctypes.data`` takes five times as long.
            if code := opencl.SET_POINTER(kernel.int_ptr, index, pointer):
                raise DeviceError(self.info.name, "the device must take memory of this process", code=code)
            return
        is_value = isinstance(value, np.generic | np.ndarray)
        data = value.tobytes() if is_value else b""
        if not is_value or opencl.SET_ARGUMENT is None or opencl.SET_ARGUMENT(kernel.int_ptr, index, len(data), data):
            kernel.set_arg(index, value)  # Which has words for errors.

    def prepare(
        self, kernel: cl.Kernel, global_size: tuple[int, ...], local_size: tuple[int, ...] | None
    ) -> Callable[[], object]:
        """What puts a kernel whose arguments are set into the queue whenever it is called.

        NOTE: on GPUs without an event, which pyopencl always asks for: NVIDIA's takes 2 us more between two launches
        for it (docs/performance.md). CPUs gain nothing.

        What is returned raises DeviceError if the driver refuses the launch.
        """
        queue = self.queue  # NOTE: pointers own nothing; the function below keeps the queue and the kernel alive.
        if self._enqueue is None:
            return partial(self._launch_with_event, queue, kernel, global_size, local_size)
        # ctypes takes these as they are; converting them at every launch would take longer than the rest.
        pointers, dimensions = [ctypes.c_void_p(owner.int_ptr) for owner in (queue, kernel)], len(global_size)
        sizes = [size and (ctypes.c_size_t * dimensions)(*size) for size in (global_size, local_size)]
        enqueue = partial(
            self._enqueue, *pointers, ctypes.c_uint(dimensions), None, *sizes, ctypes.c_uint(0), None, None
        )

        def launch() -> None:
            if enqueue():  # Not 0: an error, which pyopencl has words for.
                self._launch_with_event(queue, kernel, global_size, local_size)

        return launch

    def _launch_with_event(
        self,
        queue: cl.CommandQueue,
        kernel: cl.Kernel,
        global_size: tuple[int, ...],
        local_size: tuple[int, ...] | None,
    ) -> cl.Event:
        try:
            return cl.enqueue_nd_range_kernel(queue, kernel, global_size, local_size)
        except cl.Error as error:
            rule = f"{kernel.function_name} must launch"
            sizes = {"global_size": global_size, "local_size": local_size}
            raise _failure(error, self.info.name, rule, **sizes) from error

    @contextlib.contextmanager
    def profiling(self) -> Iterator[Callable[..., cl.Event]]:
        """Yields what launches a kernel as :meth:`prepare` takes it, and returns an event: see :func:`event_seconds`.

        It has a queue of its own, which is the device's within the block: what was prepared before it does not go
        there, and what is prepared in it is of no use behind it.

        Raises:
            DeviceError: the device has no queue that times launches.
        """
        plain = self.queue
        self.finish()
        with self._reporting("making a queue that times launches"):
            self.queue = cl.CommandQueue(self.context, properties=cl.command_queue_properties.PROFILING_ENABLE)
        try:
            yield partial(self._launch_with_event, self.queue)
            self.finish()
        finally:
            self.queue = plain


class Guarded:
    """A buffer between canaries: quiet NaNs that no computation makes.

    Attributes:
        buffer: to be used.
    """

    def __init__(self, device: Device, whole: cl.Buffer, buffer: cl.Buffer, room: int) -> None:
        self.buffer = buffer
        self._device, self._whole, self._places = device, whole, (0, room + buffer.size)
        self._canaries = np.full(room // _ZERO.nbytes, _CANARY, np.uint32)
        for place in self._places:
            device.write(whole, self._canaries, place)

    def is_touched(self) -> bool:
        """Whether somebody wrote before the buffer, or behind it."""
        return any(
            not np.array_equal(self._device.read(self._whole, self._canaries.size, np.uint32, place), self._canaries)
            for place in self._places
        )


class Reading:
    """Values on their way from the device."""

    def __init__(self, device: Device, values: FloatArray, event: cl.Event) -> None:
        self._device, self._values, self._event = device, values, event

    def is_done(self) -> bool:
        """Whether they have arrived (or never will)."""
        return self._device.is_done(self._event)

    def values(self) -> FloatArray:
        """Waits for them.

        Raises:
            DeviceError: something that was launched before failed.
        """
        self._device.wait(self._event)
        return self._values


def build_for_parent(identity: str) -> None:
    """The child process of :meth:`Device.build_ahead`.

    Args:
        identity: what tells the device from others, as JSON. Requests bring the folder of records along.
    """

    def make_builder() -> Callable[[str], str]:
        device = Device(next(info for info in devices() if info.identity == json.loads(identity)))

        def build(job: str) -> str:
            sources, folder, trials = json.loads(job)
            device._folder = Path(folder)
            with _without_remarks():
                for source in () if device._compile_together(sources) else sources:
                    with contextlib.suppress(cl.Error, RuntimeError):
                        program = device._compile(source, device._digest(source)).program
                        for trial in trials:
                            with contextlib.suppress(DeviceError, cl.Error, OSError, ValueError, TypeError):
                                device._try(program, Trial.from_json(trial))
            return ""

        return build

    child_process.serve(make_builder)


def _suffix(digest: str) -> str:
    """What the names of a source end in that is a part of a bundle."""
    return f"_{digest[:16]}"


def _failure(error: cl.Error, subject: str, rule: str, **received: object) -> DeviceError:
    """What to raise for a driver's error.

    NOTE: drivers allocate when memory is first used. OUT_OF_RESOURCES may be registers: the kernel's own fault.
    """
    code, codes = getattr(error, "code", None), cl.status_code
    is_memory = code in (codes.MEM_OBJECT_ALLOCATION_FAILURE, codes.OUT_OF_HOST_MEMORY)
    is_lost = code in [getattr(codes, name) for name in _LOST]
    kind = OutOfMemoryError if is_memory else DeviceError
    return kind(subject, rule, hint=_LOST_HINT if is_lost else None, cause=error, **received)


class StagingRing:
    """A way to the start of a buffer for small arrays that come one after another, while the device works.

    An array is copied to memory of which there are pieces that take turns, page-locked on a GPU; the device fetches it
    behind all that was launched before, while the host goes on.

    Args:
        device: the buffer's.
        buffer: where arrays go.
    """

    def __init__(self, device: Device, buffer: cl.Buffer) -> None:
        self._device, self._buffer = device, buffer
        self._pieces: deque[tuple[npt.NDArray[np.uint8], cl.Event | None]] = deque(
            (device.host_memory(buffer.size), None) for _ in range(device.pieces(buffer.size))
        )

    def write(self, values: npt.NDArray[Any]) -> None:
        """Puts an array at the start of the buffer, for launches that follow; ``values`` may change at once."""
        memory, fetched = self._pieces.popleft()
        if fetched is not None:
            self._device.wait(fetched)
        source = memory[: values.nbytes]
        np.copyto(source.view(values.dtype).reshape(values.shape), values)
        self._pieces.append((memory, self._device.fetch(self._buffer, source)))


@contextlib.contextmanager
def _without_remarks() -> Iterator[None]:
    """Keeps quiet what drivers print about programs that build well; only failures matter."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cl.CompilerWarning)
        yield


def event_seconds(event: cl.Event) -> float:
    """How long a launch took on the device, once it has finished; it was made within :meth:`Device.profiling`."""
    return float(event.profile.end - event.profile.start) * 1e-9
