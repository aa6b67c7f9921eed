"""Runs a plan on a device: buffers, and a fixed list of launches with their arguments set once."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from blobnet.blob import FloatArray
from blobnet.device import Device
from blobnet.errors import PromiseError
from blobnet.kernel_call import Blob, KernelCall
from blobnet.planner import Plan


def check_by_default() -> bool:
    """Whether $BLOBNET_CHECK asks for debug mode."""
    return os.environ.get("BLOBNET_CHECK", "0") not in ("", "0")


@dataclass(frozen=True)
class Launch:
    """A call bound to a kernel object of its own, for one batch size."""

    call: KernelCall
    kernel: Any
    global_size: tuple[int, int, int]
    local_size: tuple[int, int, int]


class Executor:
    """A plan with memory on a device.

    Args:
        device: where to run.
        plan: what to run.
        shared: buffers to use besides, or instead of, own ones, by name: parameters of several plans, optimizer state.
        debug: check the promise after every launch; $BLOBNET_CHECK if None.
    """

    def __init__(
        self, device: Device, plan: Plan, shared: Mapping[str, Any] | None = None, *, debug: bool | None = None
    ) -> None:
        self.device = device
        self.plan = plan
        self.debug = check_by_default() if debug is None else debug
        self.buffers: dict[str, Any] = dict(shared or {})
        for name, buffer in plan.buffers.items():
            if name not in self.buffers:
                self.buffers[name] = device.allocate(buffer.bytes(plan.batch_size))
        self._placed = {**self.buffers, **{name: self.buffers[buffer] for name, buffer in plan.placed.items()}}
        self._bound: dict[tuple[str, int], list[Launch]] = {}

    # -- launches ----------------------------------------------------------------------------------------------------

    def bind(self, calls: Iterable[KernelCall], count: int) -> list[Launch]:
        """Kernel objects with all arguments set, for a batch of ``count``."""
        launches = []
        for call in calls:
            source = call.source
            kernel = self.device.kernel(call.assemble(), source.entry, f"kernel {call.kernel} ({call.label})")
            arguments: list[Any] = []
            for role in source.blobs:
                blob = call.blobs[role]
                arguments += [self._placed[blob.storage], np.int32(blob.layout.unit_offset)]
            for role in source.arrays:
                array = call.arrays[role]
                arguments += [self._placed[array.storage], np.int32(array.offset)]
            arguments += [np.int32(count)] * len(source.scalars)
            kernel.set_args(*arguments)
            launches.append(Launch(call, kernel, call.work_size(count), call.local_size or (1, 1, 1)))
        return launches

    def run(self, phase: str, count: int) -> None:
        """Launches one phase of the plan (``forward``, ``loss``, ``backward``) for a batch of ``count`` samples."""
        key = phase, count
        if key not in self._bound:
            self._bound[key] = self.bind(self.plan.phase(phase), count)
        self.launch(self._bound[key], count)

    def launch(self, launches: Sequence[Launch], count: int) -> None:
        """Puts bound launches into the queue; in debug mode checks each of them.

        Raises:
            PromiseError: a launch broke the promise (debug mode).
        """
        if self.debug:
            for item in launches:
                self._launch_checked(item, count)
            return
        launch = self.device.launch
        for item in launches:
            launch(item.kernel, item.global_size, item.local_size)

    def _launch_checked(self, item: Launch, count: int) -> None:
        written = [
            item.call.blobs[role] for role, access in item.call.source.blobs.items() if access in ("write", "update")
        ]
        before = {blob.storage: self.memory(blob.storage) for blob in written}
        self.device.launch(item.kernel, item.global_size, item.local_size)
        self.device.finish()
        for storage in before:
            blobs = [blob for blob in written if blob.storage == storage]
            check_promise(item.call, blobs, before[storage], self.memory(storage), count)

    # -- reading and writing -----------------------------------------------------------------------------------------

    def memory(self, storage: str) -> FloatArray:
        """A host copy of the whole buffer that holds a storage, without its overrun."""
        buffer = self.plan.buffers[self.plan.placed[storage]]
        elements = buffer.elements + self.plan.batch_size * buffer.per_sample
        values: FloatArray = self.device.read(self._placed[storage], elements)
        return values

    def read_blob(self, blob: Blob, count: int) -> FloatArray:
        """The data of ``count`` samples of a blob: (count, units, height, width)."""
        elements = count * blob.layout.memory_elements
        values: FloatArray = self.device.read(self._placed[blob.storage], elements)
        return np.ascontiguousarray(blob.layout.data(values, count))

    def write_array(self, name: str, values: npt.NDArray[Any]) -> None:
        """Fills the start of a persistent buffer: ``samples``, ``labels``, ``step``."""
        self.device.write(self.buffers[name], values)


def check_promise(call: KernelCall, blobs: Sequence[Blob], before: FloatArray, after: FloatArray, count: int) -> None:
    """Raises PromiseError if a launch changed a cell that is not data of ``blobs``, or left a halo cell not 0."""
    allowed = np.zeros(after.size, dtype=bool)
    halo = np.zeros(after.size, dtype=bool)
    for blob in blobs:
        layout = blob.layout
        allowed[: count * layout.memory_elements] |= _data_mask(blob, count)
        plane = np.tile(layout.halo_mask(), layout.unit_count)
        for n in range(count):
            first = n * layout.memory_elements + layout.unit_offset * layout.unit_memory_elements
            halo[first : first + plane.size] |= plane
    changed = before.view(np.uint32) != after.view(np.uint32)
    for bad, rule in (
        (halo & (after != 0), "every halo cell must be exactly 0 after a launch"),
        (changed & ~allowed & ~halo, "a launch may change only the data of the blobs that it writes"),
    ):
        if bad.any():
            first = int(np.flatnonzero(bad)[0])
            raise PromiseError(
                f"{call.label} ({call.kernel})",
                rule,
                storage=blobs[0].storage,
                cell=_cell(blobs[0], first),
                value=after[first],
                before=before[first],
                cells=int(bad.sum()),
            )


def _data_mask(blob: Blob, count: int) -> npt.NDArray[np.bool_]:
    mask = np.zeros(count * blob.layout.memory_elements, dtype=bool)
    blob.layout.data(mask, count)[...] = True
    return mask


def _cell(blob: Blob, index: int) -> str:
    """An element of the storage as n, memory unit, memory row and memory column."""
    layout = blob.layout
    n, rest = divmod(index, layout.memory_elements)
    unit, rest = divmod(rest, layout.unit_memory_elements)
    row, column = divmod(rest, layout.unit_memory_width)
    return f"(n={n}, memory unit={unit}, memory row={row}, memory column={column})"
