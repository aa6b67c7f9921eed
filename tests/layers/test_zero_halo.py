"""The kernel that makes memory of another geometry fit for a blob."""

from __future__ import annotations

import numpy as np
import pytest

from blobnet.device.device import Device
from blobnet.examination.measured import poison
from blobnet.execution.executor import Executor
from blobnet.launch.kernel_call import Blob
from blobnet.memory.blob import BlobLayout, Halo, Padding, Shape
from blobnet.network.graph import Graph
from blobnet.network.parameters import READ_OVERRUN, ParameterTable
from blobnet.planning import Buffer, Plan
from blobnet.planning.memory import zero_halo
from blobnet.planning.request import Request
from tests.kinds import tuning_for

LAYOUTS = [
    BlobLayout.padded(Shape(3, 5, 7), Halo((1, 2), (3, 1)), slack=5),
    BlobLayout.padded(Shape(2, 1, 90), Halo((0, 0), (2, 2)), pitch=95),
    BlobLayout.padded(Shape(4, 3, 3), Halo((0, 0), (0, 1))),
    BlobLayout.padded(Shape(1, 2, 200), Halo((1, 0), (0, 0)), slack=3),
    BlobLayout.padded(Shape(5, 1, 1), Halo((2, 2), (2, 2)), slack=1),
    BlobLayout.padded(Shape(3, 4, 2, 5), Halo((1, 2), (0, 1), (2, 1)), slack=3),
    BlobLayout.padded(Shape(2, 2, 1, 1), Halo((0, 1), (0, 0), (0, 0))),
    BlobLayout.padded(Shape(3, 5, 7), Halo((1, 2), (3, 1)), padding=Padding(own_zeros=True)),
    BlobLayout.padded(Shape(2, 3, 2), Halo((0, 0), (2, 1)), padding=Padding(own_zeros=True)),
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=range(len(LAYOUTS)))
@pytest.mark.parametrize("device_class", ["cpu", "gpu"])
def test_exactly_the_halo_becomes_zero(device: Device, layout: BlobLayout, device_class: str) -> None:
    count = 2
    call = zero_halo(Blob("a", layout), tuning_for(device_class).model)
    plan = Plan(
        Request(Graph(()), count + 1, tuning=tuning_for(device_class), parameters=ParameterTable({}, (), 1)),
        calls=(("forward", call),),
        buffers={"a": Buffer("a", 0, layout.memory_elements)},
        placed={"a": "a"},
        outputs={},
        deltas={},
    )
    executor = Executor(device, plan, debug=True)
    before = poison((count + 1) * layout.memory_elements + READ_OVERRUN)
    device.memory.write(executor.buffers["a"], before)
    executor.run("forward", count)
    expected = before.copy()
    expected[: count * layout.memory_elements].reshape(-1, layout.unit_memory_elements)[:, layout.halo_mask()] = 0
    after = device.memory.read(executor.buffers["a"], before.size)
    np.testing.assert_array_equal(after.view(np.uint32), expected.view(np.uint32))
