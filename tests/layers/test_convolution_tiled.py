"""Convolutions where addresses are made in few instructions, on whatever device there is: tiles, and strips."""

from __future__ import annotations

import pytest

from blobnet import layers
from blobnet.device.device import Device
from blobnet.implementations import strip, tiled
from blobnet.implementations.base import BACKWARD_WEIGHTS, DIRECTIONS, FORWARD
from blobnet.implementations.tile import Tile
from blobnet.layers import Conv1D, Conv2D
from blobnet.losses import MeanSquaredError
from blobnet.memory.blob import FLOAT16, FLOAT32, Shape, StorageType
from blobnet.network.graph import from_nodes
from blobnet.planning import make_plan
from tests.kinds import tuning_for
from tests.layers.layer_contract import ContractReport
from tests.layers.test_convolution import contract

#: By what is special; the rows of a tile are 8 here, so that 3 units go row behind row, and 16 tap by tap.
CASES: dict[str, tuple[Conv1D | Conv2D, Shape]] = {
    "row behind row": (Conv2D(5, 5, padding=2), Shape(3, 7, 9)),
    "tap by tap": (Conv2D(16, 3, padding=1), Shape(16, 5, 6)),
    "strides, tap by tap": (Conv2D(16, 5, stride=(2, 3), padding=2), Shape(16, 11, 13)),
    "strides": (Conv2D(6, 5, stride=(2, 3), padding=2), Shape(3, 11, 13)),
    "dilation, groups": (Conv2D(6, 3, stride=2, dilation=3, groups=3, padding=2), Shape(9, 13, 15)),
    "one tap": (Conv2D(7, 1), Shape(5, 6, 7)),
    "one tap, whole runs of units": (Conv2D(48, 1, stride=2, groups=2), Shape(80, 5, 6)),
    "one tap, tiles that overlap": (Conv2D(37, 1), Shape(35, 5, 6)),
    "a row of taps": (Conv2D(6, 8, padding=3), Shape(3, 9, 10)),
    "cells that no tap meets": (Conv2D(3, 2, stride=3, bias=False), Shape(2, 8, 11)),
    "line": (Conv1D(7, 5, stride=2, padding=2), Shape(3, 14)),
}
PRODUCTS = {"convolution/forward_tiled", "convolution/backward_data_tiled", "convolution/backward_weight_tiled"}


def check(device: Device, case: str, storage: StorageType = FLOAT32) -> None:
    """That products with and without make the same numbers."""
    layer, shape = CASES[case]

    def run(compiler: str) -> ContractReport:
        tuning = tuning_for("gpu", compute_units=2, only={"tiled"}, compiler=compiler, storage=storage)
        return contract(device, layer, shape, ["own pitches"], tuning=tuning, absolute=5e-5)

    report = run("amd")
    assert report.results == run("nvidia").results
    calls = [call for run in report.runs.values() for phase in run.calls.values() for call in phase]
    products = [call for call in calls if call.kernel in PRODUCTS]
    assert {call.kernel for call in products} == PRODUCTS
    for call in products:
        has_row = case == "a row of taps" and "weight" not in call.kernel  # in its table
        assert call.macros["CHEAP_ADDRESSES"] == 1 + has_row


@pytest.mark.parametrize("storage", [FLOAT32, FLOAT16], ids=str)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("small_tiles")
def test_cheap_addresses(device: Device, case: str, storage: StorageType) -> None:
    check(device, case, storage)


@pytest.mark.parametrize("case", ["strides", "one tap, whole runs of units", "one tap, tiles that overlap"])
@pytest.mark.usefixtures("small_tiles")
def test_gradients_of_16_positions_a_step(device: Device, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiled, "WEIGHT_TILES", (Tile(32, 32, 16, 4, 4, speed=1),))
    check(device, case)


