"""The kernels of convolutions on GPUs, on whatever device there is: products through local memory, strips, dots."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from blobnet import layers
from blobnet.device.device import Device
from blobnet.implementations import strip, tiled
from blobnet.implementations.tile import Tile
from blobnet.implementations.tiled import TILES, WEIGHT_TILES, Tiled
from blobnet.launch.kernel_call import Tuning
from blobnet.layers import Conv1D, Conv2D
from blobnet.memory.blob import FLOAT16, FLOAT32, Shape, StorageType
from blobnet.network.graph import from_nodes
from blobnet.planning import make_plan
from tests.kinds import tuning_for
from tests.layers.layer_contract import Run
from tests.layers.test_convolution import contract, phases_with_taps

Layers = dict[str, tuple[Conv1D | Conv2D, Shape]]

#: Products: more than a few units a group on both sides.
TILED: Layers = {
    "cells that no tap meets": (Conv2D(6, 1, stride=(2, 3), bias=False), Shape(9, 5, 7)),
    "whole tiles of depth, tap by tap": (Conv2D(33, 3, padding="same"), Shape(16, 5, 7)),
    "many source units, not whole tiles": (Conv2D(35, (1, 2), bias=False), Shape(37, 3, 9)),
    "few source units, one tap behind the other": (Conv2D(6, (2, 3), padding=(1, 0), bias="position"), Shape(5, 4, 9)),
    "a sample less than a tile, many left over": (Conv2D(65, 1), Shape(67, 3, 3)),
    "strides": (Conv2D(9, 3, stride=(2, 1), padding=1), Shape(8, 7, 6)),
    "phases without taps": (Conv2D(8, 1, stride=2), Shape(9, 5, 6)),
    "dilation over the stride": (Conv2D(7, 3, stride=2, dilation=3, padding="same"), Shape(6, 7, 8)),
    "groups": (Conv2D(21, (3, 2), groups=3, padding=((1, 1), (0, 1)), bias="position"), Shape(15, 4, 5)),
    "one row": (Conv1D(10, 5, padding="same"), Shape(24, 150)),
    "one position": (Conv2D(12, (3, 4)), Shape(13, 3, 4)),
    "weights in place": (Conv2D(16, 1), Shape(12, 3, 7)),
    "weights in place, strides, groups": (Conv2D(24, 1, stride=(1, 2), groups=3), Shape(108, 2, 5)),
}
#: Few units a group.
STRIPS: Layers = {
    "depthwise": (Conv2D(6, 3, groups=6, padding="same"), Shape(6, 9, 11)),
    "depthwise, strides": (Conv2D(5, (3, 2), stride=(2, 3), groups=5, padding=1, bias="position"), Shape(5, 9, 10)),
    "depthwise, two a unit": (Conv2D(8, 3, groups=4, dilation=(1, 2), padding=(1, 2), bias=False), Shape(4, 7, 6)),
    "image": (Conv2D(2, 3, stride=2, padding=1), Shape(3, 9, 7)),
    "stride over the filter": (Conv2D(3, (1, 2), stride=(3, 4)), Shape(2, 8, 11)),
    "dilation over the stride": (Conv2D(4, 3, stride=2, dilation=3, padding="same", groups=2), Shape(4, 7, 8)),
    "one row": (Conv1D(3, 4, padding=(3, 0), groups=3), Shape(3, 70)),
    "one cell": (Conv2D(1, 1), Shape(1, 1, 1)),
}

#: Few positions of all samples, and many input units.
#: Of one position: columns read as they lie.
DOTS: Layers = {
    "one position": (Conv2D(6, 3, bias="position"), Shape(128, 3, 3)),
    "one of many": (Conv2D(5, (3, 2), stride=(3, 4), padding="same"), Shape(150, 3, 4)),
    "more runs than are under way": (Conv2D(3, 3), Shape(700, 3, 3)),
    "a large window": (Conv2D(6, 9), Shape(128, 9, 9)),
}
#: Of several: weights through local memory.
LOCAL_DOTS: Layers = {
    "one row": (Conv1D(9, 5, padding=2), Shape(130, 4)),
    "one row in pairs": (Conv1D(4, 3, padding=1, bias="position"), Shape(128, 4)),
    "several rounds": (Conv1D(3, 5), Shape(1100, 9)),
    "strides, dilation": (Conv2D(5, (3, 2), stride=(2, 1), dilation=(1, 2), padding="same"), Shape(200, 3, 4)),
    "groups": (Conv2D(10, 1, groups=2, bias=False), Shape(290, 2, 3)),
    "many taps": (Conv2D(2, 5, padding=2), Shape(300, 1, 3)),
    "a whole round": (Conv1D(4, 5, padding=2), Shape(256, 4)),
    "rounds of single weights": (Conv1D(3, 5), Shape(1101, 9)),
    "one tap, one warp": (Conv2D(8, 1), Shape(128, 1, 2)),
    "two taps": (Conv1D(8, 2), Shape(160, 3)),
    "one tap": (Conv1D(8, 1), Shape(128, 4)),
    "several samples": (Conv1D(3, 5), Shape(600, 6)),
    "uneven padding": (
        Conv2D(4, (2, 3), padding=((0, 2), (3, 0)), stride=2, dilation=(1, 2), groups=2),
        Shape(262, 2, 3),
    ),
}


def tuning(compute_units: int = 64) -> Tuning:
    """Of a GPU, without the variants that tests/layers/test_convolution_winograd.py has."""
    return tuning_for("gpu", compute_units=compute_units, only={"dot", "strip", "tiled"})


def kernels(run: Run, phase: str) -> list[str]:
    """What a phase launched, but for the gradient of the bias."""
    return [call.kernel for call in run.calls[phase] if "bias" not in call.kernel]


def in_splits(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Splits the rows of all products, and the positions of gradients of weights."""
    monkeypatch.setattr(Tiled, "row_splits", lambda *_: iter([count]))
    monkeypatch.setattr(tiled, "powers_of_two", lambda _: iter([count]))


