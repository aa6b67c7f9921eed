"""The kernels of convolutions whose lanes are samples or units, on copies that lay them side by side."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from blobnet import layers
from blobnet.blob import Shape
from blobnet.device import Device
from blobnet.graph import from_nodes
from blobnet.kernel_call import Tuning
from blobnet.layers import Conv1D, Conv2D
from blobnet.layers.base import Site
from blobnet.layers.candidates import variant_of
from blobnet.losses import MeanSquaredError
from blobnet.planner import make_plan
from tests.layers import layer_bench
from tests.layers.layer_contract import Run
from tests.layers.test_convolution import contract, phases_with_taps

Case = tuple[Conv1D | Conv2D, Shape, int]

#: Layers, inputs and samples.
CASES: dict[str, Case] = {
    "more units than a run, more samples than a vector": (Conv2D(26, 3, padding="same"), Shape(35, 3, 4), 19),
    "whole runs, whole vectors": (Conv2D(12, (2, 3), padding=1, bias=False), Shape(32, 4, 3), 16),
    "several tiles of samples": (Conv2D(13, 1, bias="position"), Shape(5, 2, 3), 70),
    "few samples": (Conv2D(7, (3, 2), padding=((2, 0), (0, 1)), dilation=(2, 1)), Shape(20, 5, 6), 3),
    "strides": (Conv2D(14, 3, stride=(2, 1), padding=1, bias="position"), Shape(17, 7, 6), 5),
    "stride over the filter": (Conv2D(3, (1, 2), stride=(3, 4)), Shape(2, 8, 11), 2),
    "dilation over the stride": (Conv2D(7, 3, stride=2, dilation=3, padding="same"), Shape(6, 7, 8), 9),
    "groups": (Conv2D(21, (3, 2), groups=3, padding=((1, 1), (0, 1)), bias=False), Shape(54, 4, 5), 2),
    "outputs of zeros alone": (Conv2D(2, 2, padding=((3, 2), (2, 4))), Shape(2, 3, 3), 1),
    "one row": (Conv1D(10, 5, padding="same"), Shape(24, 1, 37, 1), 6),
    "one cell": (Conv2D(1, 1), Shape(1, 1, 1), 1),
}


def gathered(tuning: Tuning) -> Tuning:
    """A CPU's tuning that has no other kernels."""
    return replace(tuning, broken=frozenset({"direct", "panels"}))


def check_kernels(layer: Conv1D | Conv2D, shape: Shape, run: Run) -> None:
    """Asserts what each direction launched: a copy first, backward data in the phases that it needs."""
    kernels = {phase: [call.kernel for call in calls] for phase, calls in run.calls.items()}
    vertical, horizontal = layer._axes(shape)
    phases = min(vertical.stride, shape.height) * min(horizontal.stride, shape.width)
    if run.arrangement.accumulate:
        phases = phases_with_taps(layer, shape)
    assert kernels["forward"] == ["blob/gather", "convolution/forward_gathered"]
    assert kernels["backward data"] == ["blob/gather", *["convolution/backward_data_gathered"] * phases]
    weights = [kernel for kernel in kernels["backward parameters"] if "bias" not in kernel]
    split = run.calls["backward parameters"][1].macros["SPLITS"] != 1
    assert weights == ["blob/gather", "convolution/backward_weight_gathered"] + ["gradient/reduce"] * split


@pytest.mark.parametrize("case", CASES)
def test_odd_shapes(device: Device, case: str) -> None:
    layer, shape, count = CASES[case]
    tuning = gathered(device.tuning)
    report = contract(device, layer, shape, ["own pitches"], count=count, absolute=4e-5, tuning=tuning)
    for run in report.runs.values():
        check_kernels(layer, shape, run)


def test_every_arrangement(device: Device) -> None:
    layer, shape = Conv2D(5, (2, 3), stride=(1, 2), padding="same", bias="position"), Shape(4, 5, 9)
    report = contract(device, layer, shape, fused=("sigmoid",), tuning=gathered(device.tuning))
    assert {"tight", "one pitch", "own pitches"} <= set(report.runs)
    for run in report.runs.values():
        check_kernels(layer, shape, run)


def test_a_short_batch(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory for 37 samples, and 5 of them in the batch."""

    def site(**options: Any) -> Site:
        return Site(**{**options, "batch_size": 37})

    monkeypatch.setattr(layer_bench, "Site", site)
    layer, shape = Conv2D(6, 3, stride=(1, 2), padding=1), Shape(19, 3, 4)
    report = contract(device, layer, shape, ["own pitches"], count=5, tuning=gathered(device.tuning))
    (run,) = report.runs.values()
    assert run.calls["forward"][1].macros["SAMPLES"] == 48
    assert run.calls["backward data"][1].macros["SAMPLES"] == 48


@pytest.mark.parametrize(
    ("shape", "filters", "count", "expected"),
    [
        (Shape(64, 4, 4), 64, 32, "gathered gathered gathered"),
        (Shape(64, 16, 16), 64, 32, "panels panels direct"),
        (Shape(256, 14, 14), 256, 8, "panels panels gathered"),
        (Shape(3, 64, 64), 16, 32, "direct direct direct"),
    ],
)
def test_small_planes_choose_it(shape: Shape, filters: int, count: int, expected: str) -> None:
    node = layers.Input(*shape.dimensions)()
    model = from_nodes(node, layers.Conv2D(filters, 3, padding=1, name="layer")(node))
    plan = make_plan(model, count, loss=MeanSquaredError(), training=True, input_delta=True)
    variants = {call.label: variant_of(call.candidate) for _, call in plan.calls}
    found = [variants[f"layer {direction}"] for direction in ("forward", "backward data", "backward weight")]
    assert found == expected.split()
