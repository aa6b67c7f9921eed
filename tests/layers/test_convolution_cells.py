"""Convolutions on tensor cores that take cells: where there are none, on what kernels/warp_group.h puts in their place.

Small integers are exact in tf32 and in bfloat16, and so are their sums in fp32: the layer contract holds as for fp32.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from blobnet.device import splice
from blobnet.device.device import Device
from blobnet.examination.checks import plan_alone
from blobnet.implementations import candidates, cells
from blobnet.implementations.base import BACKWARD_DATA, BACKWARD_WEIGHTS, DIRECTIONS, FORWARD
from blobnet.implementations.cells import FEW_TILES, TILES, CellTile
from blobnet.launch.kernel_call import Tuning
from blobnet.launch.kernel_source import load
from blobnet.layers import Conv1D, Conv2D
from blobnet.memory.blob import BFLOAT16_CELLS, CELLS_OF, BlobLayout, Shape
from tests.kinds import tuning_for
from tests.layers.layer_contract import ContractReport
from tests.layers.test_convolution import contract
from tests.layers.test_convolution_tensor import MORE_CASES, check_rounding, exact, need_tensor_cores
from tests.layers.test_convolution_variants import in_splits

CASES: dict[str, tuple[Conv1D | Conv2D, Shape]] = {
    **{name: case for name, case in MORE_CASES.items() if name != "whole tiles"},
    "odd": (Conv2D(37, 3, padding="same", bias="position"), Shape(17, 5, 9)),
    "valid": (Conv2D(70, (2, 3)), Shape(9, 5, 6)),
    "one tap": (Conv2D(37, 1, bias=False), Shape(36, 6, 6)),
    "padding beyond the filter": (Conv2D(5, 2, padding=((3, 0), (0, 4))), Shape(6, 3, 4)),
    "groups and dilation": (Conv2D(21, (3, 2), dilation=(1, 2), groups=3, padding=((1, 1), (0, 1))), Shape(15, 4, 5)),
    "rows of taps far apart, in several tiles": (Conv2D(9, 3, padding="same"), Shape(10, 3, 190)),
    "phases of several taps": (Conv2D(10, 5, stride=2, padding=2, groups=2), Shape(18, 9, 8)),
    "few units": (Conv2D(20, 7, stride=2, padding=3), Shape(3, 11, 12)),
    "several tiles of few units": (Conv2D(20, (2, 9)), Shape(8, 4, 12)),
    "few units at a stride": (Conv2D(20, 11, stride=4, padding=2), Shape(3, 23, 26)),
    "a stride along one axis, dilated along the other": (
        Conv2D(12, 3, stride=(1, 2), dilation=(2, 1), padding=1),
        Shape(10, 7, 9),
    ),
    "few units of groups": (Conv2D(10, (2, 3), dilation=(1, 2), groups=2, padding=((1, 0), (3, 1))), Shape(10, 4, 7)),
}
#: What factors are rounded to, and by how much of themselves at most.
ROUNDING = {"tf32": 2.0**-11, "bf16": 2.0**-8, "fp16": 2.0**-11}


def tuning(precision: str = "bf16") -> Tuning:
    return tuning_for("gpu", compute_units=2, precision=precision, only={"cells"})


@pytest.mark.parametrize("precision", ROUNDING)
@pytest.mark.parametrize("case", CASES)
def test_exact_products(device: Device, small_tiles: None, case: str, precision: str) -> None:
    report = exact(device, *CASES[case], ["tight"], tuning=tuning(precision))
    for run, phase in product(report.runs.values(), ["forward", "backward data", "backward parameters"]):
        assert any("cells" in call.kernel for call in run.calls[phase])
        assert not any("tensor" in call.kernel for call in run.calls[phase])


#: Of units in whole cells.
WHOLE: dict[str, tuple[Conv1D | Conv2D, Shape]] = {
    "same": (Conv2D(24, 3, padding="same"), Shape(40, 5, 6)),
    "valid": (Conv2D(72, (2, 3), bias=False), Shape(16, 5, 6)),
    "one tap": (Conv2D(40, 1, bias=False), Shape(24, 5, 4)),
    "groups and dilation": (
        Conv2D(48, (3, 2), dilation=(1, 2), groups=3, padding=((1, 1), (0, 1)), bias=False),
        Shape(24, 4, 5),
    ),
    "stride": (Conv2D(16, 3, stride=2, padding=1), Shape(8, 7, 6)),
    "stride, in several tiles": (Conv2D(16, 3, stride=2, padding=1), Shape(16, 5, 301)),
    "stride of one tap": (Conv2D(16, 1, stride=2, bias=False), Shape(8, 7, 6)),
    "stride, of groups": (Conv2D(48, 3, stride=2, padding=1, groups=2, bias=False), Shape(32, 7, 8)),
    "stride of 3, dilated": (Conv2D(16, 3, stride=(3, 2), dilation=(2, 3), padding=(2, 1)), Shape(24, 11, 13)),
    "stride that goes as often as the filter is long": (Conv2D(16, 2, stride=2, bias=False), Shape(16, 6, 9)),
    "stride over the filter": (Conv2D(16, (2, 1), stride=4, bias=False), Shape(16, 9, 13)),
    "padding beyond the filter": (Conv2D(8, 2, padding=((3, 0), (0, 4)), bias=False), Shape(8, 3, 4)),
    "few input units": (Conv2D(16, 3, padding=1, bias=False), Shape(3, 6, 5)),
    "row": (Conv1D(16, 3, padding=1, bias=False), Shape(16, 9)),
    "samples of a warp group": (Conv2D(32, 3, padding=1), Shape(48, 7, 7)),
    "samples of a little less": (Conv2D(16, 1, bias=False), Shape(48, 7, 7)),
    "samples of a warp group, of groups": (Conv2D(48, (3, 2), padding=1, groups=3), Shape(48, 6, 6)),
}


def copied_whole(report: ContractReport) -> set[Any]:
    """Whether products copy samples whole, where these are as small as can be."""
    made = report.runs["tight"].calls
    calls = [call for phase in ("forward", "backward data") for call in made[phase]]
    return {call.macros["WHOLE_SAMPLES"] for call in calls if "WHOLE_SAMPLES" in call.macros}


@pytest.mark.parametrize(
    ("case", "precision"), [*product(WHOLE, ["bf16", "tf32"]), ("same", "fp16"), ("stride", "fp16")]
)
def test_blobs_of_cells(device: Device, small_tiles: None, case: str, precision: str) -> None:
    """Blobs have cells: they are read and written as they lie, in every arrangement."""
    of_cells = replace(tuning(precision), storage=CELLS_OF[precision])
    report = exact(device, *WHOLE[case], tuning=of_cells, fused=("relu",))
    if case.startswith("samples"):
        assert copied_whole(report) == {1}
    packed = [
        call.label
        for run in report.runs.values()
        for calls in run.calls.values()
        for call in calls
        if call.kernel == "convolution/pack_cells"
    ]
    if case == "few input units":
        assert packed
    else:
        # Those of a gradient have one pitch where all are alike.
        assert all("weight" in label for label in packed), packed


@pytest.mark.parametrize(
    ("layer", "shape", "columns"),
    [
        (Conv2D(16, 2, dilation=2, padding=1), Shape(16, 8, 11), 128),
        (Conv2D(16, 2, dilation=2, padding=1), Shape(16, 8, 11), 256),
        (Conv2D(16, 3, padding=1), Shape(16, 7, 7), 256),
    ],
    ids=["a sample", "two", "four"],
)
def test_whole_samples_of_a_tile(
    device: Device, layer: Conv2D, shape: Shape, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one or two warp groups each; also of the last tile, in which samples are missing, and more than lists."""
    monkeypatch.setattr(cells, "TILES", (CellTile(32, columns, 2, 32, 1, speed=1),))
    of_cells = replace(tuning(), storage=BFLOAT16_CELLS)
    assert copied_whole(exact(device, layer, shape, tuning=of_cells, count=5)) == {1}


