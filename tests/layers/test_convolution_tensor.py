"""Convolutions on tensor cores: where there are none, on what kernels/tensor_core.h puts in their place.

Small integers are exact in tf32 and so are their sums in fp32: the layer contract holds as it does for fp32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from blobnet import layers
from blobnet.device.device import Device
from blobnet.device.discovery import check_precision
from blobnet.errors import DeviceError
from blobnet.examination.reference.convolution import Windows, conv2d, conv2d_backward
from blobnet.implementations import tensor
from blobnet.implementations.base import FORWARD
from blobnet.implementations.tensor import TILES, WEIGHT_TILES, WarpTile
from blobnet.launch.kernel_call import Tuning
from blobnet.launch.kernel_source import Macro
from blobnet.launch.task import Task, TunedChoices, Variant
from blobnet.layers import Conv1D, Conv2D
from blobnet.losses import CrossEntropy
from blobnet.memory.blob import BFLOAT16, Shape
from blobnet.network.graph import from_nodes
from blobnet.planning import make_plan
from tests.kinds import tuning_for
from tests.layers.layer_contract import ContractReport
from tests.layers.test_convolution import contract
from tests.layers.test_convolution_variants import check_splits, in_splits


def tuning() -> Tuning:
    return tuning_for("gpu", compute_units=2, precision="tf32", only={"tensor"})


def exact(
    device: Device, layer: Conv1D | Conv2D, shape: Shape, arrangements: Sequence[str] | None = None, **options: Any
) -> ContractReport:
    """The contract on small integers, on tensor cores alone."""
    generator = np.random.default_rng(7)
    count = options.setdefault("count", 3)

    def integers(*size: int) -> Any:
        return generator.integers(-4, 5, size)

    report = contract(
        device,
        layer,
        shape,
        arrangements,
        inputs=[integers(count, *shape.dimensions)],
        parameters={spec.name: integers(*spec.shape) for spec in layer.parameters([shape])},
        delta=integers(count, *layer.output_shape([shape]).dimensions),
        **({"tuning": tuning()} | options),
    )
    for run in report.runs.values():
        others = {"convolution/split_sum", "convolution/clear", "convolution/unitwise_gradient"}
        products = {kernel for kernel in run.kernels if "convolution" in kernel} - others
        assert products
        # Tensor cores take no cells of tf32 for gradients of weights.
        assert all(any(unit in kernel for unit in ("tensor", "cells", "fragment")) for kernel in products), products
    return report


def check_rounding(device: Device, tuning: Tuning, rounding: float, absolute: float) -> None:
    """Each factor is off by its rounding at most, so a sum by twice that of the sum of its products' magnitudes.

    `rounding` is what a factor is off by at most, relative to itself, and `absolute` what the contract allows.
    """
    layer, shape, generator = Conv2D(40, 3, padding=1, bias=False), Shape(50, 5, 6), np.random.default_rng(3)
    x, delta = generator.standard_normal((3, 50, 5, 6)), generator.standard_normal((3, 40, 5, 6))
    weight = generator.standard_normal((40, 50, 3, 3))
    x, delta, weight = (values.astype(np.float32).astype(np.float64) for values in (x, delta, weight))
    options: dict[str, Any] = {"parameters": {"weight": weight}, "delta": delta, "absolute": absolute}
    run = contract(device, layer, shape, ["tight"], inputs=[x], tuning=tuning, **options).runs["tight"]
    assert run.gradients
    windows = Windows(padding=((1, 1), (1, 1)))

    def results(*arrays: Any) -> list[Any]:
        backward = conv2d_backward(arrays[0], arrays[1], None, arrays[2], windows)
        return [conv2d(arrays[0], arrays[1], None, windows), *backward[:2]]

    found = [run.output, run.input_deltas[0], run.gradients["weight"]]
    bounds = results(abs(x), abs(weight), abs(delta))
    # A result that is kept in bfloat16 is rounded once more.
    stored = rounding if tuning.storage == BFLOAT16 else 0
    for actual, wanted, bound in zip(found, results(x, weight, delta), bounds, strict=True):
        assert actual is not None
        error = np.abs(actual.reshape(wanted.shape) - wanted)
        assert (error <= 2 * rounding * bound + stored * abs(wanted) + 1e-5).all()
        # Rounded to the nearest, errors are random, and far below their bound; fp32 would be far below this again.
        assert rounding / 16 < np.sqrt((error**2).mean()) / np.sqrt((wanted**2).mean()) < rounding


def need_tensor_cores(device: Device) -> None:
    """Skips what takes too long without them."""
    try:
        check_precision(device.info, "tf32")
    except DeviceError as error:
        pytest.skip(str(error))


# -- exact products ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("splits", [1, 3])
def test_strides_and_sums(device: Device, small_tiles: None, splits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    in_splits(monkeypatch, splits)
    layer, shape = Conv2D(37, 3, stride=(1, 2), padding="same", bias="position"), Shape(17, 5, 9)
    report = exact(device, layer, shape, ["own pitches"], fused=("sigmoid",))
    for run in report.runs.values():
        if splits > 1:
            check_splits(layer, shape, run, "tensor", splits)
        assert run.calls["backward parameters"][0].macros["SPLITS"] == splits


@pytest.mark.parametrize("padding", [0, ((0, 1), (0, 0)), ((0, 0), (0, 2))], ids=str)
def test_positions_in_quads(device: Device, small_tiles: None, padding: Any) -> None:
    # Quads; none, since the positions of a sample are not a multiple of 4; quads on rows of a longer pitch.
    exact(device, Conv2D(37, 1, bias=False, padding=padding), Shape(36, 6, 6), ["tight"])


def test_groups_and_dilation(device: Device, small_tiles: None) -> None:
    layer = Conv2D(21, (3, 2), dilation=(1, 2), groups=3, padding=((1, 1), (0, 1)))
    exact(device, layer, Shape(15, 4, 5), ["one pitch"])


MORE_CASES: dict[str, tuple[Conv1D | Conv2D, Shape]] = {
    "whole tiles": (Conv2D(128, 3, padding="same"), Shape(64, 16, 8)),
    "nothing whole": (Conv2D(37, 3, stride=(1, 2), padding="same", bias="position"), Shape(17, 5, 9)),
    "steps fewer than stages": (Conv2D(65, 1), Shape(3, 3, 3)),
    "phases without taps": (Conv2D(8, 1, stride=2), Shape(9, 5, 6)),
    "dilation over the stride": (Conv2D(7, 3, stride=2, dilation=3, padding="same"), Shape(6, 7, 8)),
    "stride over the filter": (Conv2D(40, (1, 2), stride=(3, 4)), Shape(50, 8, 11)),
    "one row": (Conv1D(10, 5, padding="same"), Shape(24, 150)),
    "one position": (Conv2D(12, (3, 4)), Shape(13, 3, 4)),
}


@pytest.mark.parametrize("case", MORE_CASES)
def test_more_products(device: Device, case: str) -> None:
    need_tensor_cores(device)
    exact(device, *MORE_CASES[case])


def assert_told(macros: Mapping[str, Macro], tile: WarpTile) -> None:
    """Warps have sums here, and work-items none of their own."""
    assert macros.items() >= {name: value for name, value in tile.macros.items() if "ITEM" not in name}.items()


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_every_tile(device: Device, tile: WarpTile, monkeypatch: pytest.MonkeyPatch) -> None:
    need_tensor_cores(device)
    monkeypatch.setattr(tensor, "TILES", (tile,))
    # More than one tile of everything, and none of them whole; more steps than stages.
    for layer in (Conv2D(tile.units + 3, (1, 3)), Conv2D(tile.units + 3, (1, 3), padding="same", stride=(1, 2))):
        report = exact(device, layer, Shape(tile.units + 5, 2, tile.columns // 2))
        macros = report.runs["tight"].calls["forward"][1].macros
        assert_told(macros, tile)


@pytest.mark.parametrize("tile", WEIGHT_TILES, ids=str)
def test_every_tile_of_weights(device: Device, tile: WarpTile, monkeypatch: pytest.MonkeyPatch) -> None:
    need_tensor_cores(device)
    monkeypatch.setattr(tensor, "WEIGHT_TILES", (tile,))
    for layer in (Conv2D(tile.units + 3, (1, 2)), Conv2D(tile.units + 3, 1)):
        report = exact(device, layer, Shape(tile.columns // 2 + 3, 8, 28), ["tight", "one pitch"])
        macros = report.runs["tight"].calls["backward parameters"][0].macros
        assert_told(macros, tile)


# -- rounded products --------------------------------------------------------------------------------------------------


def test_error(device: Device, small_tiles: None) -> None:
    check_rounding(device, tuning(), 2.0**-11, absolute=0.2)


# -- choice ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("units", "layer", "expected"),
    [
        (128, Conv2D(128, 3, padding=1), {"forward_tensor", "backward_data_tensor", "backward_weight_tensor"}),
        (64, Conv2D(256, 1), {"forward_tensor", "backward_data_tensor", "backward_weight_tensor"}),
        (48, Conv2D(48, 3, padding=1, groups=48), {"forward_strip", "backward_data_strip", "backward_weight_strip"}),
    ],
)
def test_choice(units: int, layer: Conv2D, expected: set[str]) -> None:
    images = layers.Input(units, 28, 28)()
    graph = from_nodes(images, layers.Dense(3)(layer(images)))
    # What was measured as the fastest in fp32 says nothing about tf32.
    task = Task(FORWARD, f"{units}x28x28:{replace(layer, bias=False).notation}", 64)
    for precision in ("fp32", "tf32"):
        choices = TunedChoices(({task: Variant("tiled", "32x64x16/4x4")},))
        fast = {"dot", "strip", "tiled"} | ({"tensor"} if precision == "tf32" else set())
        tuning = tuning_for("gpu", compute_units=132, choices=choices, only=fast, precision=precision)
        plan = make_plan(graph, 64, loss=CrossEntropy(), training=True, input_delta=True, tuning=tuning)
        names = {call.kernel.partition("/")[2] for _, call in plan.calls if call.kernel.startswith("convolution/")}
        names = {name for name in names if not name.startswith("pack")}
        if precision == "fp32":
            assert names == {
                name.replace("tensor", "tiled").replace("forward_strip", "forward_tiled") for name in expected
            }
        else:
            assert names == expected
