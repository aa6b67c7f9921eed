"""What a device does when things go wrong, and that it can be used afterwards."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from blobnet import device as devices
from blobnet.device import Device
from blobnet.errors import BuildError, DeviceError, OptionError

GOOD = "__kernel void good(__global int *values) { values[get_global_id(0)] = 7; }"


def assert_usable(device: Device) -> None:
    buffer = device.allocate(16)
    kernel = device.kernel(GOOD, "good", "a good kernel")
    kernel.set_args(buffer)
    device.launch(kernel, (4, 1, 1), None)
    assert device.read(buffer, 4, np.int32).tolist() == [7, 7, 7, 7]


def test_a_kernel_that_does_not_build(device: Device) -> None:
    source = "__kernel void bad(__global float *values) { values[0] = no_such_name; }"
    with pytest.raises(BuildError) as caught:
        device.kernel(source, "bad", "kernel toy/bad (toy1 forward)")
    text = str(caught.value)
    assert text.startswith(
        f"kernel toy/bad (toy1 forward): {device.info.name} must build the kernel. Received options="
    )
    assert "no_such_name" in text.split("log=")[1]
    saved = re.search(r"source=([^,]+\.cl),", text)
    assert saved
    assert Path(saved.group(1)).read_text() == source
    Path(saved.group(1)).unlink()
    assert_usable(device)


def test_a_buffer_that_no_device_has_room_for(device: Device) -> None:
    with pytest.raises(DeviceError, match=r"the device must have room for a buffer. Received bytes=\d+.*smaller batch"):
        device.allocate(1 << 60)
    assert_usable(device)


def test_programs_are_built_once(device: Device) -> None:
    kernels = [device.kernel(GOOD, "good", "a good kernel") for _ in range(2)]
    assert kernels[0] != kernels[1], "every launch site has a kernel object of its own"
    assert kernels[0].program == kernels[1].program


def test_precision(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_compute_capability", lambda _: (8, 0))
    other = device.at("tf32")
    assert (other.tuning.precision, device.tuning.precision) == ("tf32", "fp32")
    assert other.at("fp32").tuning == device.tuning
    assert other.kernel(GOOD, "good", "a good kernel").program == device.kernel(GOOD, "good", "a good kernel").program
    rule = "precision: it must be fp32 or tf32. Received precision=tf16. Hint: did you mean 'tf32'"
    with pytest.raises(OptionError, match=re.escape(rule)):
        device.at("tf16")
    monkeypatch.setattr(devices, "_compute_capability", lambda _: (7, 5))
    rule = "precision: tf32 needs an NVIDIA GPU with tensor cores (compute capability 8.0). Received device="
    with pytest.raises(DeviceError, match=re.escape(rule)) as caught:
        device.at("tf32")
    assert str(caught.value).endswith("Hint: leave it at fp32, or choose another device.")
    assert device.at("fp32").tuning == device.tuning


def test_only_nvidia_has_a_compute_capability(device: Device) -> None:
    assert (devices._compute_capability(device.info) > (0, 0)) == ("NVIDIA" in device.info.platform)
