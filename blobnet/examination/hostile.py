"""The memory of a whole plan made as hostile as a bench's: canaries around every buffer, NaN where nothing is yet."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from blobnet.device.device import Device
from blobnet.examination.measured import halo_cells, poison, require_untouched
from blobnet.execution.executor import Executor
from blobnet.launch.kernel_call import Blob


def poison_unset(executor: Executor) -> None:
    """Fills with NaN what an executor's calls must set before they read it, and what only vector loads touch.

    That is all but the halos of blobs, which are 0 from the start, what the host fills, and gradients, between which
    there are zeros. Each buffer has a NaN of its own.
    """
    plan, count = executor.plan, executor.plan.batch_size
    blobs, accesses = defaultdict[str, set[Blob]](set), {"gradients": "update"}
    for _, call in plan.calls:
        for role, array in call.arrays.items():
            accesses.setdefault(array.storage, call.source.arrays[role] if array.persistent else "write")
        for blob in call.blobs.values():
            blobs[plan.placed[blob.storage]].add(blob)
    for number, (name, buffer) in enumerate(plan.buffers.items()):
        memory, kind = executor.buffers[name], buffer.type
        values = executor.device.memory.read(memory, memory.size // kind.number_size, kind.dtype)
        unset = np.ones(values.size, bool)
        if accesses.get(name, "write") != "write":  # At first.
            unset[: kind.cell * buffer.size(count)] = False
        for blob in blobs[name]:
            halo = halo_cells(blob, count)
            unset[: halo.size][halo] = False
        values[unset] = poison(1, number, kind)
        executor.device.memory.write(memory, values)


def require_canaries(device: Device, executor: Executor, where: str) -> None:
    """Raises PromiseError if anything wrote around a buffer that a ``guarding`` device has allocated."""
    names = {id(buffer): name for name, buffer in executor.buffers.items()}
    for guarded in device.memory.guarded:
        require_untouched(guarded, f"{where}: buffer '{names.get(id(guarded.buffer), 'of no name')}'")
