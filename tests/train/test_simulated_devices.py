"""GPUs that are not here (tests/simulated.py): plans and tiles keep within their limits, and numbers stay the same.

    BLOBNET_TEST_DEVICES=simulated python -m pytest tests/train/test_simulated_devices.py

trains on every one, which takes minutes, and not on one alone.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyopencl as cl
import pytest

import blobnet as bn
from blobnet import layers
from blobnet.device.device import Device
from blobnet.device.programs import Programs
from blobnet.errors import DeviceError, OutOfMemoryError, PlanError
from blobnet.hardware.device_model import model_of
from blobnet.implementations import IMPLEMENTATIONS, fourier
from blobnet.launch.kernel_call import KernelCall, Tuning
from blobnet.launch.task import TunedChoices
from blobnet.losses import CrossEntropy
from blobnet.model import Model
from blobnet.optimizers import SGD
from blobnet.planning import make_plan
from blobnet.training.weight_buffers import average_call
from tests.networks import run
from tests.simulated import GPUS, Host, SimulatedDevice, host_device
from tests.tiny import digits, share_of_memory, tiny_model

EVERY = os.environ.get("BLOBNET_TEST_DEVICES") == "simulated"
#: A last batch of 13.
X, Y = digits(45)


def network() -> Model:
    """Every kind of kernel: products with many units and with few, at strides, norms, pools, random numbers."""
    return bn.Sequential(
        [
            layers.Input(1, 8, 8),
            layers.Conv2D(8, 3, padding=1, activation="relu"),
            layers.Conv2D(8, 3, padding=1, groups=8, bias=False),
            layers.BatchNorm(),
            layers.Activation("relu"),
            layers.Conv2D(16, 3, stride=2, padding=1, bias=False),
            layers.BatchNorm(),
            layers.Activation("relu"),
            layers.Conv2D(16, 5, padding=2),
            layers.MaxPool2D(2),
            layers.Dropout(0.2),
            layers.Flatten(),
            layers.Dense(32, activation="tanh"),
            layers.Dense(10),
        ],
        seed=3,
    )


def wide() -> Model:
    """Products that go in splits, large planes, and one position with many units."""
    return bn.Sequential(
        [
            layers.Input(3, 70, 70),
            layers.Conv2D(64, 7, stride=2, padding=3, bias=False),
            layers.BatchNorm(),
            layers.AveragePool2D(3, stride=2, padding=1),
            layers.Conv2D(256, 3, padding=1),
            layers.Conv2D(64, 5, padding=2),
            layers.GlobalAveragePool(),
            layers.Dense(1000),
            layers.Activation("softmax"),
        ]
    )


def calls_of(model: Model, tuning: Tuning) -> Iterator[KernelCall]:
    """All launches of training, and of inference one by one."""
    optimizer = SGD(0.1, momentum=0.9, clip_norm=1.0)
    plan = make_plan(model.graph, 64, training=True, loss=CrossEntropy(), tuning=tuning)
    yield from (call for _, call in plan.calls)
    yield from optimizer.calls(plan.request.parameters, tuning.model)
    yield from average_call(plan.request.parameters, tuning.model)
    yield from (call for _, call in make_plan(model.graph, 1, training=False, tuning=tuning).calls)


# -- plans -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GPUS)
def test_work_groups_are_no_larger_than_allowed(name: str) -> None:
    model = model_of(GPUS[name])
    for net in (network(), wide()):
        calls = list(calls_of(net, Tuning(model)))
        items = [math.prod(call.local_size or (1,)) for call in calls]
        assert max(items) <= GPUS[name].group_size
        if model.is_simt:  # They are as large as they may be, up to what serves every GPU.
            assert max(items) >= min(128, model.group_size) * 3 // 4


@pytest.mark.parametrize("name", [name for name, item in IMPLEMENTATIONS.items() if item.lanes is not False])
def test_every_implementation_with_the_smallest_work_groups(name: str) -> None:
    tuning = Tuning(model_of(GPUS["least"]), choices=TunedChoices(only=frozenset({name})))
    for net in (network(), *([wide()] if name != "compiled" else [])):  # Whose schedules take seconds to find.
        assert max(math.prod(call.local_size or (1,)) for call in calls_of(net, tuning)) <= 64


@pytest.mark.parametrize("lanes", [1, 2, 4, 8, 16, 32, 64])
def test_lanes_of_any_width(lanes: int) -> None:
    model = model_of(replace(GPUS["least"], lanes=lanes))
    assert model.lanes == lanes
    assert max(math.prod(call.local_size or (1,)) for call in calls_of(network(), Tuning(model))) <= 64


def test_fourier_needs_its_local_memory_and_group() -> None:
    net = bn.Sequential([layers.Input(16, 40, 40), layers.Conv2D(16, 7, padding=3), layers.Flatten(), layers.Dense(2)])
    needed = fourier._LOCAL_BYTES
    for items, local_memory, expected in ((256, needed, True), (256, needed - 4, False), (128, needed, False)):
        answers = replace(GPUS["gfx906"], group_size=items, local_memory=local_memory)
        tuning = Tuning(model_of(answers), choices=TunedChoices(only=frozenset({"fourier"})))
        assert any("fourier" in call.kernel for call in calls_of(net, tuning)) == expected


# -- numbers -----------------------------------------------------------------------------------------------------------


def trained(model: Model, device: Device, **settings: Any) -> dict[str, np.ndarray]:
    given: dict[str, Any] = {"epochs": 2, "batch_size": 16, "optimizer": SGD(0.1, momentum=0.9, clip_norm=1.0)}
    model.fit(X, Y, device=device, seed=7, verbose=False, **given | settings)
    return model.weights


def check_equal(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    """Within rounding: in units of a parameter's largest value."""
    assert found.keys() == wanted.keys()
    for name, values in wanted.items():
        np.testing.assert_allclose(found[name], values, rtol=0, atol=1e-5 * np.abs(values).max(), err_msg=name)


