"""Convolutions by minimal filtering, on whatever device there is."""

from __future__ import annotations

from typing import Any

import pytest

from blobnet.blob import Shape
from blobnet.device import Device
from blobnet.kernel_call import Tuning
from blobnet.layers import Conv2D, convolution, convolution_winograd
from blobnet.layers.candidates import BACKWARD_DATA, BACKWARD_WEIGHTS, FORWARD
from blobnet.layers.convolution_tiled import Tile
from blobnet.layers.convolution_winograd import TILES, WEIGHT_TILES
from tests.layers.layer_contract import ContractReport
from tests.layers.test_convolution import contract

WAYS = {
    FORWARD: (convolution_winograd.forward,),
    BACKWARD_DATA: (convolution_winograd.backward_data,),
    BACKWARD_WEIGHTS: (convolution_winograd.backward_weight,),
}
SMALL = Tile(32, 32, 8, 4, 4, speed=1)
#: Errors that are stated in docs/performance.md, for results of variance 1: patches of 4 and 6.
ERRORS = {4: 1e-5, 6: 4e-5}
CASES: dict[str, tuple[Conv2D, Shape]] = {
    "7x7": (Conv2D(5, 3, padding="same"), Shape(9, 7, 7)),
    "wide, without padding": (Conv2D(3, 3, bias="position"), Shape(4, 5, 9)),
    "padding of 2": (Conv2D(6, 3, padding=2, bias=False), Shape(3, 6, 4)),
    "asymmetric padding": (Conv2D(4, 3, padding=((2, 0), (0, 1))), Shape(3, 4, 7)),
    "one result": (Conv2D(7, 3), Shape(6, 3, 3)),
    "one cell": (Conv2D(3, 3, padding=1), Shape(2, 1, 1)),
    "groups": (Conv2D(9, 3, groups=3, padding=1, bias="position"), Shape(6, 5, 6)),
    "taps of 5": (Conv2D(5, 5, padding=2), Shape(4, 7, 6)),
    "taps of 5, none of padding": (Conv2D(3, 5), Shape(2, 9, 6)),
}


def check(
    device: Device,
    monkeypatch: pytest.MonkeyPatch,
    layer: Conv2D,
    shape: Shape,
    patch: int,
    *,
    tiles: tuple[Tile, Tile] = (SMALL, SMALL),
    compute_units: int = 64,
    **options: Any,
) -> ContractReport:
    """The layer contract with patches of ``patch`` x ``patch`` cells alone."""
    monkeypatch.setitem(convolution.WAYS, "gpu", WAYS)
    monkeypatch.setattr(convolution_winograd, "PATCH_SIZES", (patch,))
    monkeypatch.setattr(convolution_winograd, "TILES", tiles[:1])
    monkeypatch.setattr(convolution_winograd, "WEIGHT_TILES", tiles[1:])
    tuning = Tuning("gpu", limits=device.tuning.limits, compute_units=compute_units)
    settings = {"relative": ERRORS[patch], "absolute": ERRORS[patch], **options}
    report = contract(device, layer, shape, tuning=tuning, **settings)
    for run in report.runs.values():
        assert all("winograd" in kernel for kernel in run.kernels if kernel.startswith("convolution/"))
        assert run.calls["forward"][0].macros["CELLS"] == patch - layer.parameters([shape])[0].shape[-1] + 1
    return report


@pytest.mark.parametrize("patch", [4, 6])
@pytest.mark.parametrize("case", CASES)
def test_cases(device: Device, case: str, patch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, shape = CASES[case]
    if layer.kernel_size == 5 and patch == 4:
        layer = Conv2D(layer.filters, 2, padding="same")
    check(device, monkeypatch, layer, shape, patch, arrangements=["own pitches"])


@pytest.mark.parametrize("patch", [4, 6])
def test_every_arrangement(device: Device, patch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, shape = Conv2D(3, 3, padding=1, bias="position"), Shape(4, 5, 7)
    report = check(device, monkeypatch, layer, shape, patch, fused=("sigmoid",), compute_units=2)
    assert {"tight", "one pitch", "own pitches"} <= set(report.runs)