def packs(kernel: str, layer: Conv1D | Conv2D, shape: Shape) -> list[str]:
    """What packs the weights for backward data: not those of one tap, in whole tiles of 8 rows and in whole quads."""
    rows, columns = layer.filters // layer.groups, shape.units // layer.groups
    taps = math.prod(axis.kernel for axis in layer._axes(shape))
    return [kernel] * (kernel == "convolution/pack_weight_tensor" or (taps, rows % 8, columns % 4) != (1, 0, 0))


def check_tiled(layer: Conv1D | Conv2D, shape: Shape, run: Run) -> None:
    """Asserts that all three directions went through local memory, backward data in the phases that it needs."""
    strides = layer._axes(shape)
    phases = min(strides[0].stride, shape.height) * min(strides[1].stride, shape.width)
    with_taps = phases_with_taps(layer, shape)
    cleared = with_taps < phases and not run.arrangement.accumulate
    assert kernels(run, "forward") == ["convolution/pack_weight", "convolution/forward_tiled"]
    backward = ["convolution/clear"] * cleared + packs("convolution/pack_weight", layer, shape)
    assert kernels(run, "backward data") == backward + ["convolution/backward_data_tiled"] * with_taps
    assert kernels(run, "backward parameters")[0] == "convolution/backward_weight_tiled"


