"""GPUs that are not here, on a CPU's driver: what is known of them, and what they refuse.

    BLOBNET_TEST_DEVICES="Radeon HD 5450" python -m pytest -n 0 tests/layers/test_pooling.py

runs tests on one (tests/conftest.py). Plans and kernels are those for the GPU, and its limits hold: what is beyond them
fails as it would there. Its compiler, its arithmetic and its speed are the CPU's.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyopencl as cl

from blobnet.device.compiler import preamble
from blobnet.device.device import Device
from blobnet.device.discovery import DeviceInfo, choose, devices
from blobnet.device.memory import Memory
from blobnet.device.programs import Programs
from blobnet.device.queue import Queue
from blobnet.errors import DeviceError, OutOfMemoryError
from blobnet.hardware.device_model import Answers

KIB, MIB = 1 << 10, 1 << 20
_LOOP = """__kernel void loop(__global float *value, const int rounds)
{
    float sum = *value;
    for (int i = 0; i < rounds; i++) {
        sum = sin(sum + i);
    }
    *value = sum;
}
"""
#: What a GPU without fp64 and images does not build.
ABSENT = re.compile(r"\b(double\d*|image[123]d\w*|sampler_t)\b")
_NVIDIA = "NVIDIA Corporation", "NVIDIA CUDA"
_AMD = "Advanced Micro Devices, Inc.", "AMD Accelerated Parallel Processing"
_INTEL = "Intel(R) Corporation", "Intel(R) OpenCL HD Graphics"
_ARM = "ARM", "ARM Platform"


def _gpu(
    name: str, driver: tuple[str, str], units: int, group: int, local: int, *, lanes: int = 0, **more: Any
) -> Answers:
    return Answers(name, *driver, compute_units=units, group_size=group, local_memory=local * KIB, lanes=lanes, **more)


#: What drivers answer. Where lanes are 0 the driver says nothing, and the table of architectures may.
GPUS = {
    answers.name: answers
    for answers in (
        _gpu("GeForce 9600 GT", _NVIDIA, 8, 512, 16, lanes=32, capability=(1, 1)),
        _gpu("GeForce GTX 1080", _NVIDIA, 20, 1024, 48, lanes=32, capability=(6, 1)),
        _gpu("Radeon HD 5450", ("Advanced Micro Devices, Inc.", _AMD[1]), 2, 128, 32, lanes=32),
        _gpu("Ellesmere", _AMD, 36, 256, 32, lanes=64),
        _gpu("gfx906", _AMD, 60, 256, 64, lanes=64),
        _gpu("gfx1030", _AMD, 36, 256, 64, lanes=32),
        _gpu("Intel(R) HD Graphics 5500", _INTEL, 24, 256, 64),
        _gpu("Intel(R) UHD Graphics 770", _INTEL, 32, 512, 64),
        _gpu("Intel(R) Arc(TM) A770 Graphics", _INTEL, 512, 1024, 64),
        _gpu("Mali-T760", _ARM, 8, 256, 32, local_is_cache=True),
        _gpu("Mali-G72", _ARM, 12, 384, 32, local_is_cache=True),
        _gpu("QUALCOMM Adreno(TM) 540", ("QUALCOMM", "QUALCOMM Snapdragon(TM)"), 4, 1024, 32),
        _gpu("Apple M1", ("Apple", "Apple"), 8, 256, 32),
        _gpu("V3D 4.2.14", ("Broadcom", "clvk"), 1, 256, 16, lanes=16),
        # No product: the least of everything, in lanes of one.
        _gpu("least", ("", ""), 1, 64, 16, lanes=1),
    )
}


@dataclass(frozen=True)
class Host:
    """How a host goes along with a device.

    Attributes:
        locks_pages: whether it has memory that the device may fetch from by itself.
        late: rounds of a loop that the device does before each copy to it; whatever is not behind that goes on.
        pause: seconds that the host waits before each launch.
    """

    locks_pages: bool = True
    late: int = 0
    pause: float = 0.0


class SimulatedDevice(Device):
    """The device.

    Args:
        gpu: a name of GPUS, or answers.
        host: how it is treated.
        memory: bytes; a buffer may have a quarter of them.
        info: the CPU device that computes; as for Device if None.

    Raises:
        DeviceError: a program takes what the GPU does not have, or a launch more than it allows.
        OutOfMemoryError: a buffer is larger than it allows.
    """

    def __init__(
        self,
        gpu: str | Answers,
        host: Host = Host(),
        *,
        memory: int = 1 << 31,
        info: DeviceInfo | str | None = None,
    ) -> None:
        answers = GPUS[gpu] if isinstance(gpu, str) else gpu
        lent = info if isinstance(info, DeviceInfo) else choose(info) if info else host_device()
        own = replace(
            lent,
            kind="gpu",
            compute_units=answers.compute_units,
            memory=memory,
            largest_allocation=memory // 4,
            local_memory=answers.local_memory,
        )
        vars(own).update(answers=answers, reads_host=False)
        super().__init__(own)
        self.queue = _Queue(self.queue.context, own, host)
        self.programs = _Programs(self.queue.context, own)
        # Not what a GPU's compiler is asked for.
        self.programs.compiler.preamble = preamble(lent.model)
        self.memory = Memory(self.queue)
        loop = None
        if host.late:
            loop = self.programs.kernel(_LOOP, "loop", "a loop")
            self._sum = self.memory.allocate(4)  # Kernels do not keep their arguments.
            loop.set_args(self._sum, np.int32(host.late))
        self.memory = _Memory(self.queue, host, loop)


class _Memory(Memory):
    def __init__(self, queue: Queue, host: Host, loop: cl.Kernel | None) -> None:
        super().__init__(queue)
        self._host, self._loop = host, loop

    def allocate_together(self, sizes: Any) -> list[cl.Buffer]:
        info = self.queue.info
        if max(sizes, default=0) > info.largest_allocation:
            rule = "a buffer must be no larger than CL_DEVICE_MAX_MEM_ALLOC_SIZE"
            raise OutOfMemoryError(info.name, rule, bytes=max(sizes), most=info.largest_allocation)
        return super().allocate_together(sizes)

    def host_memory(self, size: int) -> npt.NDArray[np.uint8]:
        return super().host_memory(size) if self._host.locks_pages else np.empty(size, np.uint8)

    def write_async(
        self, buffer: cl.Buffer, source: npt.NDArray[Any], offset: int = 0, after: cl.Event | None = None
    ) -> cl.Event:
        if self._loop is not None:
            # NOTE: no event of the host's: pyopencl waits for copies without letting other threads run.
            queue = self.queue.handle if after is None else self.queue.transfers
            cl.enqueue_nd_range_kernel(queue, self._loop, (1,), (1,))
        return super().write_async(buffer, source, offset, after)


class _Programs(Programs):
    builds_in_children = False

    def kernel(self, source: str, entry: str, what: str) -> cl.Kernel:
        if found := ABSENT.search(source):
            raise DeviceError(what, f"the device has no {found[0]}")
        kernel = super().kernel(source, entry, what)
        info = self.compiler.info
        needed = kernel.get_work_group_info(cl.kernel_work_group_info.LOCAL_MEM_SIZE, info.handle)
        if needed > info.local_memory:
            raise DeviceError(what, "it must fit the local memory", bytes=needed, most=info.local_memory)
        return kernel


class _Queue(Queue):
    def __init__(self, context: cl.Context, info: DeviceInfo, host: Host) -> None:
        super().__init__(context, info)
        self._host = host

    def prepare(
        self, kernel: cl.Kernel, global_size: tuple[int, ...], local_size: tuple[int, ...] | None
    ) -> Callable[[], object]:
        largest = self.info.model.group_size
        if math.prod(local_size or (1,)) > largest:
            rule = "a work-group must be no larger than CL_DEVICE_MAX_WORK_GROUP_SIZE"
            raise DeviceError(kernel.function_name, rule, local_size=local_size, most=largest)
        launch = super().prepare(kernel, global_size, local_size)
        if not self._host.pause:
            return launch

        def slowly() -> None:
            time.sleep(self._host.pause)
            launch()

        return slowly


def host_device() -> DeviceInfo:
    """The first CPU device; the one that $BLOBNET_DEVICE names, if it is one."""
    chosen = choose()
    return chosen if chosen.is_host else next(info for info in devices() if info.is_host)
