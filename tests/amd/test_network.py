"""A training step of a small network as AMD's machine code, against the CPU device."""

from __future__ import annotations

import numpy as np
import pytest

import blobnet as bn
from blobnet import layers
from blobnet.device.device import Device
from blobnet.errors import DeviceError
from tests.amd.compiler import missing

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))


@pytest.mark.parametrize("lanes", [32, 64])
def test_gradients_of_a_small_network(lanes: int) -> None:
    from tests.amd.device import MachineDevice, host_device

    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((5, 3, 9, 7)).astype(np.float32), rng.integers(0, 4, 5)
    found = []
    for device in (Device(host_device()), MachineDevice(lanes=lanes)):
        model = bn.Sequential(
            [
                layers.Input(units=3, height=9, width=7),
                layers.Conv2D(8, 3, padding="same", activation="relu"),
                layers.MaxPool2D(2),
                layers.Flatten(),
                layers.Dense(4),
            ]
        )
        model.initialize(seed=1)
        found.append(model.gradients(x, y, loss=bn.losses.CrossEntropy(), device=device))
    ours, theirs = found
    assert set(ours) == set(theirs)
    for name, values in ours.items():
        np.testing.assert_allclose(theirs[name], values, rtol=1e-4, atol=1e-6, err_msg=name)


def test_a_store_outside_the_buffers_is_named() -> None:
    from tests.amd.device import MachineDevice

    device = MachineDevice()
    source = "__kernel void far(__global float *to) { to[get_global_id(0) + 1000000] = 1; }"
    kernel = device.programs.kernel(source, "far", "kernel far")
    device.queue.set_argument(kernel, 0, device.memory.allocate(64))
    with pytest.raises(DeviceError, match=r"outside all buffers of the launch.*global_store_b32"):
        device.queue.prepare(kernel, (32,), (32,))()


@pytest.mark.parametrize("barrier", ["barrier(CLK_LOCAL_MEM_FENCE);", ""])
def test_a_missing_barrier_shows(monkeypatch: pytest.MonkeyPatch, barrier: str) -> None:
    from tests.amd.device import MachineDevice
    from tests.amd.launching import TURN

    monkeypatch.setenv(TURN, "3")
    device = MachineDevice()
    source = f"""__kernel __attribute__((reqd_work_group_size(128, 1, 1))) void turned(__global float *to) {{
        __local float kept[128];
        kept[get_local_id(0)] = get_local_id(0);
        {barrier}
        to[get_local_id(0)] = kept[127 - get_local_id(0)];
    }}"""
    kernel, to = device.programs.kernel(source, "turned", "kernel turned"), device.memory.allocate(512)
    device.queue.set_argument(kernel, 0, to)
    device.queue.prepare(kernel, (128,), (128,))()
    assert np.array_equal(device.memory.read(to, 128), np.arange(128)[::-1]) == bool(barrier)
