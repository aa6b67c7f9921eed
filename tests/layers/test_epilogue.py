"""Epilogues of convolutions: a batch norm, a residual and an activation in the launch, for every forward kernel."""

from __future__ import annotations

import pytest

from blobnet.blob import Shape
from blobnet.device import Device
from blobnet.layers import Conv1D, Conv2D
from tests.kinds import tuning_for
from tests.layers.layer_bench import Arrangement
from tests.layers.test_convolution import contract

#: Layers by the kernel that they should choose, the class of device it is for, and their input's shape.
LAYERS: dict[str, tuple[Conv1D | Conv2D, str, Shape]] = {
    "forward_flat": (Conv2D(5, 3, padding=1), "cpu", Shape(3, 6, 7)),
    "forward_flat, split": (Conv2D(5, (2, 3), stride=2, padding=1, groups=5, bias=False), "cpu", Shape(5, 4, 41)),
    "forward_depthwise": (Conv2D(5, 3, stride=2, padding=1, groups=5), "cpu", Shape(5, 9, 41)),
    "forward_tiled": (Conv2D(45, 3, stride=(1, 2), padding="same"), "gpu", Shape(6, 5, 9)),
    "forward_strip": (Conv2D(6, 3, groups=6, padding=1, bias=False), "gpu", Shape(6, 7, 5)),
    "forward_dot": (Conv1D(5, 3), "gpu", Shape(130, 3)),
    "forward_dot_local": (Conv1D(5, 3, padding=1), "gpu", Shape(130, 2)),
    "forward_gathered": (Conv2D(7, 3, stride=(1, 2), padding=1), "cpu", Shape(5, 4, 3)),
    "forward_panels": (Conv2D(27, 3, stride=(1, 2), padding=1), "cpu", Shape(9, 6, 7)),
    "winograd_result": (Conv2D(35, 3, padding=1), "gpu", Shape(6, 7, 9)),
}
#: The implementations of kernels for which there are better ones at sizes that are good for tests.
ONLY = {
    "forward_flat": {"direct"},
    "forward_flat, split": {"direct"},
    "forward_depthwise": {"depthwise"},
    "forward_gathered": {"gathered"},
    "forward_panels": {"panels"},
    "winograd_result": {"winograd"},
}
EVERYTHING = (
    Arrangement("one pitch", same_pitch=True, beside=True, training=False, norm=True, residual=True, activation="relu"),
    Arrangement("own pitches", training=False, norm=True, residual=True, activation="sigmoid"),
)
RESIDUAL = Arrangement("residual", same_pitch=True, training=False, residual=True)
NORM = Arrangement("norm", same_pitch=True, training=False, norm=True)


def check(device: Device, kernel: str, layer: Conv1D | Conv2D, *arrangements: Arrangement) -> None:
    _, kind, shape = LAYERS[kernel]
    tuning = tuning_for(kind, only=ONLY.get(kernel, ()))
    report = contract(device, layer, shape, arrangements, tuning=tuning, absolute=5e-5)
    assert len(report.runs) == len(arrangements)
    for run in report.runs.values():
        call = run.calls["forward"][-1]
        assert call.kernel == f"convolution/{kernel.partition(',')[0]}"
        folds = [call.kernel for call in run.calls["forward"]].count("normalization/fold")
        assert folds == run.arrangement.norm
        assert call.macros["HAS_RESIDUAL"] == run.arrangement.residual


@pytest.mark.parametrize("kernel", LAYERS)
def test_norm_residual_and_activation(device: Device, kernel: str) -> None:
    check(device, kernel, LAYERS[kernel][0], *EVERYTHING)


@pytest.mark.parametrize("kernel", ["forward_flat", "forward_panels", "forward_tiled"])
def test_each_alone(device: Device, kernel: str) -> None:
    check(device, kernel, LAYERS[kernel][0], RESIDUAL, NORM)


@pytest.mark.parametrize("kernel", ["forward_flat", "forward_panels", "forward_strip"])
def test_residual_behind_a_bias_for_each_position(device: Device, kernel: str) -> None:
    layer = LAYERS[kernel][0]
    positioned = type(layer)(layer.filters, layer.kernel_size, 1, layer.padding, groups=layer.groups, bias="position")
    assert "norm" not in positioned.fuses
    check(device, kernel, positioned, RESIDUAL)