@pytest.mark.parametrize("case", TILED)
@pytest.mark.usefixtures("small_tiles")
def test_products(device: Device, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    in_splits(monkeypatch, 1)
    layer, shape = TILED[case]
    report = contract(device, layer, shape, ["own pitches"], tuning=tuning())
    for run in report.runs.values():
        check_tiled(layer, shape, run)


@pytest.mark.usefixtures("small_tiles")
def test_products_in_every_arrangement(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    in_splits(monkeypatch, 1)
    layer, shape = Conv2D(9, 3, stride=(1, 2), padding="same", bias="position"), Shape(8, 5, 9)
    report = contract(device, layer, shape, fused=("sigmoid",), tuning=tuning(2))
    assert {"tight", "one pitch", "own pitches"} <= set(report.runs)
    for run in report.runs.values():
        check_tiled(layer, shape, run)


def check_splits(layer: Conv1D | Conv2D, shape: Shape, run: Run, way: str, count: int) -> None:
    """Asserts that both directions went through local memory in splits, backward data in all phases."""
    strides = layer._axes(shape)
    phases = min(strides[0].stride, shape.height) * min(strides[1].stride, shape.width)
    (pack,) = {call.kernel for call in run.calls["forward"] if "pack" in call.kernel}
    assert kernels(run, "forward") == [pack, f"convolution/forward_{way}", "convolution/split_sum"]
    backward = packs(pack, layer, shape) + [f"convolution/backward_data_{way}"] * phases + ["convolution/split_sum"]
    assert kernels(run, "backward data") == backward
    for direction in ("forward", "backward data"):
        products = [call for call in run.calls[direction] if "pack" not in call.kernel]
        assert {call.macros["SPLITS"] for call in products} == {count}


# Uneven parts of several steps, parts without any, and phases without any.
@pytest.mark.parametrize("count", [3, 32])
@pytest.mark.parametrize(
    "case",
    [
        *["many source units, not whole tiles", "phases without taps", "groups", "one position"],
        "weights in place, strides, groups",
    ],
)
@pytest.mark.usefixtures("small_tiles")
def test_products_in_splits(device: Device, case: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    in_splits(monkeypatch, count)
    layer, shape = TILED[case]
    report = contract(device, layer, shape, ["own pitches"], tuning=tuning())
    for run in report.runs.values():
        check_splits(layer, shape, run, "tiled", count)


@pytest.mark.usefixtures("small_tiles")
def test_products_in_splits_in_every_arrangement(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    in_splits(monkeypatch, 2)
    layer, shape = Conv2D(9, 3, stride=(1, 2), padding="same", bias="position"), Shape(8, 5, 9)
    report = contract(device, layer, shape, fused=("sigmoid",), tuning=tuning(2))
    for run in report.runs.values():
        check_splits(layer, shape, run, "tiled", 2)


@pytest.mark.parametrize(
    ("filters", "shape", "count", "expected"),
    [
        # A tile of positions, many rows: as many parts as fill the device.
        (320, Shape(960, 7, 7), 1, True),
        # The device is full.
        (320, Shape(960, 28, 28), 64, False),
        # Nothing to gain from another launch.
        (320, Shape(64, 7, 7), 1, False),
    ],
)
def test_few_tiles_choose_splits(filters: int, shape: Shape, count: int, expected: bool) -> None:
    node = layers.Input(*shape.dimensions)()
    model = from_nodes(node, Conv2D(filters, 1, name="layer")(node))
    plan = make_plan(model, count, loss=None, tuning=tuning(132))
    assert any(call.kernel == "convolution/split_sum" for _, call in plan.calls) == expected


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.usefixtures("small_tiles")
@pytest.mark.long
def test_every_tile(device: Device, tile: Tile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiled, "TILES", (tile,))
    # More than one tile of everything, and none of them whole.
    layer, shape = Conv2D(tile.units + 3, (1, 3)), Shape(tile.units + 5, 2, tile.columns // 2)
    report = contract(device, layer, shape, ["tight"], count=2, absolute=4e-5, tuning=tuning())
    macros = report.runs["tight"].calls["forward"][1].macros
    assert {name: macros[name] for name in tile.macros} == tile.macros


# Whole, and in uneven parts.
@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("tile", WEIGHT_TILES, ids=str)
@pytest.mark.usefixtures("small_tiles")
@pytest.mark.long
def test_every_tile_of_weights(device: Device, tile: Tile, splits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiled, "WEIGHT_TILES", (tile,))
    in_splits(monkeypatch, splits)
    layer, shape = Conv2D(tile.units + 3, (1, 2)), Shape(tile.columns // 2 + 3, 3, 7)
    report = contract(device, layer, shape, ["tight"], tuning=tuning())
    macros = report.runs["tight"].calls["backward parameters"][0].macros
    assert {name: macros[name] for name in tile.macros} == tile.macros
    assert macros["SPLITS"] == splits


@pytest.mark.parametrize("case", STRIPS)
@pytest.mark.usefixtures("small_tiles")
def test_strips(device: Device, case: str) -> None:
    layer, shape = STRIPS[case]
    report = contract(device, layer, shape, ["own pitches"], tuning=tuning(1))
    (run,) = report.runs.values()
    assert kernels(run, "forward") == ["convolution/forward_strip"]
    assert kernels(run, "backward data") == ["convolution/backward_data_strip"]


@pytest.mark.usefixtures("small_tiles")
def test_strips_in_every_arrangement(device: Device) -> None:
    layer, shape = Conv2D(4, 3, stride=2, groups=2, padding=1, bias="position"), Shape(4, 7, 9)
    contract(device, layer, shape, fused=("sigmoid",), tuning=tuning())


@pytest.mark.parametrize("kind", [FLOAT32, FLOAT16], ids=str)
@pytest.mark.parametrize("case", [*DOTS, *LOCAL_DOTS])
@pytest.mark.usefixtures("small_tiles")
def test_dot_products(device: Device, case: str, kind: StorageType) -> None:
    layer, shape = (DOTS | LOCAL_DOTS)[case]
    types = {"tuning": replace(tuning(), storage=kind), "weights": kind}
    count = 3 if case == "several samples" else 1
    report = contract(device, layer, shape, ["tight", "own pitches"], count=count, absolute=4e-5, **types)
    for run in report.runs.values():
        assert kernels(run, "forward") == [f"convolution/forward_dot{'_local' * (case in LOCAL_DOTS)}"]


def test_dot_products_read_the_input_in_runs_of_each_length() -> None:
    """Of 4, 2 and 1: the longest that divides the elements of a unit's memory."""
    lanes = set()
    for layer, shape in LOCAL_DOTS.values():
        source = layers.Input(shape.units, shape.height if shape.rank == 2 else None, shape.width)()
        plan = make_plan(from_nodes(source, layer(source)), 1, loss=None, tuning=tuning())
        lanes |= {call.macros["LANES"] for _, call in plan.calls if "dot" in call.kernel}
    assert lanes == {1, 2, 4}


@pytest.mark.parametrize("rows", [1, 3, 9])
@pytest.mark.usefixtures("small_tiles")
def test_strips_of_other_heights(device: Device, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strip, "_ROWS", rows)
    layer, shape = Conv2D(3, 3, stride=(1, 2), groups=3, padding="same"), Shape(3, 7, 5)
    report = contract(device, layer, shape, ["tight"], tuning=tuning())
    assert report.runs["tight"].calls["forward"][0].macros["STRIP"] == min(rows, 7)


@pytest.mark.parametrize(
    ("units", "filters", "kernel_size", "expected"),
    [
        (3, 8, 3, ("forward_tiled", "backward_data_strip", "backward_weight_tiled")),
        (8, 3, 3, ("forward_strip", "backward_data_tiled", "backward_weight_tiled")),
        (2, 2, 3, ("forward_strip", "backward_data_strip", "backward_weight_strip")),
        (3, 8, 14, ("forward_tiled", "backward_data_tiled", "backward_weight_tiled")),
    ],
)
@pytest.mark.usefixtures("small_tiles")
def test_each_direction_chooses_for_itself(
    device: Device, units: int, filters: int, kernel_size: int, expected: tuple[str, ...]
) -> None:
    layer, shape = Conv2D(filters, kernel_size, bias=False), Shape(units, 15, 16)
    report = contract(device, layer, shape, ["tight"], count=1, absolute=1e-4, tuning=tuning())
    names: list[Any] = [
        [name.partition("/")[2] for name in kernels(report.runs["tight"], phase) if name != "convolution/pack_weight"]
        for phase in ("forward", "backward data", "backward parameters")
    ]
    assert tuple(launched[0] for launched in names) == expected