@pytest.mark.parametrize("height", [7, 8])  # of one strip and three rows of another; of whole strips
def test_gradients_in_strips(device: Device, height: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bits whoever the compiler is of, in strips of as many rows."""
    monkeypatch.setattr(strip, "_CHEAP_ROWS", 4)
    layer, shape = Conv2D(3, 5, stride=(1, 2), padding=2, groups=3), Shape(3, height, 9)

    def run(compiler: str) -> ContractReport:
        tuning = tuning_for("gpu", compute_units=2, only={"strip"}, compiler=compiler)
        return contract(device, layer, shape, ["own pitches"], tuning=tuning, absolute=5e-5)

    report = run("amd")
    assert report.results == run("nvidia").results
    calls = [call for run in report.runs.values() for phase in run.calls.values() for call in phase]
    (told,) = {call.macros["CHEAP_ADDRESSES"] for call in calls if call.kernel == "convolution/backward_weight_strip"}
    assert told == 1


@pytest.mark.parametrize(
    ("layer", "height", "rows"),
    [
        (Conv2D(3, 5, padding=2, groups=3), 7, 7),
        (Conv2D(3, 5, padding=2, groups=3), 9, 5),
        (Conv2D(3, (3, 4), stride=(2, 1), padding=2, groups=3), 17, 5),
        (Conv2D(3, (3, 2), dilation=(2, 3), padding=2, groups=3), 16, 8),
        (Conv2D(3, (2, 1), stride=3, groups=3), 2, 1),
    ],
    ids=["a plane", "a row twice", "strides", "dilation", "a row alone"],
)
def test_gradients_in_long_strips(device: Device, layer: Conv2D, height: int, rows: int) -> None:
    tuning = tuning_for("gpu", compute_units=2, only={"strip"}, compiler="intel")
    report = contract(device, layer, Shape(3, height, 9), ["own pitches"], tuning=tuning, absolute=5e-5)
    calls = [call for run in report.runs.values() for phase in run.calls.values() for call in phase]
    (told,) = {call.macros["STRIP"] for call in calls if call.kernel == "convolution/backward_weight_strip"}
    assert told == rows


def cheap(layer: Conv2D, shape: Shape, direction: str, compiler: str | None, count: int = 64) -> set[int]:
    """What the products of the tiles for one direction of a layer are told."""
    source = layers.Input(*shape.dimensions)()
    graph = from_nodes(source, layer(source))
    tuning = tuning_for("gpu", only={"tiled"}, compiler=compiler)
    plan = make_plan(graph, count, training=True, input_delta=True, loss=MeanSquaredError(), tuning=tuning)
    kernel = f"convolution/{direction.removesuffix('s').replace(' ', '_')}_tiled"
    return {int(call.macros["CHEAP_ADDRESSES"]) for _, call in plan.calls if call.kernel == kernel}


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("compiler", "wanted"), [("amd", 1), ("intel", 1), ("nvidia", 0), (None, 0)])
def test_by_whose_compiler_it_is(direction: str, compiler: str | None, wanted: int) -> None:
    assert cheap(Conv2D(32, 3, padding=1), Shape(32, 8, 8), direction, compiler) == {wanted}


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_not_where_bytes_are_no_32_bits(direction: str) -> None:
    layer, shape = Conv2D(64, 3, padding=1), Shape(64, 254, 254)  # 16 MiB a sample, and its halo
    assert cheap(layer, shape, direction, "amd", 200) == {1}
    assert cheap(layer, shape, direction, "amd", 300) == {0}


def test_not_where_a_table_of_rows_would_take_the_room_of_work_groups() -> None:
    layer = Conv2D(32, 11, padding=5)
    assert cheap(layer, Shape(3, 16, 16), FORWARD, "amd") == {1}
    assert cheap(layer, Shape(20, 16, 16), FORWARD, "amd") == {0}
    # One of the rows of a row of taps has room, where steps lie within them.
    assert cheap(Conv2D(32, 16, stride=16), Shape(3, 64, 64), FORWARD, "amd") == {2}
    assert cheap(Conv2D(32, 14, stride=14), Shape(3, 56, 56), FORWARD, "amd") == {0}
    # Those of whole tiles of units need none, nor do gradients of weights.
    assert cheap(layer, Shape(64, 16, 16), FORWARD, "amd") == {1}
    assert cheap(layer, Shape(20, 16, 16), BACKWARD_WEIGHTS, "amd") == {1}
