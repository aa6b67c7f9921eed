"""``blobnet`` on a driver that fails: what OpenCL says where a device is lost, hangs, or has no memory left.

    python -m tests.faults.failing_driver FAULT NUMBER train lenet5 ...

FAULT is the name of one of OpenCL's errors, which every launch and copy gives from the NUMBERth launch on; ``HANG``,
with which they do not return; or ``NEIGHBOUR``, which leaves so many bytes for all buffers.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import pyopencl as cl

from blobnet.command_line.main import main
from blobnet.device import opencl

#: What a device is asked to do, and how one waits for it.
_CALLS = ("enqueue_nd_range_kernel", "enqueue_copy", "enqueue_fill_buffer", "enqueue_marker", "enqueue_barrier")


def _error(kind: type[cl.Error], routine: str, code: int) -> cl.Error:
    record: Any = cl._cl._ErrorRecord(routine, code, "")
    return kind(record)


def lose(fault: str, number: int) -> None:
    """Has all calls fail from a launch on."""
    launches = 0

    def failing(name: str, usual: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **settings: Any) -> Any:
            nonlocal launches
            launches += name == _CALLS[0]
            if launches < number:
                return usual(*arguments, **settings)
            if fault == "HANG":
                threading.Event().wait()
            raise _error(cl.RuntimeError, f"cl{name}", getattr(cl.status_code, fault))

        return call

    opencl.function = lambda *_: None  # type: ignore[assignment]  # Of a GPU, launches go by pyopencl.
    for name in _CALLS:
        setattr(cl, name, failing(name, getattr(cl, name)))


def crowd(room: int) -> None:
    """Leaves so many bytes for all buffers that are alive."""
    usual, left = cl.Buffer, room

    class Buffer(usual):  # type: ignore[misc, valid-type]
        def __init__(self, context: Any, flags: int, size: int = 0, hostbuf: Any = None) -> None:
            nonlocal left
            self.taken = size or hostbuf.nbytes
            left -= self.taken
            if left < 0:
                raise _error(cl.MemoryError, "clCreateBuffer", cl.status_code.MEM_OBJECT_ALLOCATION_FAILURE)
            super().__init__(context, flags, size, hostbuf)

        def __del__(self) -> None:
            nonlocal left
            left += self.taken

    cl.Buffer = Buffer  # type: ignore[misc]


if __name__ == "__main__":
    fault, number, *arguments = sys.argv[1:]
    if fault == "NEIGHBOUR":
        crowd(int(number))
    else:
        lose(fault, int(number))
    sys.exit(main(arguments))