@pytest.mark.parametrize("positions", [128, 256])
@pytest.mark.parametrize("case", ["same", "groups and dilation", "stride, in several tiles", "few input units"])
@pytest.mark.parametrize("precision", ["bf16", "tf32"])
def test_units_as_rows(
    device: Device, case: str, positions: int, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A warp group may have 64 units and many positions: in tiles of one and of two warp groups."""
    tile = CellTile(64, 256, 2, 64, 1, speed=1, group_positions=positions)
    monkeypatch.setattr(cells, "TILES", (tile,))
    of_cells = replace(tuning(precision), storage=CELLS_OF[precision])
    report = exact(device, *WHOLE[case], ["tight"], tuning=of_cells, fused=("relu",), count=4)
    products = [call for call in report.runs["tight"].calls["forward"] if call.kernel.endswith("forward_cells")]
    assert [call.macros["GROUP_POSITIONS"] for call in products] == [positions]


#: Of units that are apart.
APART: dict[str, tuple[Conv1D | Conv2D, Shape]] = {
    "same": (Conv2D(16, 3, padding="same", groups=16), Shape(16, 5, 9)),
    "stride": (Conv2D(8, 3, stride=2, padding=1, groups=8), Shape(8, 8, 9)),
    "stride of 3 and dilation": (
        Conv2D(8, (2, 3), stride=(1, 3), dilation=(3, 2), padding=((1, 0), (2, 3)), groups=8),
        Shape(8, 7, 13),
    ),
    "large": (Conv2D(24, 7, padding=3, groups=24), Shape(24, 6, 5)),
    "one tap": (Conv2D(8, 1, stride=2, groups=8), Shape(8, 3, 5)),
    "row": (Conv1D(8, 5, padding=2, groups=8), Shape(8, 7)),
}


@pytest.mark.parametrize("case", APART)
def test_units_that_are_apart(device: Device, case: str) -> None:
    """Depthwise convolutions of blobs of cells have kernels of their own."""
    layer, shape = APART[case]
    of_cells = tuning_for("gpu", compute_units=2, precision="bf16", storage=BFLOAT16_CELLS, only={"cellwise"})
    report = contract(device, layer, shape, tuning=of_cells, fused=("relu",), relative=2.0**-7, absolute=2.0**-7)
    for run in report.runs.values():
        convolutions = {kernel for kernel in run.kernels if kernel.startswith("convolution")}
        assert convolutions
        assert all(kernel.endswith("cellwise") for kernel in convolutions), convolutions


@pytest.mark.parametrize("case", ["odd", "phases without taps", "stride over the filter"])
def test_splits(device: Device, small_tiles: None, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    in_splits(monkeypatch, 3)
    report = exact(device, *CASES[case], ["tight"], fused=("sigmoid",), tuning=tuning())
    for run in report.runs.values():
        products = [call for calls in run.calls.values() for call in calls if call.kernel.endswith("_cells")]
        splits = {call.kernel: call.macros["SPLITS"] for call in products if "SPLITS" in call.macros}
        assert set(splits.values()) == {3}, splits


#: Blocks of units, groups and splits.
TURNS = {"blocks": (130, 3, 1, 1), "groups": (40, 1, 2, 1), "splits": (70, 2, 1, 2)}


@pytest.mark.parametrize("case", TURNS)
def test_work_groups_take_several_tiles(
    device: Device, small_tiles: None, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each those of its block of units, of its group and split."""
    units, blocks, groups, splits = TURNS[case]
    if splits > 1:
        in_splits(monkeypatch, splits)
    settings = tuning_for("gpu", compute_units=2 * blocks * groups * splits, precision="bf16", only={"cells"})
    layer = Conv2D(units, 3, padding=1, groups=groups)
    report = exact(device, layer, Shape(20, 4, 37), ["tight"], tuning=settings)
    for run in report.runs.values():
        for call in (call for call in run.calls["forward"] if call.kernel.endswith("forward_cells")):
            size = call.global_size
            assert size.most == 2
            assert 3 * size.positions > 2 * size.most * size.tile


@pytest.mark.parametrize(
    ("name", "tile"),
    [
        (name, tile)
        for name in ("TILES", "WEIGHT_TILES", "TF32_WEIGHT_TILES", "FEW_TILES")
        for tile in getattr(cells, name)
    ],
    ids=str,
)
def test_every_tile(device: Device, name: str, tile: CellTile, monkeypatch: pytest.MonkeyPatch) -> None:
    need_tensor_cores(device)
    monkeypatch.setattr(cells, name, (tile,))
    # More than one tile of everything, and none of them whole; more steps than stages.
    filters, stride, count = {1: (1, 1), 3: (1, 3), 4: (3, 3), 9: (3, 3)}[tile.all_taps], 1 + (tile.all_taps == 4), 3
    shape, units = Shape(2 * tile.units + 5, 2, tile.columns // 2), tile.units + 3
    if tile in TILES:
        filters = (1, 3)
        if tile.units_are_rows:  # Of units one tile, in both directions.
            shape, units = shape.with_units(tile.units - 3), tile.units - 5
    elif tile in FEW_TILES:
        filters, shape, stride = (5, 9), Shape(8, 15, 40), 1
    else:
        shape, count = Shape(tile.columns + 5, 9 * stride, 40 * stride), 4
    layer = Conv2D(units, filters, stride=stride)
    precision = "tf32" if name == "TF32_WEIGHT_TILES" else "bf16"
    report = exact(device, layer, shape, ["tight"], count=count, tuning=tuning(precision))
    sizes = {"TILE_UNITS": tile.units, "TILE_COLUMNS": tile.columns}
    for phase in ["forward", "backward data"] if tile in TILES else ["backward parameters"]:
        made = [call.macros for call in report.runs["tight"].calls[phase] if call.kernel.endswith("_cells")]
        assert any(sizes.items() <= macros.items() for macros in made), phase
    if name.endswith("WEIGHT_TILES"):
        for call in (call for run in report.runs.values() for call in run.calls["backward parameters"]):
            if call.kernel.endswith("weight_cells"):
                facts = {name: int(call.macros[name]) for name in ("SAMPLE_POSITIONS", "SPLITS", "STAGES")}
                steps = count * facts["SAMPLE_POSITIONS"] / tile.depth / facts["SPLITS"]
                assert steps > facts["STAGES"], facts


def test_ways_of_a_task_have_names_of_their_own() -> None:
    """One that was tuned, or is broken, is that one."""
    for layer in (Conv2D(64, 3, padding=1), Conv2D(64, 1), Conv2D(64, 3, stride=2)):
        for direction in DIRECTIONS:
            site = plan_alone(layer, Shape(64, 56, 56), 64, tuning_for("gpu", compute_units=132, precision="bf16"))[1]
            names = [str(item.way) for item in candidates(layer.operation(site, direction))]
            assert len(names) == len({*names}), sorted(names)


@pytest.mark.parametrize("precision", ROUNDING)
def test_error(device: Device, small_tiles: None, precision: str) -> None:
    check_rounding(device, tuning(precision), ROUNDING[precision], absolute=2.0)


@pytest.mark.parametrize("lies", [False, True], ids=["packed", "lies"])
@pytest.mark.parametrize(
    "case",
    [
        (Conv2D(16, 2, 2, padding=1), Shape(16, 6, 6)),
        (Conv2D(16, 1, padding=1), Shape(16, 5, 5)),
        (Conv2D(16, (3, 2), padding=((0, 2), (1, 0)), dilation=(1, 2)), Shape(16, 4, 5)),
        (Conv2D(16, (2, 3), padding=((1, 0), (0, 2))), Shape(16, 3, 6)),
        (Conv2D(16, 3, padding=1), Shape(16, 7, 7)),
    ],
)
def test_taps_read_their_cells_or_zeros(case: tuple[Conv2D, Shape], lies: bool) -> None:
    """Whatever the padding: of positions of all samples, at all results, each tap's cell is the one of the formula."""
    layer, shape = case
    for direction in (FORWARD, BACKWARD_DATA, BACKWARD_WEIGHTS):
        operation = plain(layer, shape, 3, direction)
        if lies:
            is_delta, of = direction == BACKWARD_DATA, operation.source.layout.shape
            layout = BlobLayout.padded(of, layer.delta_halo([shape]) if is_delta else layer.input_halo([shape]))
            read = replace(operation.source, layout=layout, type=BFLOAT16_CELLS)
            made = {"output" if is_delta else "input": read}
            operation = replace(operation, **made)
        item = next(cells.Cells.candidates(operation))
        assert isinstance(item, cells.Cells)
        counted, source, reads = item.counted, operation.source, item.source_taps
        (lists, *_) = counted.lists
        is_strided = operation.strides != (1, 1) and direction != BACKWARD_DATA
        assert lists.way == ("packed" if not lies else "scattered" if is_strided else "lie")
        apart = lists.cells * lists.list
        begins = [run * apart for run in range(reads.source_phases)]
        if lists.way == "scattered":
            begins = [y * source.layout.width.memory + x for y, x in product(reads.rows.phases, reads.places.phases)]
        # What the cells of a sample are: numbers of the source's, or -1.
        places = source.layout.plane_extent if counted.whole else counted.sample
        found = np.full((reads.source_phases, places), -1)
        height, width = source.shape.height, source.shape.width
        strides = operation.strides if direction != BACKWARD_DATA else (1, 1)
        for y, x in product(range(height), range(width)):
            row, place = y % strides[0] - reads.rows.phases[0], x % strides[1] - reads.places.phases[0]
            if row in range(len(reads.rows.phases)) and place in range(len(reads.places.phases)):
                run = row * len(reads.places.phases) + place
                at = lists.base + y // strides[0] * counted.row + x // strides[1]
                assert found[run, at] == -1
                found[run, at] = y * width + x
        if lists.way == "lie":
            layout = source.layout
            assert counted.whole or counted.sample <= layout.plane_extent
            assert lists.base == layout.height.before * layout.width.memory + layout.width.before
        ways = zip(item.phases(operation), counted.tables, item.runs, strict=True)
        for phase, (_, _, first), runs in ways:
            axes = phase.vertical, phase.horizontal
            for (run, run_shift, tap), n in product(runs.taps, range(3)):
                # Phases beside one another lie so in a run.
                beside, tap_shift = divmod(run_shift, item.tile.positions + runs.span)
                assert beside < item.beside
                start, shift = begins.index(runs.table[run][0]) + beside, tap_shift + runs.table[run][1]
                numbers = divmod(tap, phase.horizontal.filter_taps)
                steps = [(number - axis.first) // axis.step for number, axis in zip(numbers, axes, strict=True)]
                for at in product(range(phase.vertical.size), range(phase.horizontal.size)):
                    cell = at[0] * counted.row + at[1] + lists.base + first + shift
                    # Of samples that are copied whole a tap reads no other's cells.
                    sample, cell = (n, cell) if counted.whole else divmod(n * places + cell, places)
                    y, x = (
                        axis.stride * place + axis.shift + step * axis.shift_step
                        for axis, place, step in zip(axes, at, steps, strict=True)
                    )
                    number = found[start, cell]
                    if 0 <= y < height and 0 <= x < width:
                        assert (sample, number) == (n, y * width + x)
                    else:
                        # After the last sample the last one is read again.
                        assert number == -1


@pytest.mark.parametrize(
    ("layer", "units", "beside"),
    [
        (Conv2D(16, 3, padding=1), 64, [(1, 1)]),
        (Conv2D(16, 3, stride=2, padding=1), 64, [(1, 2)] * 2),
        (Conv2D(16, 1, stride=2), 64, [(1, 1)] * 4),
        (Conv2D(16, 2, stride=2), 64, [(2, 2)]),
        (Conv2D(16, 3, stride=(2, 1), padding=1), 64, [(2, 1)]),
        (Conv2D(16, 11, stride=4, padding=2), 3, [(4, 4)]),
    ],
)
def test_phases_lie_side_by_side(layer: Conv2D, units: int, beside: list[tuple[int, int]]) -> None:
    """Where that multiplies little by zeros: along a row, or all of few units."""
    phases = cells.Cells.phases(plain(layer, Shape(units, 32, 32), 8, BACKWARD_DATA))
    assert [(phase.vertical.beside, phase.horizontal.beside) for phase in phases] == beside


def test_what_has_no_room_is_no_candidate() -> None:
    """Runs of rows of taps that are so wide fit no local memory, and cells of many samples no buffer."""
    for layer, shape, count in (
        (Conv2D(64, (1, 3000)), Shape(64, 1, 4000), 1),
        (Conv2D(8, 3), Shape(64, 300, 300), 1000),
    ):
        for direction in (FORWARD, BACKWARD_DATA, BACKWARD_WEIGHTS):
            operation = plain(layer, shape, count, direction)
            assert [*cells.Cells.tiles(operation)]
            assert not [*cells.Cells.candidates(operation)]


@pytest.mark.parametrize(
    ("layer", "shape", "precision", "beside"),
    [
        (Conv2D(128, 3, stride=2, padding=1), Shape(64, 208, 208), "tf32", {1}),
        (Conv2D(64, 7, stride=2, padding=3), Shape(64, 224, 224), "bf16", {1}),
        (Conv2D(128, 3, stride=2, padding=1), Shape(128, 56, 56), "bf16", {2}),
    ],
)
def test_phases_that_have_no_room_side_by_side_have_runs_of_their_own(
    layer: Conv2D, shape: Shape, precision: str, beside: set[int]
) -> None:
    operation = plain(layer, shape, 16, BACKWARD_WEIGHTS)
    in_cells = {name: replace(getattr(operation, name), type=CELLS_OF[precision]) for name in ("input", "output")}
    operation = replace(operation, **in_cells, tuning=tuning(precision))
    found = [*cells.Cells.candidates(operation)]
    assert len(found) >= 4
    assert {item.beside for item in found} >= beside


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
