"""Tests of the launch that adds up the parts of a gradient (kernels/gradient/reduce.cl), of any number of elements."""

from __future__ import annotations

import numpy as np
import pytest

from blobnet.device.device import Device
from blobnet.execution.executor import bind
from blobnet.launch.kernel_call import Array, Batch
from blobnet.launch.work_sizes import sum_call
from blobnet.network.parameters import READ_OVERRUN
from tests.kinds import tuning_for


@pytest.mark.parametrize("splits", [1, 2, 4, 5, 33])
@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_sums_of_parts(device: Device, kind: str, splits: int) -> None:
    random = np.random.default_rng(splits)
    for elements in (1, 63, 64, 65, 199, 200, 255, 256, 257, 515, 1001):
        values = random.standard_normal((splits, elements)).astype(np.float32)
        partials, gradient = Array("partials", splits * elements), Array("gradient", elements)
        call = sum_call("sum", partials, gradient, splits, tuning_for(kind))
        buffers = {
            array.storage: device.memory.allocate(4 * (array.elements + READ_OVERRUN)) for array in (partials, gradient)
        }
        device.memory.write(buffers["partials"], values)
        device.memory.write(buffers["gradient"], np.full(elements + READ_OVERRUN, 7, np.float32))
        for launch in bind(device, [call], buffers, Batch(1)):
            launch.enqueue()
        found = device.memory.read(buffers["gradient"], elements + READ_OVERRUN)
        bound = splits * np.finfo(np.float32).eps * np.abs(values).sum(0, np.float64)
        assert np.all(np.abs(found[:elements] - values.sum(0, np.float64)) <= bound), elements
        assert np.all(found[elements:] == 7)
