"""Backward data to few units at a stride as one product, on whatever device there is."""

from __future__ import annotations

import pytest

from blobnet import layers
from blobnet.device.device import Device
from blobnet.implementations import blocks
from blobnet.implementations.tile import Tile
from blobnet.layers import Conv1D, Conv2D
from blobnet.losses import MeanSquaredError
from blobnet.memory.blob import Shape
from blobnet.memory.windows import PhaseAxis, WindowAxis
from blobnet.network.graph import from_nodes
from blobnet.planning import make_plan
from tests.kinds import tuning_for
from tests.layers.layer_contract import ContractReport
from tests.layers.test_convolution import contract
from tests.small_tiles import SMALL

#: What to do, and how many taps all cells of a block share.
CASES: dict[str, tuple[Conv1D | Conv2D, Shape, int]] = {
    "alexnet's first": (Conv2D(5, 11, stride=4, padding=2, bias=False), Shape(3, 15, 23), 9),
    "resnet's first": (Conv2D(6, 7, stride=2, padding=3), Shape(3, 8, 10), 16),
    "without padding": (Conv2D(9, 3, stride=2, bias=False), Shape(2, 7, 9), 4),
    "dilation, groups": (Conv2D(6, 3, stride=2, dilation=3, groups=3), Shape(9, 15, 17), 16),
    "one axis": (Conv2D(4, (3, 4), stride=(1, 3), padding=(1, 0)), Shape(3, 5, 13), 6),
    "cells that no tap meets": (Conv2D(3, 2, stride=3, bias=False), Shape(2, 8, 11), 1),
    "one tap": (Conv2D(16, 1, stride=2), Shape(4, 7, 9), 1),
    "line": (Conv1D(7, 5, stride=2, padding=2), Shape(3, 14), 3),
}


def check(device: Device, case: str, arrangements: list[str] | None = None) -> ContractReport:
    """The layer contract, with one product for all phases."""
    layer, shape, taps = CASES[case]
    tuning = tuning_for("gpu", compute_units=1, only={"blocks"})
    report = contract(device, layer, shape, arrangements, tuning=tuning)
    for run in report.runs.values():
        if run.calls["backward data"]:
            packing, product = run.calls["backward data"][:2]
            assert packing.kernel == "convolution/pack_blocks"
            assert product.kernel == "convolution/backward_data_tiled"
            assert product.macros["TAPS_Y"] * product.macros["TAPS_X"] == taps
            assert not any(call.kernel.endswith("data_tiled") for call in run.calls["backward data"][2:])
    return report


@pytest.mark.parametrize("case", CASES)
def test_cases(device: Device, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "TILES", (SMALL,))
    check(device, case, ["own pitches"])


def test_every_arrangement(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "TILES", (SMALL,))
    report = check(device, "resnet's first")
    assert {"tight", "one pitch", "own pitches", "own zeros"} <= set(report.runs)


@pytest.mark.parametrize("tile", [pytest.param(tile, id=str(tile)) for tile in blocks.TILES[-2:]])
def test_own_tiles(device: Device, tile: Tile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "TILES", (tile,))
    check(device, "alexnet's first", ["tight"])


def test_a_window_holds_all_taps_and_reads_no_more_of_the_halo() -> None:
    reached = 0
    for kernel in range(1, 8):
        for stride, dilation, before, after in ((2, 1, 0, 0), (2, 1, 3, 2), (3, 1, 1, 1), (4, 1, 2, 2), (4, 2, 0, 5)):
            axis = WindowAxis(kernel, stride, dilation, (before, after))
            for size in range(axis.span, axis.span + 2 * stride):
                phase = PhaseAxis.side_by_side(axis, size)
                if phase is None:
                    continue
                reached += 1
                read = {block + phase.shift - tap for block in range(phase.size) for tap in range(phase.count)}
                halo = axis.delta_halo(size)
                assert min(read) >= -halo[0]
                assert max(read) < axis.output_size(size) + halo[1]
                for cell in range(size):
                    block = (cell - phase.offset) // stride
                    assert 0 <= block < phase.size
                    for tap in range(kernel):
                        way = cell + before - tap * dilation
                        if way % stride == 0:
                            assert 0 <= block + phase.shift - way // stride < phase.count
    assert reached > 150


# -- the choice, without a device --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "shape", "kernel"),
    [
        (Conv2D(64, 11, stride=4, padding=2), Shape(3, 224, 224), "tiled"),
        (Conv2D(64, 7, stride=2, padding=3), Shape(3, 224, 224), "strip"),
        (Conv2D(32, 3, stride=2, padding=1), Shape(3, 224, 224), "strip"),
        (Conv2D(64, 3, padding=1), Shape(3, 224, 224), "strip"),
        (Conv2D(144, 3, stride=2, padding=1, groups=144), Shape(144, 56, 56), "strip"),
    ],
)
def test_choice(layer: Conv2D, shape: Shape, kernel: str) -> None:
    """As predicted for an NVIDIA H200 (docs/performance.md)."""
    node = layers.Input(shape.units, shape.height, shape.width)()
    tuning = tuning_for("gpu", compute_units=132)
    graph = from_nodes(node, layer(node))
    plan = make_plan(graph, 64, loss=MeanSquaredError(), training=True, tuning=tuning, input_delta=True)
    found = [call.kernel for _, call in plan.calls if "backward_data" in call.kernel]
    assert found == [f"convolution/backward_data_{kernel}"]