def check_outputs(model: Model, device: Device) -> None:
    """Against the network in float64."""
    wanted = run(model.graph, model.weights, X.astype(np.float64), training=False)
    found = model.predict(X, device=device)
    np.testing.assert_allclose(found, wanted.reshape(found.shape), rtol=1e-4, atol=1e-4)


@pytest.mark.long
def test_training_with_the_least_of_everything() -> None:
    wanted, model, device = trained(tiny_model(), Device(host_device())), tiny_model(), SimulatedDevice("least")
    check_equal(trained(model, device), wanted)
    check_outputs(model, device)


@pytest.mark.long
@pytest.mark.skipif(not EVERY, reason="takes minutes: BLOBNET_TEST_DEVICES=simulated")
@pytest.mark.parametrize("name", GPUS)
def test_training_on_every_one(name: str) -> None:
    wanted, model, device = trained(network(), Device(host_device())), network(), SimulatedDevice(name)
    check_equal(trained(model, device), wanted)
    check_outputs(model, device)


# -- memory and the host -----------------------------------------------------------------------------------------------


def test_buffers_are_no_larger_than_allowed() -> None:
    net = bn.Sequential([layers.Input(1, 8, 8), layers.Conv2D(64, 3, padding=1), layers.Flatten(), layers.Dense(10)])
    tuning = Tuning(model_of(GPUS["least"]))
    plan = make_plan(net.graph, 32, training=True, loss=CrossEntropy(), tuning=tuning)
    memory = 4 * (plan.largest_allocation() - 4)
    with pytest.raises(PlanError, match=r"largest_buffer=.*largest_allocation="):
        net.fit(X, Y, device=SimulatedDevice("least", memory=memory), batch_size=32, verbose=False)


@pytest.mark.parametrize(
    ("host", "streams"),
    [
        (Host(locks_pages=False), True),
        (Host(late=200_000), True),
        (Host(late=200_000), False),
        (Host(pause=0.001), True),
    ],
    ids=str,
)
def test_the_host_does_not_change_numbers(monkeypatch: pytest.MonkeyPatch, host: Host, streams: bool) -> None:
    """Copies that come late, or ahead of all that the host has launched: bit by bit."""
    if streams:
        share_of_memory(monkeypatch, 0)
    wanted = trained(tiny_model(), SimulatedDevice("least"))
    found = trained(tiny_model(), SimulatedDevice("least", host))
    for name, values in wanted.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)


# -- what the device refuses -------------------------------------------------------------------------------------------


def test_limits_are_enforced() -> None:
    device = SimulatedDevice("least", memory=1 << 20)
    with pytest.raises(OutOfMemoryError, match=r"MAX_MEM_ALLOC_SIZE.*bytes=262148, most=262144"):
        device.memory.allocate((1 << 18) + 4)
    kernel = device.programs.kernel("__kernel void f(__global float *x) { x[get_global_id(0)] = 1; }", "f", "kernel f")
    device.queue.set_argument(kernel, 0, device.memory.allocate(512))
    with pytest.raises(DeviceError, match=r"MAX_WORK_GROUP_SIZE.*\(128, 1, 1\), most=64"):
        device.queue.prepare(kernel, (128, 1, 1), (128, 1, 1))
    with pytest.raises(DeviceError, match="kernel f: the device has no double"):
        device.programs.kernel("__kernel void f(__global double *x) { *x = 1; }", "f", "kernel f")
    source = """__kernel void f(__global float *x) {
        __local float kept[5000];
        kept[get_local_id(0)] = *x;
        barrier(CLK_LOCAL_MEM_FENCE);
        *x = kept[get_local_id(0) ^ 1];
    }"""
    built = Programs.kernel(device.programs, source, "f", "kernel f")
    local_memory = cl.kernel_work_group_info.LOCAL_MEM_SIZE
    if built.get_work_group_info(local_memory, device.info.handle) < 20000:
        pytest.skip("this driver does not say what local memory kernels take")
    with pytest.raises(DeviceError, match=r"must fit the local memory.*bytes=20000, most=16384"):
        device.programs.kernel(source, "f", "kernel f")
