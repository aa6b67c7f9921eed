"""The kernel of a CPU for convolutions of units that are apart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from blobnet.device.device import Device
from blobnet.layers import Conv1D, Conv2D
from blobnet.memory.blob import Shape
from tests.kinds import tuning_for
from tests.layers.arranged import Arrangement
from tests.layers.test_convolution import contract

Case = tuple[Conv1D | Conv2D, Shape, int]

#: Of a CPU, whatever the device, without the kernels that may take small shapes.
TUNING = tuning_for("cpu", only={"depthwise"})
#: Layers, inputs and samples.
CASES: dict[str, Case] = {
    "rows of whole vectors": (Conv2D(3, 3, padding=1, groups=3), Shape(3, 5, 32), 2),
    "vectors that overlap": (Conv2D(5, 3, padding=1, groups=5, bias=False), Shape(5, 9, 21), 3),
    "stride 2": (Conv2D(4, 3, stride=2, padding=1, groups=4), Shape(4, 15, 38), 2),
    "stride 2, an even filter": (Conv2D(2, (2, 4), stride=2, groups=2, padding=((1, 0), (1, 2))), Shape(2, 7, 13), 2),
    "stride 2 and dilation": (Conv2D(3, 3, stride=2, dilation=2, padding=2, groups=3), Shape(3, 11, 19), 1),
    "strides 1 and 3, dilation": (
        Conv2D(6, (3, 2), stride=(1, 3), dilation=(3, 1), groups=6, bias="position"), Shape(6, 10, 17), 2
    ),
    "a stride of rows": (Conv2D(2, 5, stride=(3, 1), padding="same", groups=2, bias="position"), Shape(2, 14, 11), 3),
    "rows of one column": (Conv2D(4, (3, 1), padding=(1, 0), groups=4), Shape(4, 6, 1), 2),
    "one cell": (Conv2D(3, 1, groups=3), Shape(3, 1, 1), 2),
    "two columns at stride 2": (Conv2D(3, 3, stride=2, padding=1, groups=3), Shape(3, 4, 4), 2),
    "one input unit": (Conv2D(1, 3, padding="same"), Shape(1, 6, 7), 4),
    "one axis": (Conv1D(5, 4, stride=2, groups=5, padding=(1, 2)), Shape(5, 37), 3),
}  # fmt: skip


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("case", CASES)
def test_odd_shapes(device: Device, case: str, rows: int) -> None:
    layer, shape, count = CASES[case]
    overrides = {"convolution/forward_depthwise": {"MAXIMUM_ROWS": rows, "MAXIMUM_LANES": 16 if rows > 1 else 4}}
    tuning = replace(TUNING, model=replace(TUNING.model, tunables=overrides))
    report = contract(device, layer, shape, ["own pitches", "tight"], count=count, tuning=tuning)
    assert len(report.runs) == 2
    for run in report.runs.values():
        assert [call.kernel for call in run.calls["forward"]] == ["convolution/forward_depthwise"]


def test_every_arrangement(device: Device) -> None:
    layer, shape = Conv2D(4, (2, 3), padding="same", groups=4), Shape(4, 5, 9)
    report = contract(device, layer, shape, fused=("sigmoid",), tuning=TUNING)
    assert {"tight", "one pitch", "own pitches"} <= set(report.runs)
    for run in report.runs.values():
        assert [call.kernel for call in run.calls["forward"]] == ["convolution/forward_depthwise"]


@pytest.mark.parametrize("bias", [True, "position"])
def test_residual_and_activation(device: Device, bias: bool | str) -> None:
    layer, shape = Conv2D(3, 3, padding=1, groups=3, bias=bias), Shape(3, 7, 21)
    arrangement = Arrangement("all", training=False, norm=bias is True, residual=True, activation="relu6")
    contract(device, layer, shape, [arrangement], tuning=TUNING, absolute=5e-5)


def test_planes_go_in_parts_where_they_are_few(device: Device) -> None:
    layer, shape = Conv2D(2, 3, padding=1, groups=2), Shape(2, 19, 10)
    report = contract(
        device, layer, shape, ["tight"], count=1, tuning=tuning_for("cpu", only=TUNING.choices.only, compute_units=2)
    )
    (run,) = report.runs.values()
    (call,) = run.calls["forward"]
    assert 1 < call.dimensions[1] <= 8
    assert call.macros["ROWS"] * call.dimensions[1] >= 19


def test_small_planes_go_together_where_they_are_many(device: Device) -> None:
    layer, shape = Conv2D(170, 3, padding=1, groups=170), Shape(170, 3, 5)
    tuning = tuning_for("cpu", only=TUNING.choices.only, compute_units=2)
    report = contract(device, layer, shape, ["tight", "own pitches"], count=2, tuning=tuning)
    for run in report.runs.values():
        (call,) = run.calls["forward"]
        assert call.macros["UNITS_AT_ONCE"] > 1
        assert call.macros["UNITS_AT_ONCE"] * call.dimensions[2] == 170


def test_only_units_that_are_apart(device: Device) -> None:
    """Others have other kernels, also where these are the fastest that there are."""
    for layer in (Conv2D(4, 3, groups=2), Conv2D(2, 3), Conv2D(4, 8, groups=4)):
        report = contract(device, layer, Shape(4, 9, 9), ["tight"], count=1, tuning=tuning_for("cpu"))
        (run,) = report.runs.values()
        assert run.calls["forward"][-1].kernel != "convolution/forward_depthwise"
