"""Convolutions on tensor cores that take cells: where there are none, on what kernels/warp_group.h puts in their place.

Small integers are exact in tf32 and in bfloat16, and so are their sums in fp32: the layer contract holds as for fp32.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from blobnet.device import splice
from blobnet.device.device import Device
from blobnet.examination.checks import plan_alone
from blobnet.implementations import cells
from blobnet.implementations.base import BACKWARD_DATA, BACKWARD_WEIGHTS, FORWARD
from blobnet.implementations.cells import TILES, WEIGHT_TILES, CellTile
from blobnet.launch.kernel_call import Tuning
from blobnet.launch.kernel_source import load
from blobnet.layers import Conv1D, Conv2D
from blobnet.memory.blob import Shape
from tests.kinds import tuning_for
from tests.layers.test_convolution_tensor import MORE_CASES, check_rounding, exact, need_tensor_cores
from tests.layers.test_convolution_variants import in_splits

CASES: dict[str, tuple[Conv1D | Conv2D, Shape]] = {
    **{name: case for name, case in MORE_CASES.items() if name != "whole tiles"},
    "odd": (Conv2D(37, 3, padding="same", bias="position"), Shape(17, 5, 9)),
    "valid": (Conv2D(70, (2, 3)), Shape(9, 5, 6)),
    "one tap": (Conv2D(37, 1, bias=False), Shape(36, 6, 6)),
    "padding beyond the filter": (Conv2D(5, 2, padding=((3, 0), (0, 4))), Shape(6, 3, 4)),
    "groups and dilation": (Conv2D(21, (3, 2), dilation=(1, 2), groups=3, padding=((1, 1), (0, 1))), Shape(15, 4, 5)),
    "phases of several taps": (Conv2D(10, 5, stride=2, padding=2, groups=2), Shape(18, 9, 8)),
}
#: What factors are rounded to, and by how much of themselves at most.
ROUNDING = {"tf32": 2.0**-11, "bf16": 2.0**-8}


def tuning(precision: str = "bf16") -> Tuning:
    return tuning_for("gpu", compute_units=2, precision=precision, only={"cells"})


@pytest.mark.parametrize("precision", ROUNDING)
@pytest.mark.parametrize("case", CASES)
def test_exact_products(device: Device, small_tiles: None, case: str, precision: str) -> None:
    report = exact(device, *CASES[case], ["tight"], tuning=tuning(precision))
    phases = ["forward", "backward data", *(["backward parameters"] if precision == "bf16" else [])]
    for run, phase in product(report.runs.values(), phases):
        assert any("cells" in call.kernel for call in run.calls[phase])
        assert not any("tensor" in call.kernel for call in run.calls[phase])


@pytest.mark.parametrize("case", ["odd", "phases without taps", "stride over the filter"])
def test_splits(device: Device, small_tiles: None, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    in_splits(monkeypatch, 3)
    report = exact(device, *CASES[case], ["tight"], fused=("sigmoid",), tuning=tuning())
    for run in report.runs.values():
        products = [call for calls in run.calls.values() for call in calls if call.kernel.endswith("_cells")]
        splits = {call.kernel: call.macros["SPLITS"] for call in products if "SPLITS" in call.macros}
        assert set(splits.values()) == {3}, splits


@pytest.mark.parametrize("tile", [*TILES, *WEIGHT_TILES], ids=str)
def test_every_tile(device: Device, tile: CellTile, monkeypatch: pytest.MonkeyPatch) -> None:
    need_tensor_cores(device)
    monkeypatch.setattr(cells, "TILES" if tile in TILES else "WEIGHT_TILES", (tile,))
    # More than one tile of everything, and none of them whole; more steps than stages.
    layer = Conv2D(tile.units + 3, (1, 3) if tile in TILES or tile.all_taps > 1 else 1)
    exact(device, layer, Shape(2 * tile.units + 5, 2, tile.columns // 2), ["tight"], tuning=tuning())


@pytest.mark.parametrize("precision", ROUNDING)
def test_error(device: Device, small_tiles: None, precision: str) -> None:
    check_rounding(device, tuning(precision), ROUNDING[precision], absolute=2.0)


@pytest.mark.parametrize(
    "case", [(Conv2D(8, 2, 2, padding=1), Shape(8, 14, 14)), (Conv2D(8, 1, padding=1), Shape(8, 5, 5))]
)
def test_all_that_is_read_is_there(case: tuple[Conv2D, Shape]) -> None:
    """Positions that are read are there, and what is read between samples and rows is zeros."""
    for direction in (FORWARD, BACKWARD_DATA, BACKWARD_WEIGHTS):
        for item in cells.Cells.candidates(plain(*case, 3, direction)):
            assert isinstance(item, cells.Cells)
            positions = 3 * item.sample_positions
            tile = item.tile.depth if item.of_weights else item.tile.columns
            for _, span, first in item.tables:
                last = -(-positions // tile) * tile + item.lead + first + span
                assert item.lead + first >= 0
                assert last <= item.lead + positions + item.tail


def test_what_has_no_room_is_no_candidate() -> None:
    """Runs of planes that are so wide fit no local memory, and cells of many samples no buffer."""
    for layer, shape, count in ((Conv2D(8, 9), Shape(8, 40, 4000), 1), (Conv2D(8, 3), Shape(64, 300, 300), 500)):
        for direction in (FORWARD, BACKWARD_DATA, BACKWARD_WEIGHTS):
            operation = plain(layer, shape, count, direction)
            assert [*cells.Cells.tiles(operation)]
            assert not [*cells.Cells.candidates(operation)]


def test_other_tensor_cores_get_none() -> None:
    """Those of other compute capabilities have no such instructions; None is a device that is simulated."""
    for capability, is_there in ((None, True), ((9, 0), True), ((8, 0), False), ((10, 0), False)):
        operation = plain(Conv2D(8, 3), Shape(8, 9, 9), 2, FORWARD)
        model = replace(operation.tuning.model, capability=capability)
        operation = replace(operation, tuning=replace(operation.tuning, model=model))
        assert bool([*cells.Cells.candidates(operation)]) == is_there


def plain(layer: Conv2D, shape: Shape, count: int, direction: str) -> Any:
    """An operation of a layer alone."""

    site = plan_alone(layer, shape, count, tuning())[1]
    return layer.operation(site, direction)


def test_instructions_take_the_place_of_their_comments() -> None:
    text = ".version 8.8\n.target sm_90\n\t//sm_90a wgmma.fence.sync.aligned;\n\tadd.f32 %f1, %f2, %f3;\n"
    wanted = ".version 8.8\n.target sm_90a\n\twgmma.fence.sync.aligned;\n\tadd.f32 %f1, %f2, %f3;\n"
    assert splice.spliced(text.encode()) == wanted.encode()
    assert splice.MARK in load("convolution/forward_cells")._expanded
