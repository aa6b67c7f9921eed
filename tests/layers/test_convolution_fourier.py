"""Convolutions by discrete Fourier transforms, on whatever device there is."""

from __future__ import annotations

from typing import Any

import pytest

from blobnet.device.device import Device
from blobnet.implementations import fourier, winograd
from blobnet.implementations.tile import Tile
from blobnet.layers import Conv2D
from blobnet.memory.blob import Shape
from tests.kinds import tuning_for
from tests.layers.layer_contract import ContractReport
from tests.layers.test_convolution import contract
from tests.layers.test_convolution_winograd import plan_of, splits
from tests.small_tiles import SMALL

#: What docs/performance.md states: the largest error of results whose variance is about 1.
ERROR = 1e-5
KERNELS = {*(f"fourier_{name}" for name in ("weight", "patch", "result", "gradient")), "point_product"}
#: What to do, and the patches of a plane.
CASES: dict[str, tuple[Conv2D, Shape, int]] = {
    "one patch": (Conv2D(5, 5, padding=2, bias="position"), Shape(4, 9, 6), 1),
    "one cell": (Conv2D(3, 5, padding=2), Shape(2, 1, 1), 1),
    "no padding, larger than a patch": (Conv2D(3, 6, bias=False), Shape(2, 33, 40), 4),
    "groups, asymmetric padding": (Conv2D(6, 4, padding=((2, 1), (0, 3)), groups=3, bias=False), Shape(9, 31, 8), 2),
    "most taps": (Conv2D(3, 7, padding=3), Shape(2, 27, 12), 2),
}


def check(
    device: Device,
    monkeypatch: pytest.MonkeyPatch,
    case: tuple[Conv2D, Shape, int],
    tile: Tile = SMALL,
    compute_units: int = 2,
    **options: Any,
) -> ContractReport:
    """The layer contract, with a tile."""
    layer, shape, patches = case
    for name, tiles in ("TILES", (tile,)), ("WEIGHT_TILES", (tile,)), ("_TILES", ()):
        monkeypatch.setattr(fourier, name, tiles)
    tuning = tuning_for("gpu", compute_units=compute_units, only={"fourier"})
    report = contract(device, layer, shape, tuning=tuning, **{"relative": ERROR, "absolute": 4 * ERROR, **options})
    for run in report.runs.values():
        own = {kernel.removeprefix("convolution/") for kernel in run.kernels if kernel.startswith("convolution/")}
        assert own == KERNELS
        (product,) = [call for call in run.calls["forward"] if call.kernel.endswith("product")]
        assert product.global_size.positions == 2 * patches
    return report


@pytest.mark.parametrize("case", CASES)
def test_cases(device: Device, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check(device, monkeypatch, CASES[case], arrangements=["own pitches"])


def test_every_arrangement(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    report = check(device, monkeypatch, CASES["one patch"], fused=("sigmoid",))
    assert {"tight", "one pitch", "own pitches"} <= set(report.runs)


@pytest.mark.parametrize("tile", fourier._TILES, ids=str)
@pytest.mark.long
def test_every_tile(device: Device, tile: Tile, monkeypatch: pytest.MonkeyPatch) -> None:
    # More than one tile of units, and of columns in the gradient, none of them whole.
    units = tile.units + 3
    case = Conv2D(units, 4, bias=False), Shape(units, 4, 5), 1
    check(device, monkeypatch, case, tile, arrangements=["tight"], count=2, absolute=4e-5)


def test_splits_and_short_batches(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    # 66 rows in 9 steps of 8: a split is worth 4.
    case = Conv2D(3, 5, bias=False), Shape(2, 6, 6), 1
    report = check(device, monkeypatch, case, compute_units=1000, arrangements=["tight"], count=33)
    assert splits(report.runs["tight"]) == 2


def test_chunks(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    # 3 samples of 2 patches: for the gradient there is room for 5 patches beside 32 x 16 sums.
    monkeypatch.setattr(winograd, "WORKSPACE", 4 * 514 * 2 * (32 * 16 + (32 + 2 * 16) * 5))
    case = Conv2D(3, 5), Shape(2, 6, 40), 2
    (run,) = check(device, monkeypatch, case, arrangements=["own pitches"]).runs.values()
    sums = [call for call in run.calls["backward parameters"] if call.kernel.endswith("product")]
    assert [(call.samples, call.macros["ACCUMULATE"]) for call in sums] == [(range(2), 0), (range(2, 3), 1)]


def test_choice() -> None:
    """As measured on an NVIDIA H200 (docs/performance.md)."""
    for layer, shape, chosen in (
        (Conv2D(192, 5, padding=2), Shape(96, 27, 27), True),
        (Conv2D(192, 5, padding=2), Shape(64, 27, 27), True),
        (Conv2D(256, 5, padding=2), Shape(256, 13, 13), False),
        (Conv2D(192, 3, padding=1), Shape(96, 27, 27), False),
    ):
        kernels = {call.kernel for _, call in plan_of(layer, shape).calls if "fourier" in call.kernel}
        assert len(kernels) == (4 if chosen else 0)
