"""The roofline of a device (Williams, Waterman and Patterson, *Roofline*, 2009), measured and not read off a sheet."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from blobnet.device.device import Device
from blobnet.device.queue import event_seconds
from blobnet.errors import OptionError
from blobnet.execution.executor import Launch
from blobnet.launch.kernel_call import Array, Batch, GlobalSize, KernelCall
from blobnet.launch.work_sizes import group_size, power_of_two
from blobnet.memory.blob import FLOAT32

#: Bytes that the bandwidth is measured on: several times the last cache of any host known, and of any other device.
_BYTES = {True: 1 << 28, False: 1 << 31}
#: Part of a device's memory that a measurement may take.
_MEMORY_PART = 8
#: Multiply-adds a chain and round.
_STEPS = 16
#: Bytes that a work-item moves, and work-items a compute unit, by whether they are lanes.
_ITEM_BYTES = {False: 1 << 20, True: 1 << 9}
_ITEMS = {False: 4, True: 2048}
#: Seconds that a launch of the peak should take at least: not many, as the best of several short ones is the device's,
#: and long ones are interrupted by whatever else runs there.
_SECONDS = 0.002
_REPEATS = {"bench/peak": 200, "bench/bandwidth": 10}


@dataclass(frozen=True)
class Roofline:
    """The peaks of a device: operations a second (a multiply-add is two), and bytes a second from and to its memory.

    ``bandwidth`` is the better of ``copy`` (bytes read and written) and ``read``: nothing moves its bytes faster.
    """

    flops: float
    copy: float
    read: float
    bandwidth: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "bandwidth", max(self.copy, self.read))

    def floor(self, flops: float, size: float) -> tuple[float, str]:
        """The seconds that ``flops`` and ``size`` bytes from and to memory take, and which of the two decides."""
        compute, memory = flops / self.flops, size / self.bandwidth
        return (compute, "compute") if compute >= memory else (memory, "memory")


def measure(device: Device) -> Roofline:
    """Measures a device; takes one to three seconds.

    Raises:
        DeviceError: the device fails.
        OptionError: the device is too fast, or too slow, for its clock to tell.
    """
    copy, read = (_bandwidth(device, writes=writes) for writes in (True, False))
    return Roofline(_peak(device), copy, read)


def _seconds(device: Device, call: KernelCall, memory: dict[str, object], count: int) -> float:
    """The best of a few runs, by the clock that layers are timed by: the device's on a GPU, the wall's on a CPU."""
    item = Launch(device, call, call.assemble(), memory, Batch(count))
    best = float("inf")
    with device.queue.profiling() as launch:
        for _ in range(_REPEATS[call.kernel]):
            start = time.perf_counter()
            event = launch(item.kernel, item.global_size, item.local_size)
            device.queue.finish()
            wall = time.perf_counter() - start
            best = min(best, wall if device.is_host else event_seconds(event))
    if best <= 0:
        raise OptionError(device.info.name, "the clock must advance while the device works", kernel=call.kernel)
    return best


def _peak(device: Device) -> float:
    kernel = "bench/peak"
    tunables = device.tuning.of(kernel)
    lanes, chains = tunables["MAXIMUM_LANES"], tunables["MAXIMUM_CHAINS"]
    local = group_size(device.info.model) if device.info.model.is_simt else 1
    items = _ITEMS[device.info.model.is_simt] * device.info.compute_units
    call = KernelCall(
        kernel,
        "peak",
        GlobalSize(items, per_sample=False),
        arrays={"RESULT": Array("result", items)},
        macros={"LANES": lanes, "CHAINS": chains, "STEPS": _STEPS},
        tunables=tunables,
        local_size=(local, 1, 1),
    )
    memory: dict[str, object] = {"result": device.memory.allocate(FLOAT32.itemsize * items)}
    rounds = 256
    while (seconds := _seconds(device, call, memory, rounds)) < _SECONDS and rounds < 1 << 24:
        rounds *= 4
    return 2 * lanes * chains * _STEPS * rounds * items / seconds


def _bandwidth(device: Device, *, writes: bool) -> float:
    kernel = "bench/bandwidth"
    tunables = device.tuning.of(kernel)
    local = tunables["GROUP_WIDTH"]
    item_bytes = _ITEM_BYTES[device.info.model.is_simt]
    room = min(_BYTES[device.is_host], device.info.memory // _MEMORY_PART, device.info.largest_allocation)
    lanes = power_of_two(room, tunables["MAXIMUM_LANES"])
    runs = item_bytes // (FLOAT32.itemsize * lanes)
    items = room // (item_bytes * local) * local
    elements = items * runs * lanes
    call = KernelCall(
        kernel,
        "bandwidth",
        GlobalSize(items, per_sample=False),
        arrays={"SOURCE": Array("source", elements), "TARGET": Array("target", elements if writes else items)},
        macros={"LANES": lanes, "RUNS": runs, "WRITES": int(writes)},
        tunables=tunables,
        local_size=(local, 1, 1),
    )
    memory: dict[str, object] = {"source": device.memory.allocate(FLOAT32.itemsize * elements)}
    memory["target"] = device.memory.allocate(FLOAT32.itemsize * (elements if writes else items))
    return FLOAT32.itemsize * elements * (2 if writes else 1) / _seconds(device, call, memory, 1)
