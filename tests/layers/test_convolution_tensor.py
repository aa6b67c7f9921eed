"""Convolutions on tensor cores: where there are none, on what tensor_core.h puts in their place.

Small integers are exact in tf32 and so are their sums in fp32: the layer contract holds as it does for fp32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from blobnet.blob import Shape
from blobnet.device import Device
from blobnet.kernel_call import Tuning
from blobnet.layers import Conv1D, Conv2D, convolution, convolution_tensor
from blobnet.layers.candidates import BACKWARD_DATA, BACKWARD_WEIGHTS, FORWARD
from blobnet.layers.convolution_tensor import TILES, WEIGHT_TILES, WarpTile
from tests.layers.layer_contract import ContractReport
from tests.layers.test_convolution import contract

WAYS = {
    FORWARD: (convolution_tensor.forward,),
    BACKWARD_DATA: (convolution_tensor.backward_data,),
    BACKWARD_WEIGHTS: (convolution_tensor.backward_weight,),
}
SMALL = WarpTile(32, 32, 16, 16, 32, 2, speed=1)
SMALL_WEIGHTS = WarpTile(32, 32, 32, 16, 32, 2, speed=1)


def exact(
    device: Device, layer: Conv1D | Conv2D, shape: Shape, arrangements: list[str] | None = None, **options: Any
) -> ContractReport:
    """The contract on small integers, on tensor cores alone."""
    generator = np.random.default_rng(7)
    count = options.setdefault("count", 3)
    output = layer.output_shape([shape])

    def integers(*size: int) -> Any:
        return generator.integers(-4, 5, size)

    report = contract(
        device,
        layer,
        shape,
        arrangements,
        inputs=[integers(count, *shape.dimensions)],
        parameters={spec.name: integers(*spec.shape) for spec in layer.parameters([shape])},
        delta=integers(count, *output.dimensions),
        tuning=Tuning("gpu", limits=device.tuning.limits, compute_units=2, precision="tf32"),
        **options,
    )
    for run in report.runs.values():
        assert all("tensor" in name for name in run.kernels if "convolution" in name), run.kernels
    return report


@pytest.fixture(autouse=True)
def tensor_cores_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(convolution.WAYS, "gpu", WAYS)


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution_tensor, "TILES", (SMALL,))
    monkeypatch.setattr(convolution_tensor, "WEIGHT_TILES", (SMALL_WEIGHTS,))


CASES: dict[str, tuple[Conv1D | Conv2D, Shape]] = {
    "whole tiles of depth": (Conv2D(33, 3, padding="same"), Shape(16, 5, 7)),
    "depth not whole": (Conv2D(35, (1, 2), bias=False), Shape(37, 3, 9)),
    "strides": (Conv2D(9, 3, stride=(2, 1), padding=1), Shape(8, 7, 6)),
    "phases without taps": (Conv2D(8, 1, stride=2), Shape(9, 5, 6)),
    "dilation over the stride": (Conv2D(7, 3, stride=2, dilation=3, padding="same"), Shape(6, 7, 8)),
    "groups": (Conv2D(21, (3, 2), groups=3, padding=((1, 1), (0, 1)), bias="position"), Shape(15, 4, 5)),
    "one row": (Conv1D(10, 5, padding="same"), Shape(24, 1, 150, 1)),
    "one position": (Conv2D(12, (3, 4)), Shape(13, 3, 4)),
}


@pytest.mark.parametrize("case", CASES)
def test_products(device: Device, small_tiles: None, case: str) -> None:
    exact(device, *CASES[case], ["own pitches"])


def test_products_in_every_arrangement(device: Device, small_tiles: None) -> None:
    layer = Conv2D(9, 3, stride=(1, 2), padding="same", bias="position")
    exact(device, layer, Shape(8, 5, 9), fused=("sigmoid",))


def test_flat_planes(device: Device, small_tiles: None) -> None:
    exact(device, Conv2D(34, (3, 2), padding=((1, 1), (1, 0)), bias="position"), Shape(17, 5, 7), ["one pitch"])


def test_positions_in_quads(device: Device, small_tiles: None) -> None:
    exact(device, Conv2D(37, 1, bias=False), Shape(36, 6, 6), ["tight"])


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_every_tile(device: Device, tile: WarpTile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution_tensor, "TILES", (tile,))
    # More than one tile of everything, and none of them whole; more steps than stages.
    layer, shape = Conv2D(tile.units + 3, (1, 3)), Shape(tile.units + 5, 2, tile.columns // 2)
    exact(device, layer, shape, ["tight"], count=2)


@pytest.mark.parametrize("tile", WEIGHT_TILES, ids=str)
def test_every_tile_of_weights(device: Device, tile: WarpTile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution_tensor, "WEIGHT_TILES", (tile,))
    layer, shape = Conv2D(tile.units + 3, (1, 2)), Shape(tile.columns // 2 + 3, 9, 27)
    exact(device, layer, shape, ["tight"])
