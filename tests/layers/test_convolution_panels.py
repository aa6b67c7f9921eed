"""The kernels of convolutions that multiply panels: copies of what they read, in the order of reading."""

from __future__ import annotations

from typing import Any

import pytest

from blobnet.device.device import Device
from blobnet.examination import measured as layer_bench
from blobnet.layers import Conv1D, Conv2D
from blobnet.layers.base import LayerContext
from blobnet.memory.blob import Shape
from tests.kinds import tuning_for
from tests.layers.layer_contract import Run
from tests.layers.test_convolution import contract

Case = tuple[Conv1D | Conv2D, Shape, int]

#: Layers, inputs and samples.
CASES: dict[str, Case] = {
    "planes in one run, blocks of units left over": (Conv2D(26, 1), Shape(35, 5, 7), 3),
    "whole blocks, blocks of the transposed weights left over": (Conv2D(24, 1, bias=False), Shape(48, 4, 4), 4),
    "rows are runs": (Conv2D(13, 3, padding="same"), Shape(18, 7, 7), 5),
    "rows longer than vectors": (Conv2D(5, (3, 1), padding=(1, 0), bias="position"), Shape(20, 3, 21), 2),
    "strides": (Conv2D(14, 3, stride=(2, 1), padding=1, bias="position"), Shape(17, 7, 6), 5),
    "stride over the filter": (Conv2D(3, (1, 2), stride=(3, 4)), Shape(2, 8, 11), 2),
    "dilation": (Conv2D(7, (3, 2), padding=((2, 0), (0, 1)), dilation=(2, 1)), Shape(20, 5, 6), 3),
    "groups": (Conv2D(21, (3, 2), groups=3, padding=((1, 1), (0, 1)), bias=False), Shape(54, 4, 5), 2),
    "one row": (Conv1D(10, 5, padding="same"), Shape(24, 37), 6),
    "one cell": (Conv2D(1, 1), Shape(1, 1, 1), 1),
}


#: Of a CPU, whatever the device, without other kernels where these take the direction.
PANELS = tuning_for("cpu", only={"panels", "unitwise"})


def check_kernels(layer: Conv1D | Conv2D, shape: Shape, run: Run) -> None:
    """Asserts what forward and, at stride 1, backward data launched."""
    kernels = {phase: [call.kernel for call in calls] for phase, calls in run.calls.items()}
    assert kernels["forward"] == ["convolution/forward_panels"]
    if all(axis.stride == 1 for axis in layer._axes(shape)):
        assert kernels["backward data"] == ["convolution/transpose_weight", "convolution/backward_data_panels"]


@pytest.mark.parametrize("case", CASES)
def test_odd_shapes(device: Device, case: str) -> None:
    layer, shape, count = CASES[case]
    report = contract(device, layer, shape, ["own pitches"], count=count, absolute=4e-5, tuning=PANELS)
    for run in report.runs.values():
        check_kernels(layer, shape, run)


def test_every_arrangement(device: Device) -> None:
    layer, shape = Conv2D(5, (2, 3), padding="same", bias="position"), Shape(4, 5, 9)
    report = contract(device, layer, shape, fused=("sigmoid",), tuning=PANELS)
    assert {"tight", "one pitch", "own pitches"} <= set(report.runs)
    for run in report.runs.values():
        check_kernels(layer, shape, run)


def test_several_panels_and_chunks_of_units(device: Device) -> None:
    """Local memory for a part of the source's units, and of the result's."""
    layer, shape = Conv2D(35, 3, padding=1), Shape(33, 6, 7)
    tuning = tuning_for("cpu", only=PANELS.choices.only, local_memory=4 * 20 * 48, lanes=16, registers=32)
    report = contract(device, layer, shape, ["own pitches"], count=3, absolute=4e-5, tuning=tuning)
    (run,) = report.runs.values()
    check_kernels(layer, shape, run)
    for call in (run.calls["forward"][0], run.calls["backward data"][1]):
        assert call.macros["UNITS_AT_ONCE"] < call.macros["UNITS"]
        assert call.macros["DEPTHS"] < call.macros["DEPTH"]


def test_a_filter_too_large_for_local_memory_is_left_to_others(device: Device) -> None:
    layer, shape = Conv2D(3, 9), Shape(2, 13, 13)
    tuning = tuning_for("cpu", local_memory=4 * 8 * 60, broken=frozenset({"gathered"}))
    report = contract(device, layer, shape, ["tight"], count=1, tuning=tuning)
    (run,) = report.runs.values()
    assert [call.kernel for call in run.calls["forward"]] == ["convolution/forward_flat"]


def test_a_short_batch(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan for 37 samples, and 5 of them in the batch: fewer tiles, the last one not full."""

    def site(**options: Any) -> LayerContext:
        return LayerContext(**{**options, "batch_size": 37})

    monkeypatch.setattr(layer_bench, "LayerContext", site)
    layer, shape = Conv2D(6, 3, padding=1), Shape(19, 3, 5)
    report = contract(device, layer, shape, ["own pitches"], count=5, tuning=PANELS)
    (run,) = report.runs.values()
    check_kernels(layer, shape, run)
