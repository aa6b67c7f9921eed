"""pyopencl, which this module alone imports, and OpenCL's functions in C beside it.

Through ctypes these let go of Python's lock, and take what pyopencl has no names for.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import itertools
from collections.abc import Callable
from typing import Any, cast

from blobnet.errors import DeviceError

try:
    import pyopencl as cl
except ImportError as error:  # pragma: no cover - pyopencl is a core dependency
    raise DeviceError("OpenCL", "pyopencl must be importable", cause=error, hint="pip install pyopencl") from error

#: With pyopencl itself, so that whoever misses it is told so.
__all__ = [
    "CREATE_BUFFER",
    "GET_INFO",
    "OPAQUE_FD",
    "SET_ARGUMENT",
    "SET_POINTER",
    "UUID",
    "UUID_BYTES",
    "cl",
    "function",
    "keep_all",
    "touch_kernels",
]


def function(name: str, *types: Any) -> Callable[..., int] | None:
    """A function of OpenCL, from the loader that pyopencl uses; None if it cannot be had."""
    with contextlib.suppress(OSError, AttributeError):
        # NOTE: a library's handle finds what the library itself was linked with (not on Windows).
        function = getattr(ctypes.CDLL(cl._cl.__file__), name)
        function.argtypes = types or None
        return cast(Callable[..., int], function)
    return None


SET_ARGUMENT = function("clSetKernelArg", ctypes.c_void_p, ctypes.c_uint, ctypes.c_size_t, ctypes.c_char_p)
SET_POINTER = function("clSetKernelArgSVMPointer", ctypes.c_void_p, ctypes.c_uint, ctypes.c_void_p)
GET_INFO = function(
    "clGetDeviceInfo", ctypes.c_void_p, ctypes.c_uint, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_void_p
)
CREATE_BUFFER = function(
    "clCreateBufferWithProperties",
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_uint64,
    ctypes.c_size_t,
    ctypes.c_void_p,
    ctypes.c_void_p,
)
if CREATE_BUFFER is not None:
    cast(Any, CREATE_BUFFER).restype = ctypes.c_void_p
_CREATE_KERNELS = function("clCreateKernelsInProgram", ctypes.c_void_p, ctypes.c_uint, ctypes.c_void_p, ctypes.c_void_p)
_RELEASE_KERNEL = function("clReleaseKernel", ctypes.c_void_p)
#: CL_DEVICE_UUID_KHR, its bytes, and CL_EXTERNAL_MEMORY_HANDLE_OPAQUE_FD_KHR, which pyopencl has no names for.
UUID, UUID_BYTES, OPAQUE_FD = 0x106A, 16, 0x2060


def touch_kernels(program: cl.Program) -> None:
    """Makes the kernels of a program, and forgets them: Intel's runtime reads half of a binary for the first one.

    NOTE: pyopencl holds Python's lock when it makes a kernel; ctypes does not.
    """
    if _CREATE_KERNELS is None or _RELEASE_KERNEL is None:
        return
    count = ctypes.c_uint()
    if _CREATE_KERNELS(program.int_ptr, 0, None, ctypes.byref(count)) == cl.status_code.SUCCESS:
        kernels = (ctypes.c_void_p * count.value)()
        if _CREATE_KERNELS(program.int_ptr, count, kernels, None) == cl.status_code.SUCCESS:
            for kernel in kernels:
                _RELEASE_KERNEL(kernel)


def keep_all() -> None:
    """Has this process, which was forked, free nothing that it has of its parent's, not even at its end.

    NOTE: what a fork frees NVIDIA's driver takes from its parent: a fork that ended as Python does crashed, and the
    parent hung (driver 580.159). To keep contexts, queues, buffers, programs, kernels and events alone mended the
    first, but not the second. And drivers' destructors, which C runs when Python has ended, wait for threads that are
    not here (Intel's 2026.22.10): glibc is told to end the process before it comes to them, with its status.
    """
    with contextlib.suppress(OSError, AttributeError):  # Other C libraries have no such function.
        libc = ctypes.CDLL(None)
        libc.on_exit(libc._exit, None)
    known = gc.get_objects()
    own = {kind for kind in vars(cl._cl).values() if isinstance(kind, type)}
    referents = gc.get_referents(*known)  # Objects of pyopencl are not known to the collector.
    kept = known, list(itertools.compress(referents, map(own.__contains__, map(type, referents))))
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))


def _keep_invokers_in_memory() -> None:
    """Has pyopencl generate its functions that call kernels once for each list of arguments, and keep none on the disk.

    NOTE: it makes them anew for each kernel's name, and keeps them in an SQLite file of pytools. Reading one takes
    0.2 ms; and no process can do anything without that file: not in a read-only home, not where it is damaged.
    """

    class Memory(dict[Any, Any]):
        store_if_not_present = dict.setdefault

        def __init__(self, *_: Any, **settings: Any) -> None:
            super().__init__()

    try:
        from pytools import persistent_dict
    except ImportError:
        return
    files: Any = persistent_dict
    usual = getattr(files, "WriteOncePersistentDict", Memory)
    files.WriteOncePersistentDict = Memory  # Some versions open the file as the module is loaded, whatever is set.
    try:
        from pyopencl import invoker
    except ImportError:
        return
    finally:
        files.WriteOncePersistentDict = usual
    module: Any = invoker
    module.invoker_cache = Memory()
    generate, known = module.generate_enqueue_and_set_args, dict[Any, Any]()

    def remembered(name: str, *arguments: Any, devs: Any, **settings: Any) -> Any:
        key = arguments, tuple(sorted(settings.items()))
        if key not in known:
            # A name of its own: pytools warns of two texts under one.
            known[key] = generate(f"kernel{len(known)}", *arguments, devs=devs, **settings)
        return known[key]

    module.generate_enqueue_and_set_args = remembered


_keep_invokers_in_memory()
