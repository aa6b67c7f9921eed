"""Forward convolutions at a stride of 2 that read every second value of the input as it lies."""

from __future__ import annotations

import pytest

from blobnet.device.device import Device
from blobnet.layers import Conv1D, Conv2D
from blobnet.memory.blob import Shape
from tests.kinds import tuning_for
from tests.layers.layer_contract import ContractReport
from tests.layers.test_convolution import contract

Case = tuple[Conv1D | Conv2D, Shape, int]

#: Layers, inputs and samples.
CASES: dict[str, Case] = {
    "an image": (Conv2D(13, 3, stride=2, padding=1), Shape(3, 37, 41), 2),
    "rows of several vectors, the last two of which overlap": (Conv2D(9, 3, stride=2, padding=1), Shape(3, 5, 75), 1),
    "rows of less than the most lanes": (Conv2D(5, (2, 5), stride=2, padding=((0, 1), (2, 2))), Shape(4, 9, 11), 3),
    "another stride down": (Conv2D(7, 3, stride=(3, 2), padding=1, bias="position"), Shape(2, 10, 34), 2),
    "no stride down": (Conv2D(4, (3, 2), stride=(1, 2), bias=False), Shape(5, 6, 21), 2),
    "one tap": (Conv2D(17, 1, stride=2), Shape(33, 6, 35), 2),
    "groups, dilation": (Conv2D(6, 3, stride=2, groups=3, dilation=(2, 3), padding="same"), Shape(6, 12, 40), 1),
    "one row": (Conv1D(3, 4, stride=2, padding=(2, 1)), Shape(2, 67), 4),
    "one cell": (Conv2D(2, 3, stride=2, padding=1), Shape(1, 1, 1), 1),
}


#: Of a CPU, whatever the device, without its other kernels.
STRIDED = tuning_for("cpu", only={"strided"})


def check_kernels(report: ContractReport) -> None:
    """Asserts that nothing was copied forward."""
    assert report.runs
    for run in report.runs.values():
        assert [call.kernel for call in run.calls["forward"]] == ["convolution/forward_flat"]


@pytest.mark.parametrize("case", CASES)
def test_odd_shapes(device: Device, case: str) -> None:
    layer, shape, count = CASES[case]
    check_kernels(contract(device, layer, shape, ["own pitches"], count=count, absolute=4e-5, tuning=STRIDED))


def test_every_arrangement(device: Device) -> None:
    layer, shape = Conv2D(5, (2, 3), stride=2, padding="same", bias="position"), Shape(4, 5, 9)
    report = contract(device, layer, shape, fused=("sigmoid",), tuning=STRIDED)
    assert {"tight", "one pitch", "own pitches"} <= set(report.runs)
    check_kernels(report)
