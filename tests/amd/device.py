"""A device whose kernels run as RDNA 3 machine code in the interpreter, on a CPU device's memory.

    BLOBNET_TEST_DEVICES=gfx1100 python -m pytest -n 0 tests/layers/test_pooling.py

runs tests on it (tests/conftest.py), gfx1100-wave64 in waves of 64. Plans and kernels are those for an AMD GPU; memory
and copies are the CPU's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyopencl as cl

from blobnet.device.compiler import BUILD_OPTIONS, Compiler
from blobnet.device.device import Device
from blobnet.device.discovery import DeviceInfo, choose, devices
from blobnet.device.memory import Memory
from blobnet.device.programs import Programs
from blobnet.device.queue import Queue
from blobnet.errors import BuildError, DeviceError
from blobnet.hardware.device_model import Answers, model_of
from tests.amd.code_object import CodeObject
from tests.amd.compiler import TARGET, CompileError, compiled, missing
from tests.amd.decoder import UnknownInstructionError
from tests.amd.launching import Counts, LaunchError, run
from tests.amd.machine import Traffic

#: What ROCm's driver answers for a Radeon RX 7600, of 16 work-group processors.
_RADEON = Answers(
    TARGET,
    "Advanced Micro Devices, Inc.",
    "AMD Accelerated Parallel Processing",
    compute_units=16,
    group_size=256,
    local_memory=1 << 16,
)
#: What plans and kernels are for, by the lanes of a wave: of 64, an Instinct MI210. Its kernels run as RDNA 3
#: code in such waves, since the interpreter knows no other.
ANSWERS = {32: _RADEON, 64: replace(_RADEON, name="gfx90a", compute_units=104)}


class MachineKernel:
    """A kernel with its arguments, as launches bind them."""

    def __init__(self, code: CodeObject, entry: str) -> None:
        self.code, self.function_name = code, entry
        self.arguments: dict[int, Any] = {}


class MachineDevice(Device):
    """The device.

    Args:
        info: the CPU device that lends its memory; as for Device if None.
        lanes: of a wave, 32 or 64.

    Attributes:
        lanes: of a wave.
        counts_traffic: whether launches count what they do to memory.
        sampled: of how many groups one runs, to count alone: what they compute is wrong then.
        counts: of the last launch; None before it.

    Raises:
        DeviceError: the compiler or its libraries are not installed, or the device is no CPU.
    """

    def __init__(self, info: DeviceInfo | str | None = None, lanes: int = 32) -> None:
        if (absent := missing()) is not None:
            raise DeviceError(TARGET, absent)
        host = info if isinstance(info, DeviceInfo) else choose(info) if info else host_device()
        if not host.is_host:
            raise DeviceError(TARGET, "a CPU device must lend its memory", device=host.name)
        answers = ANSWERS[lanes]
        own = replace(host, name=answers.name, kind="gpu", platform=answers.platform, driver="tests/amd")
        vars(own).update(answers=answers, model=model_of(answers), reads_host=False)
        super().__init__(own)
        self.lanes = lanes
        self.counts_traffic, self.sampled = False, 1
        self.counts: Counts | None = None
        self.queue = _Queue(self)
        self.memory = Memory(self.queue)
        self.programs = _Programs(self.queue.context, own)
        self.programs.compiler = _Compiler(self.queue.context, own, lanes)


class _Compiler(Compiler):
    def __init__(self, context: cl.Context, info: DeviceInfo, lanes: int) -> None:
        super().__init__(context, info)
        self._lanes = lanes

    def build(self, source: str, digest: str, what: str) -> Any:
        try:
            return CodeObject(compiled(self.preamble + source, BUILD_OPTIONS, self._lanes))
        except (CompileError, UnknownInstructionError, ValueError) as error:
            raise BuildError(what, f"{TARGET} must build the kernel", cause=error) from error


class _Programs(Programs):
    builds_in_children = False

    def kernel(self, source: str, entry: str, what: str) -> Any:
        code: Any = self.build(source, what)
        if entry not in code.kernels:
            raise BuildError(what, f"{TARGET} must find the kernel {entry!r} in the program")
        return MachineKernel(code, entry)


class _Queue(Queue):
    def __init__(self, device: MachineDevice) -> None:
        super().__init__(device.queue.context, device.info)
        self._device, self._enqueue = device, None

    def set_argument(self, kernel: Any, index: int, value: Any) -> None:
        kernel.arguments[index] = value

    def launch(
        self,
        kernel: Any,
        global_size: Sequence[int],
        local_size: Sequence[int] | None,
        queue: cl.CommandQueue | None = None,
    ) -> cl.Event:
        device, queue = self._device, queue or self.handle
        self.transfers.finish()
        values = [kernel.arguments[index] for index in range(len(kernel.arguments))]
        buffers = {value.int_ptr: value for value in values if isinstance(value, cl.Buffer)}
        with contextlib.ExitStack() as stack:
            mapped = {key: stack.enter_context(_mapped(queue, buffer)) for key, buffer in buffers.items()}
            given = [mapped[value.int_ptr].ctypes.data if isinstance(value, cl.Buffer) else value for value in values]
            regions = [(memory.ctypes.data, memory.nbytes) for memory in mapped.values()]
            model = device.model
            traffic = Traffic(banks=model.banks // 2, line=model.cache_line) if device.counts_traffic else None
            sizes = global_size, local_size or (1, 1, 1)
            try:
                device.counts = run(kernel.code, kernel.function_name, given, *sizes, regions, traffic, device.sampled)
            except LaunchError as error:
                raise DeviceError(TARGET, f"{kernel.function_name} must launch", cause=error) from error
        return cl.enqueue_marker(queue)


@contextlib.contextmanager
def _mapped(queue: cl.CommandQueue, buffer: cl.Buffer) -> Iterator[Any]:
    """A buffer's memory, behind all that was put into the queue before."""
    flags = cl.map_flags.READ | cl.map_flags.WRITE
    memory, _ = cl.enqueue_map_buffer(queue, buffer, flags, 0, (buffer.size,), np.dtype("u1"))
    try:
        yield memory
    finally:
        memory.base.release(queue)


def host_device() -> DeviceInfo:
    """The first CPU device; the one that $BLOBNET_DEVICE names, if it is one."""
    chosen = choose()
    return chosen if chosen.is_host else next(info for info in devices() if info.is_host)
