"""Convolutions by minimal filtering, on whatever device there is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from blobnet import layers
from blobnet.device.device import Device
from blobnet.implementations import winograd
from blobnet.implementations.base import Implementation
from blobnet.implementations.operation import Operation
from blobnet.implementations.tile import Tile
from blobnet.implementations.winograd import TILES, WEIGHT_TILES
from blobnet.launch.kernel_call import Tuning
from blobnet.layers import Conv2D
from blobnet.losses import CrossEntropy
from blobnet.memory.blob import Shape
from blobnet.network.graph import from_nodes
from blobnet.planning import Plan, make_plan
from tests.kinds import tuning_for
from tests.layers.layer_contract import ContractReport, Run
from tests.layers.test_convolution import contract
from tests.small_tiles import SMALL

#: What docs/performance.md states, by the side of a patch: the largest error of results whose variance is about 1.
ERRORS = {4: 1e-5, 6: 4e-5, 8: 4e-5}
#: The side of a patch, and what to do with it. Patches of 6 and 8 are slow to build: as few of them as it takes.
CASES: dict[str, tuple[int, Conv2D, Shape]] = {
    "7x7": (6, Conv2D(5, 3, padding="same"), Shape(9, 7, 7)),
    "padding of 2, groups": (6, Conv2D(6, 3, padding=2, groups=3, bias="position"), Shape(9, 6, 5)),
    "taps of 5": (6, Conv2D(5, 5, padding=((2, 1), (0, 3)), bias=False), Shape(4, 8, 6)),
    "patches of 8": (8, Conv2D(6, 5, padding=2, groups=2, bias="position"), Shape(4, 9, 6)),
    "patches of 8, taps of 4": (8, Conv2D(3, 4, padding=((2, 1), (0, 3)), bias=False), Shape(70, 4, 5)),
    "wide, without padding": (4, Conv2D(3, 3, bias="position"), Shape(4, 5, 9)),
    "asymmetric padding": (4, Conv2D(4, 3, padding=((2, 0), (0, 1)), bias=False), Shape(3, 4, 7)),
    "one result": (4, Conv2D(7, 3), Shape(6, 3, 3)),
    "one cell": (4, Conv2D(3, 3, padding=1), Shape(2, 1, 1)),
}


def plan_for(monkeypatch: pytest.MonkeyPatch, implementation: type[Implementation], batch_size: int) -> None:
    """Has candidates be as in a plan for so many samples."""
    candidates = implementation.candidates

    def planned(operation: Operation) -> Iterator[Implementation]:
        return candidates(replace(operation, batch_size=batch_size))

    monkeypatch.setattr(implementation, "candidates", planned)


def check(
    device: Device,
    monkeypatch: pytest.MonkeyPatch,
    case: tuple[int, Conv2D, Shape],
    *,
    tiles: tuple[Tile, Tile] = (SMALL, SMALL),
    compute_units: int = 64,
    batch_size: int | None = None,
    **options: Any,
) -> ContractReport:
    """The layer contract with patches of one size alone, as in a plan for ``batch_size`` samples."""
    patch, layer, shape = case
    if batch_size:
        plan_for(monkeypatch, winograd.Winograd, batch_size)
    monkeypatch.setattr(winograd, "PATCH_TAPS", {patch: winograd.PATCH_TAPS[patch]})
    monkeypatch.setattr(winograd, "_SUM_ROWS", 16)
    for name, known in ("TILES", tiles[:1]), ("WEIGHT_TILES", tiles[1:]):
        monkeypatch.setattr(winograd, name, known)
    for name, tile in ("TOTAL_TILES", tiles[0]), ("WEIGHT_TOTAL_TILES", tiles[1]):
        monkeypatch.setattr(winograd, name, (replace(tile, totals=True),))
    tuning = tuning_for("gpu", compute_units=compute_units, only={"winograd"})
    settings = {"relative": ERRORS[patch], "absolute": ERRORS[patch], **options}
    report = contract(device, layer, shape, tuning=tuning, **settings)
    taps = layer.parameters([shape])[0].shape[-1]
    for run in report.runs.values():
        own = [kernel for kernel in run.kernels if kernel.startswith("convolution/")]
        assert own
        assert all("winograd" in kernel or kernel == "convolution/point_product" for kernel in own)
        assert run.calls["forward"][0].macros["CELLS"] == patch - taps + 1
    return report


def launches(run: Run, phase: str, kernel: str) -> int:
    """How often a phase launches one of the kernels."""
    return sum(call.kernel.endswith(f"_{kernel}") for call in run.calls[phase] if "convolution" in call.kernel)


def splits(run: Run) -> Any:
    """Partial sums of the gradient of the weights."""
    (product,) = [call for call in run.calls["backward parameters"] if call.kernel.endswith("point_product")]
    return product.macros["SPLITS"]


@pytest.mark.parametrize("case", CASES)
def test_cases(device: Device, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check(device, monkeypatch, CASES[case], arrangements=["own pitches"])


def test_every_arrangement(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    case = 4, Conv2D(3, 3, padding=1, bias="position"), Shape(4, 5, 7)
    report = check(device, monkeypatch, case, fused=("sigmoid",), compute_units=2)
    assert {"tight", "one pitch", "own pitches"} <= set(report.runs)
    assert splits(report.runs["tight"]) == 1


@pytest.mark.parametrize(
    "tiles", [pytest.param(tiles, id=" and ".join(map(str, tiles))) for tiles in zip(TILES, WEIGHT_TILES, strict=True)]
)
@pytest.mark.long
def test_every_tile(device: Device, tiles: tuple[Tile, Tile], monkeypatch: pytest.MonkeyPatch) -> None:
    # More than one tile of units and of columns, and none of them whole; as many units on both sides, so that forward
    # and backward data are the same product, which is slow to build.
    units = max(max(tile.units, tile.columns) for tile in tiles) + 3
    case = 4, Conv2D(units, 2, padding="same", bias=False), Shape(units, 2, 9)
    report = check(device, monkeypatch, case, tiles=tiles, arrangements=["tight"], count=2, absolute=4e-5)
    (run,) = report.runs.values()
    for phase, tile in zip(
        ("forward", "backward data", "backward parameters"), (*tiles[:1] * 2, tiles[1]), strict=True
    ):
        (macros,) = [call.macros for call in run.calls[phase] if call.kernel.endswith("point_product")]
        assert {name: macros[name] for name in tile.macros} == tile.macros


def test_splits(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    case = 4, Conv2D(3, 3, padding=1, bias=False), Shape(2, 9, 9)
    report = check(device, monkeypatch, case, arrangements=["tight"])
    # 16 products of a tile for 64 compute units, in 10 steps of 8 of the 75 patches: a split is worth 4.
    assert splits(report.runs["tight"]) == 2


@pytest.mark.parametrize(("batch_size", "forward", "weights"), [(3, 1, 2), (4, 2, 2), (5, 2, 3)])
def test_chunks_and_short_batches(
    device: Device, batch_size: int, forward: int, weights: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 3 samples of the batch that is planned, in chunks of 2 or 3.
    case = 4, Conv2D(3, 3, padding=1), Shape(4, 9, 9)
    monkeypatch.setattr(winograd, "WORKSPACE", 4 * 16 * (32 * 32 + 2 * (32 + 32) * 25))
    report = check(device, monkeypatch, case, batch_size=batch_size, arrangements=["own pitches"])
    (run,) = report.runs.values()
    assert launches(run, "forward", "weight") == launches(run, "backward parameters", "gradient") == 1
    assert launches(run, "forward", "product") == forward
    assert launches(run, "backward parameters", "product") == weights


# -- the choice, without a device --------------------------------------------------------------------------------------


def plan_of(
    layer: Conv2D, shape: Shape, batch_size: int = 64, *, training: bool = True, tuning: Tuning | None = None
) -> Plan:
    """A plan of a layer behind an input; for a large GPU, if nothing else is said."""
    node = layers.Input(shape.units, shape.height, shape.width)()
    graph = from_nodes(node, layers.Dense(2)(layers.GlobalAveragePool()(layer(node))))
    loss, tuning = CrossEntropy() if training else None, tuning or tuning_for("gpu", compute_units=132)
    return make_plan(graph, batch_size, loss=loss, training=training, tuning=tuning, input_delta=training)


@pytest.mark.parametrize(
    ("layer", "shape", "cells"),
    [
        (Conv2D(512, 3, padding=1), Shape(512, 28, 28), 4),
        (Conv2D(64, 3, padding=1), Shape(64, 224, 224), 4),
        (Conv2D(512, 3, padding=1), Shape(512, 4, 4), 2),
        (Conv2D(256, 5, padding=2), Shape(256, 13, 13), 4),
        (Conv2D(16, 3, padding=1), Shape(16, 112, 112), None),
        (Conv2D(64, 3, padding=1, groups=64), Shape(64, 56, 56), None),
        (Conv2D(512, 3, padding=1, stride=2), Shape(512, 28, 28), None),
        (Conv2D(512, 3, padding=2, dilation=2), Shape(512, 28, 28), None),
        (Conv2D(512, (3, 5), padding=(1, 2)), Shape(512, 28, 28), None),
        (Conv2D(512, 7, padding=3), Shape(512, 28, 28), None),
        (Conv2D(512, 1), Shape(512, 28, 28), None),
        (Conv2D(4096, 3), Shape(2048, 7, 7), None),
    ],
)
def test_choice(layer: Conv2D, shape: Shape, cells: int | None) -> None:
    """As measured on an NVIDIA H200 (docs/performance.md)."""
    calls = [call for _, call in plan_of(layer, shape).calls if "winograd" in call.kernel]
    sizes = {call.macros["CELLS"] for call in calls if "CELLS" in call.macros}
    assert sizes == ({cells} if cells else set())
    if cells:
        assert {call.kernel.partition("winograd_")[2] for call in calls} == {"weight", "patch", "result", "gradient"}


def test_workspace_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    def extra_bytes() -> int:
        return with_it.bytes() - plan_of(layer, shape).bytes()

    layer, shape = Conv2D(64, 3, padding=1), Shape(64, 224, 224)
    with_it = plan_of(layer, shape)
    monkeypatch.setattr(winograd, "WORKSPACE", 0)
    partial_sums = 16 << 20
    assert 0 < extra_bytes() < (512 << 20) + partial_sums
    assert not any("winograd" in call.kernel for _, call in plan_of(layer, shape).calls)
