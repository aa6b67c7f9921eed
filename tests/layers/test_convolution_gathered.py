"""The kernels of convolutions whose lanes are samples or units, on copies that lay them side by side.

Samples forward and for backward data, units (panels) for backward weights.
"""

from __future__ import annotations

from typing import Any

import pytest

from blobnet import layers
from blobnet.device.device import Device
from blobnet.examination import measured as layer_bench
from blobnet.launch.kernel_call import KernelCall
from blobnet.layers import Conv1D, Conv2D
from blobnet.layers.base import LayerContext
from blobnet.losses import MeanSquaredError
from blobnet.memory.blob import Shape
from blobnet.network.graph import from_nodes
from blobnet.planning import make_plan
from tests.kinds import tuning_for
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
    "one row": (Conv1D(10, 5, padding="same"), Shape(24, 37), 6),
    "one cell": (Conv2D(1, 1), Shape(1, 1, 1), 1),
    "whole panels of a tap": (Conv2D(50, 1, bias=False), Shape(64, 5, 3), 2),
    "a tap, strides": (Conv2D(33, 1, stride=(2, 3)), Shape(37, 6, 7), 3),
    "many taps, large strides": (Conv2D(4, (7, 5), stride=(2, 3), padding=(3, 4)), Shape(3, 13, 11), 2),
    "rows and columns that no tap reads": (Conv2D(3, 2, stride=4, padding=((5, 0), (1, 2))), Shape(4, 8, 9), 2),
}


#: Of a CPU, whatever the device, without its other kernels.
GATHERED = tuning_for("cpu", only={"gathered", "unitwise"})


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
    product = run.calls["backward parameters"][1]
    expected = ["convolution/pack_units", "convolution/backward_weight_unitwise"]
    assert weights == expected + ["convolution/unitwise_gradient"] * (not in_place(layer, shape, product))


def in_place(layer: Conv1D | Conv2D, shape: Shape, product: KernelCall) -> bool:
    """Whether the sums of the gradient of the weights are the gradient: one tap, one split and whole panels."""
    units = shape.units // layer.groups
    one_tap = layer.parameters([shape])[0].elements == layer.filters * units
    return one_tap and product.macros["SPLITS"] == 1 and units % product.macros["PANEL_UNITS"] == 0


@pytest.mark.parametrize("case", CASES)
def test_odd_shapes(device: Device, case: str) -> None:
    layer, shape, count = CASES[case]
    report = contract(device, layer, shape, ["own pitches"], count=count, absolute=4e-5, tuning=GATHERED)
    for run in report.runs.values():
        check_kernels(layer, shape, run)


def test_every_arrangement(device: Device) -> None:
    layer, shape = Conv2D(5, (2, 3), stride=(1, 2), padding="same", bias="position"), Shape(4, 5, 9)
    report = contract(device, layer, shape, fused=("sigmoid",), tuning=GATHERED)
    assert {"tight", "one pitch", "own pitches"} <= set(report.runs)
    for run in report.runs.values():
        check_kernels(layer, shape, run)


def test_a_short_batch(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory for 37 samples, and 5 of them in the batch."""

    def site(**options: Any) -> LayerContext:
        return LayerContext(**{**options, "batch_size": 37})

    monkeypatch.setattr(layer_bench, "LayerContext", site)
    layer, shape = Conv2D(6, 3, stride=(1, 2), padding=1), Shape(19, 3, 4)
    report = contract(device, layer, shape, ["own pitches"], count=5, tuning=GATHERED)
    (run,) = report.runs.values()
    assert run.calls["forward"][1].macros["SAMPLES"] == 40
    assert run.calls["backward data"][1].macros["SAMPLES"] == 40


@pytest.mark.parametrize(
    ("shape", "filters", "count", "expected"),
    [
        (Shape(512, 2, 2), 512, 32, "gathered gathered unitwise"),
        (Shape(64, 4, 4), 64, 32, "panels panels unitwise"),
        (Shape(64, 7, 7), 64, 128, "patches4 patches4 unitwise"),
        (Shape(64, 16, 16), 64, 32, "patches4 patches4 patches4"),
        (Shape(256, 14, 14), 256, 8, "patches4 patches4 patches2"),
        (Shape(64, 56, 56), 64, 8, "patches4 patches4 patches4"),
        (Shape(3, 64, 64), 16, 32, "direct direct direct"),
    ],
)
def test_small_planes_choose_it(shape: Shape, filters: int, count: int, expected: str) -> None:
    node = layers.Input(*shape.dimensions)()
    model = from_nodes(node, layers.Conv2D(filters, 3, padding=1, name="layer")(node))
    # Of the machine that they were measured on.
    tuning = tuning_for("cpu", compute_units=2, lanes=16, registers=32)
    plan = make_plan(model, count, loss=MeanSquaredError(), training=True, tuning=tuning, input_delta=True)
    chosen = {call.label: call.way.variant for _, call in plan.calls if call.way}
    found = [chosen[f"layer {direction}"] for direction in ("forward", "backward data", "backward weight")]
    assert found == expected.split()
