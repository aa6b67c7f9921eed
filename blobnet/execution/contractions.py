"""Programs of contractions on devices."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from blobnet.contraction.calls import launches
from blobnet.contraction.form import Program
from blobnet.contraction.lowering import LoweredProgram, lower
from blobnet.contraction.schedule import Schedule
from blobnet.contraction.search import best_schedule
from blobnet.contraction.table import Table
from blobnet.device.device import Device
from blobnet.errors import BuildError, warn
from blobnet.execution.executor import MAX_CAUSE, bind
from blobnet.launch.kernel_call import Array, Batch
from blobnet.launch.work_sizes import group_size
from blobnet.memory.blob import FLOAT32
from blobnet.support.lru import LRUCache

#: Elements behind every buffer's: loads of every second element read one more than they take.
SPARE = 16


class Compiled:
    """A program with memory on a device.

    Args:
        device: where to run.
        lowered: what to run.
    """

    def __init__(self, device: Device, lowered: LoweredProgram) -> None:
        self.device, self.lowered = device, lowered
        self.buffers = {
            name: device.memory.allocate(FLOAT32.itemsize * (size + SPARE)) for name, size in lowered.elements.items()
        }
        operands = {name: Array(name, size) for name, size in lowered.elements.items()}
        names = ", ".join(tensor.name for tensor in lowered.program.outputs)
        self.calls = launches(lowered, operands, f"contraction {names}")
        self.launches = bind(device, self.calls, self.buffers, Batch(1))

    def write(self, arrays: Mapping[str, npt.ArrayLike]) -> None:
        """Gives the inputs their values."""
        for tensor in self.lowered.program.inputs:
            self.device.memory.write(
                self.buffers[tensor.name], self.lowered.layouts[tensor.name].filled(arrays[tensor.name])
            )

    def launch(self) -> None:
        """Puts all launches into the queue."""
        for item in self.launches:
            item.enqueue()

    def read(self) -> dict[str, npt.NDArray[np.float32]]:
        """The outputs."""
        found = {}
        for tensor in self.lowered.program.outputs:
            layout = self.lowered.layouts[tensor.name]
            memory: npt.NDArray[Any] = self.device.memory.read(self.buffers[tensor.name], layout.elements)
            found[tensor.name] = np.ascontiguousarray(layout.view(memory)).reshape(tensor.shape)
        return found

    def run(self, arrays: Mapping[str, npt.ArrayLike]) -> dict[str, npt.NDArray[np.float32]]:
        """The outputs for these inputs."""
        self.write(arrays)
        self.launch()
        return self.read()


def compiled(device: Device, program: Program, choose: Callable[[Table], Schedule] | None = None) -> Compiled:
    """A program, compiled for a device; under schedules that ``choose`` gives, or the best that the search finds."""
    if choose is None:
        choose = partial(best_schedule, device=device.model)
    try:
        return Compiled(device, lower(program, choose, most_threads=group_size(device.model)))
    except BuildError as error:
        # What any compiler takes: one result a work-item, without vectors or local memory.
        names = ", ".join(tensor.name for tensor in program.outputs)
        rule = f"{device.info.name} must build the kernels of the contraction; simpler ones take their place"
        warn(f"contraction {names}", rule, cause=textwrap.shorten(str(error), MAX_CAUSE))
        return Compiled(device, lower(program, lambda table: Schedule()))


def run(
    program: Program, arrays: Mapping[str, npt.ArrayLike], device: Device | str | None = None
) -> dict[str, npt.NDArray[np.float32]]:
    """The outputs of a program for its inputs, by name; it is compiled once for each device."""
    on = device if isinstance(device, Device) else _device(device)
    found = _compiled.get((on, program))
    if found is None:
        found = _compiled[on, program] = compiled(on, program)
    return found.run(arrays)


#: Programs with their memory, by device.
_compiled: LRUCache[tuple[Device, Program], Compiled] = LRUCache(16)


@cache
def _device(name: str | None) -> Device:
    return Device(name)
