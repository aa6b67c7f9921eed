"""A device's queue: arguments of kernels, launches, events, and what a driver's errors mean."""

from __future__ import annotations

import contextlib
import copy
import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from blobnet.device import opencl
from blobnet.device.discovery import DeviceInfo, check_process
from blobnet.device.opencl import cl
from blobnet.errors import DeviceError, OutOfMemoryError

#: What drivers say of a device that is gone or was reset, and what there is to do.
_LOST = (
    "DEVICE_NOT_AVAILABLE",
    "OUT_OF_RESOURCES",
    "INVALID_COMMAND_QUEUE",
    "EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST",
)
_LOST_HINT = "the device may be lost, or was reset after a launch that took too long; the system's log may know."
_REGISTERS_HINT = " A kernel that never ran may need more registers than its work-group can have: report it."


@dataclass(frozen=True, eq=False)
class HostBuffer:
    """Memory of this process that kernels read where it lies, on a device that ``reads_host``.

    Attributes:
        values: an array in one piece, which must stay, and stay as it is, until the launches that read it are done.
    """

    values: npt.NDArray[Any]


class Queue:
    """An in-order queue of launches and copies, and on GPUs another one for copies beside them.

    Args:
        context: OpenCL's.
        info: the device.

    Attributes:
        context: OpenCL's.
        info: the device.
        handle: pyopencl's queue, in which launches run.
        transfers: pyopencl's queue for copies that need not wait for launches; on a CPU the same one.

    Raises:
        pyopencl.Error: the driver gives no queue.
    """

    def __init__(self, context: cl.Context, info: DeviceInfo) -> None:
        self.context, self.info = context, info
        self.handle = cl.CommandQueue(context)
        # Other devices copy samples while they work; the host would only take time from itself.
        self.transfers = self.handle if info.is_host else cl.CommandQueue(context)
        self._enqueue = None if info.is_host else opencl.function("clEnqueueNDRangeKernel")

    def another(self) -> Queue:
        """Return a further queue for launches, which do not wait for those in this one; copies share theirs.

        Raises:
            DeviceError: the driver gives no further queue.
        """
        other = copy.copy(self)
        with self.reporting("making another queue"):
            other.handle = cl.CommandQueue(self.context)
        return other

    def set_argument(self, kernel: cl.Kernel, index: int, value: Any) -> None:
        """Set an argument of a kernel: a buffer, a :class:`HostBuffer`, or a NumPy number or array that is its value.

        Raises:
            DeviceError: the driver refuses memory of this process.

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
        """Return a function that launches a kernel, whose arguments are set, whenever it is called.

        NOTE: on GPUs without an event, which pyopencl always asks for: NVIDIA's takes 2 us more between two launches
        for it (docs/performance.md). CPUs gain nothing.

        The function raises DeviceError if the driver refuses the launch.
        """
        queue = self.handle  # NOTE: pointers own nothing; the function below keeps the queue and the kernel alive.
        if self._enqueue is None:
            return partial(self.launch, kernel, global_size, local_size, queue)
        # ctypes takes these as they are; converting them at every launch would take longer than the rest.
        pointers, dimensions = [ctypes.c_void_p(owner.int_ptr) for owner in (queue, kernel)], len(global_size)
        sizes = [size and (ctypes.c_size_t * dimensions)(*size) for size in (global_size, local_size)]
        enqueue = partial(
            self._enqueue, *pointers, ctypes.c_uint(dimensions), None, *sizes, ctypes.c_uint(0), None, None
        )

        def launch() -> None:
            if enqueue():  # Not 0: an error, which pyopencl has words for.
                self.launch(kernel, global_size, local_size, queue)

        return launch

    def launch(
        self,
        kernel: cl.Kernel,
        global_size: tuple[int, ...],
        local_size: tuple[int, ...] | None,
        queue: cl.CommandQueue | None = None,
    ) -> cl.Event:
        """Launch a kernel whose arguments are set, in ``queue`` (this one's if None); return its event.

        Raises:
            DeviceError: the driver refuses the launch.
        """
        try:
            return cl.enqueue_nd_range_kernel(queue or self.handle, kernel, global_size, local_size)
        except cl.Error as error:
            rule = f"{kernel.function_name} must launch"
            sizes = {"global_size": global_size, "local_size": local_size}
            raise driver_error(error, self.info.name, rule, **sizes) from error

    @contextlib.contextmanager
    def profiling(self) -> Iterator[Callable[..., cl.Event]]:
        """Yield a function that takes what :meth:`launch` takes, and returns an event: see :func:`event_seconds`.

        It launches in a queue of its own, which takes the place of this one within the block. What was prepared before
        the block does not go there, and what is prepared in it is of no use behind it.

        Raises:
            DeviceError: the device has no queue that times launches.
        """
        plain = self.handle
        self.finish()
        with self.reporting("making a queue that times launches"):
            self.handle = cl.CommandQueue(self.context, properties=cl.command_queue_properties.PROFILING_ENABLE)
        try:
            yield self.launch
            self.finish()
        finally:
            self.handle = plain

    def record_event(self) -> cl.Event:
        """Return an event that happens once all that was launched before is done; the device begins with that."""
        with self.reporting("marking a launch"):
            event = cl.enqueue_marker(self.handle)
            self.handle.flush()
            return event

    def wait_event(self, event: cl.Event) -> None:
        """Have launches that follow wait for an event: of ``Memory.write_async``, or of another queue."""
        with self.reporting("waiting for a copy"):
            self.transfers.flush()
            cl.enqueue_barrier(self.handle, wait_for=[event])

    def is_done(self, event: cl.Event) -> bool:
        """Return whether an event has happened (or never will)."""
        return bool(event.command_execution_status <= cl.command_execution_status.COMPLETE)

    def synchronize(self, event: cl.Event) -> None:
        """Wait until an event has happened.

        Raises:
            DeviceError: what it stands for has failed.
        """
        with self.reporting("waiting for the device"):
            if self.info.is_host and self.info.traits.host_works and not self.is_done(event):
                self.handle.finish()
            event.wait()

    def flush(self) -> None:
        """Make the device begin with what was launched, without waiting for it."""
        with self.reporting("flushing the launches"):
            self.handle.flush()

    def finish(self) -> None:
        """Wait for all that was launched.

        Raises:
            DeviceError: the driver reports that a launch failed.
        """
        with self.reporting("finishing the launches"):
            self.handle.finish()

    @contextlib.contextmanager
    def reporting(self, action: str) -> Iterator[None]:
        """Turn a driver's errors into DeviceError; errors of earlier launches arrive here too.

        Raises:
            DeviceError: a call within the block fails, or this process was forked from one that uses OpenCL.
        """
        check_process()
        try:
            yield
        except cl.Error as error:
            raise driver_error(error, self.info.name, f"{action} must succeed") from error


def driver_error(error: cl.Error, subject: str, rule: str, **received: object) -> DeviceError:
    """Return what to raise for a driver's error.

    NOTE: drivers allocate when memory is first used. OUT_OF_RESOURCES may be registers: the kernel's own fault.
    """
    code, codes = getattr(error, "code", None), cl.status_code
    is_memory = code in (codes.MEM_OBJECT_ALLOCATION_FAILURE, codes.OUT_OF_HOST_MEMORY)
    is_lost = code in [getattr(codes, name) for name in _LOST]
    kind = OutOfMemoryError if is_memory else DeviceError
    hint = _LOST_HINT + _REGISTERS_HINT * (code == codes.OUT_OF_RESOURCES) if is_lost else None
    return kind(subject, rule, hint=hint, cause=error, **received)


def event_seconds(event: cl.Event) -> float:
    """Return how long a launch took on the device, once it has finished; it was made within :meth:`Queue.profiling`."""
    return float(event.profile.end - event.profile.start) * 1e-9
