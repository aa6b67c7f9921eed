"""Convolutions by minimal filtering on processors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest

from blobnet.device.device import Device
from blobnet.implementations import patches
from blobnet.launch.kernel_call import KernelCall
from blobnet.layers import Conv2D
from blobnet.memory.blob import Shape
from tests.kinds import tuning_for
from tests.layers.arranged import Arrangement
from tests.layers.layer_contract import ContractReport
from tests.layers.test_convolution import contract
from tests.layers.test_convolution_winograd import ERRORS, launches, plan_for, plan_of

#: By the side of a patch: layers and shapes, each with something that does not come out even.
CASES: dict[str, tuple[int, Conv2D, Shape]] = {
    "7x7": (6, Conv2D(5, 3, padding="same"), Shape(9, 7, 7)),
    "longer rows than vectors": (6, Conv2D(9, 3, padding=1), Shape(2, 6, 70)),
    "padding of 2, groups": (6, Conv2D(10, 3, padding=2, groups=2, bias="position"), Shape(6, 6, 5)),
    "taps of 5": (6, Conv2D(5, 5, padding=((2, 1), (0, 3)), bias=False), Shape(4, 8, 6)),
    "small patches": (4, Conv2D(18, 3, bias="position"), Shape(4, 5, 9)),
    "asymmetric padding": (4, Conv2D(4, 3, padding=((2, 0), (0, 1)), bias=False), Shape(3, 4, 7)),
    "patches that fill their pitch": (6, Conv2D(5, 3, padding=1), Shape(1, 64, 10)),
    "one result": (4, Conv2D(7, 3), Shape(6, 3, 3)),
    "one cell": (4, Conv2D(3, 3, padding=1), Shape(2, 1, 1)),
}


def check(
    device: Device,
    monkeypatch: pytest.MonkeyPatch,
    case: tuple[int, Conv2D, Shape],
    tunables: Mapping[str, int] = {},
    **options: Any,
) -> ContractReport:
    """The layer contract with patches of one size alone."""
    side, layer, shape = case
    monkeypatch.setattr(patches, "SIDES", {side: patches.SIDES[side]})
    every = {"convolution/winograd_sums": tunables, "convolution/winograd_products": tunables}
    tuning = tuning_for("cpu", every, only={"patches"})
    options = {"relative": ERRORS[side], "absolute": ERRORS[side], **options}
    report = contract(device, layer, shape, tuning=tuning, **options)
    for run in report.runs.values():
        for phase in {"forward", "backward data"} & run.calls.keys():
            *_, rows, sums = run.calls[phase]
            assert (rows.kernel, sums.kernel) == ("convolution/winograd_rows", "convolution/winograd_sums")
            assert sums.macros["CELLS"] == side - layer.parameters([shape])[0].shape[-1] + 1
        if "backward parameters" in run.calls:
            calls = run.calls["backward parameters"]
            own = [call.kernel for call in calls if call.kernel.startswith("convolution/")]
            assert own[:2] == ["convolution/winograd_rows"] * 2
            assert own[-2:] == ["convolution/winograd_products", "convolution/winograd_filters"]
    return report


@pytest.mark.parametrize("case", CASES)
def test_cases(device: Device, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # There the gradient is the sum of two thousand products.
    bound = {"absolute": 3e-4} if case == "patches that fill their pitch" else {}
    check(device, monkeypatch, CASES[case], arrangements=["own pitches"], **bound)


def test_every_arrangement(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    case = 6, Conv2D(5, 3, padding=1, bias="position"), Shape(4, 5, 7)
    report = check(device, monkeypatch, case, fused=("sigmoid",))
    assert {"tight", "one pitch", "own pitches"} <= set(report.runs)


def test_a_residual_and_a_bias_for_each_position(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    case = 6, Conv2D(5, 3, padding=1, bias="position"), Shape(4, 5, 7)
    residual = Arrangement("residual", same_pitch=True, training=False, residual=True)
    own_zeros = Arrangement("own zeros", own_zeros=True, training=False, chain=("norm", "shifts", "relu"))
    check(device, monkeypatch, case, arrangements=[residual])
    check(device, monkeypatch, (6, Conv2D(5, 3, padding=1), Shape(4, 5, 7)), arrangements=[own_zeros])


@pytest.mark.parametrize("lanes", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("side", [4, 6])
def test_vectors(device: Device, lanes: int, side: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tunables = {"MAXIMUM_LANES": lanes, "MAXIMUM_UNITS": 4}
    case = side, Conv2D(6, 3, padding=1), Shape(5, 9, 37)
    # The gradient is the sum of a thousand products.
    report = check(device, monkeypatch, case, tunables, arrangements=["own pitches"], absolute=3e-4)
    (run,) = report.runs.values()
    assert run.calls["forward"][-1].macros["LANES"] == lanes
    products = [call for call in run.calls["backward parameters"] if call.kernel.endswith("products")]
    assert {call.macros["LANES"] for call in products} == {lanes}


@pytest.mark.parametrize(("batch_size", "chunks"), [(3, 2), (4, 2), (5, 2)])
def test_chunks_and_short_batches(
    device: Device, batch_size: int, chunks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """3 samples of the batch that is planned, in chunks of 2 or 3."""
    plan_for(monkeypatch, patches.Patches, batch_size)
    monkeypatch.setattr(patches.Patches, "most_samples", 2 if batch_size < 5 else 3)
    case = 6, Conv2D(5, 3, padding=1), Shape(4, 9, 9)
    report = check(device, monkeypatch, case, arrangements=["own pitches"])
    (run,) = report.runs.values()
    assert launches(run, "forward", "sums") == launches(run, "backward parameters", "products") == chunks


def test_a_batch_in_chunks(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patches, "CORE_BYTES", 1)
    monkeypatch.setattr(patches, "MIN_SUM", 1)
    case = 6, Conv2D(5, 3, padding=1), Shape(4, 9, 9)
    report = check(device, monkeypatch, case, arrangements=["own pitches"])
    (run,) = report.runs.values()
    assert [launches(run, "forward", kernel) for kernel in ("blocks", "rows", "sums")] == [1, 3, 3]
    kernels = "rows", "products", "filters"
    assert [launches(run, "backward parameters", kernel) for kernel in kernels] == [6, 3, 1]


# -- the choice, without a device --------------------------------------------------------------------------------------


def forward_of(layer: Conv2D, shape: Shape, batch_size: int, training: bool, **facts: Any) -> list[KernelCall]:
    """The launches of a layer's forward pass on two cores."""
    tuning = tuning_for("cpu", compute_units=2, **facts)
    plan = plan_of(layer, shape, batch_size, training=training, tuning=tuning)
    return [call for _, call in plan.calls if call.vertex == 1 and call.direction == "forward"]


@pytest.mark.parametrize(
    ("layer", "shape", "batch_size", "training", "kernel"),
    [
        (Conv2D(64, 3, padding=1), Shape(64, 56, 56), 1, False, "winograd_sums"),
        (Conv2D(256, 3, padding=1), Shape(256, 14, 14), 1, False, "winograd_sums"),
        (Conv2D(512, 3, padding=1), Shape(512, 7, 7), 1, False, "winograd_sums"),
        # Its weights would be transformed for one image.
        (Conv2D(512, 3, padding=1), Shape(512, 7, 7), 1, True, "forward_panels"),
        (Conv2D(256, 3, padding=1), Shape(256, 14, 14), 8, True, "winograd_sums"),
        (Conv2D(64, 3, 2, padding=1), Shape(64, 56, 56), 8, True, "forward_panels"),
        (Conv2D(64, 1), Shape(64, 56, 56), 8, True, "forward_flat"),
        (Conv2D(8, 3, padding=1), Shape(3, 56, 56), 8, True, "forward_flat"),
    ],
)
def test_what_a_processor_chooses(layer: Conv2D, shape: Shape, batch_size: int, training: bool, kernel: str) -> None:
    assert forward_of(layer, shape, batch_size, training)[-1].kernel == f"convolution/{kernel}"


def test_no_room_for_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, shape = Conv2D(64, 3, padding=1), Shape(64, 56, 56)
    assert forward_of(layer, shape, 8, True)[-1].kernel == "convolution/winograd_sums"
    monkeypatch.setattr(patches, "WORKSPACE", 1 << 20)
    assert forward_of(layer, shape, 8, True)[-1].kernel == "convolution/forward_panels"


@pytest.mark.parametrize("room", [1 << 10, 1 << 13, 1 << 15])
def test_sums_fit_local_memory(room: int) -> None:
    call = forward_of(Conv2D(64, 3, padding=1), Shape(64, 56, 56), 8, True, local_memory=room)[-1]
    assert call.kernel.endswith("winograd_sums") == (room > 1 << 10)
    if room > 1 << 10:
        cells, *tile = (int(call.macros[name]) for name in ("CELLS", "BLOCK_UNITS", "BLOCK_VECTORS", "LANES"))
        assert 4 * (cells + 2) ** 2 * math.prod(tile) < room


@pytest.mark.parametrize("units", [2048, 4096, 8192])
def test_workspace_is_bounded(units: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of the weights of many units, whose elements an int could not count."""
    sizes = []
    for workspace in (patches.WORKSPACE, 0):
        monkeypatch.setattr(patches, "WORKSPACE", workspace)
        plan = plan_of(Conv2D(units, 3, padding=1), Shape(2048, 7, 7), tuning=tuning_for("cpu", compute_units=2))
        sizes.append(plan.bytes())
    assert sizes[0] - sizes[1] < 600 << 20
