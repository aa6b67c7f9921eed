"""The kernels of the seeds: each rung keeps the layer contract on odd shapes, and is what it says it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from blobnet import graph, layers
from blobnet.bench import ladder
from blobnet.bench.ladder import LADDERS, Rung
from blobnet.bench.shapes import parse
from blobnet.blob import Shape
from blobnet.device import Device
from blobnet.errors import OptionError, ShapeError
from blobnet.kernel_call import KernelCall
from blobnet.layers import Conv1D, Conv2D
from blobnet.planning import make_plan
from tests.layers.layer_bench import Arrangement, Bench, make_problem
from tests.layers.test_convolution import arguments, contract, sides
from tests.reference import convolution as reference
from tests.reference.activation import ACTIVATIONS
from tests.reference.compare import assert_close

#: Rungs by "seed name"; the concise one is the same in all ladders.
RUNGS = {f"{seed} {rung.name}": rung for seed, rungs in LADDERS.items() for rung in rungs.rungs}
#: For each seed: units that no block divides, odd widths, strides, dilations, paddings; a different bias mode each.
SHAPES: dict[str, list[tuple[Conv1D | Conv2D, Shape]]] = {
    "000": [
        (Conv2D(19, 3, padding="same"), Shape(5, 4, 9)),
        (Conv2D(18, (3, 2), stride=(1, 2), dilation=(2, 3), padding=(1, 2), bias="position"), Shape(3, 6, 11)),
    ],
    "002": [
        (Conv1D(3, 5, padding=2), Shape(21, 4)),
        (Conv1D(5, 3, stride=2, dilation=3, padding=(2, 0), bias="position"), Shape(33, 23)),
    ],
    "004": [
        (Conv2D(7, 1, bias=False), Shape(9, 3, 5)),
        (Conv2D(6, 1, stride=(1, 2), padding=1, bias="position"), Shape(7, 3, 6)),
    ],
}
#: What is fused on the first of the shapes, and on the second.
FUSED = ("relu6", "leaky_relu")
CASES = [
    pytest.param(rung, *shape, fused, id=f"{name}, {fused}")
    for name, rung in RUNGS.items()
    for shape, fused in zip(SHAPES[name[:3]], FUSED, strict=True)
]


def compared_calls() -> Iterator[KernelCall]:
    """What the cases launch."""
    for case in CASES:
        rung, convolution, shape, _ = case.values
        node = layers.Input(shape.units, shape.height if shape.rank == 2 else None, shape.width)()
        plan = make_plan(graph.from_nodes(node, rung.layer(convolution)(node)), 3)
        yield from (call for _, call in plan.calls)


@pytest.mark.parametrize(("rung", "convolution", "shape", "fused"), CASES)
def test_every_rung(device: Device, rung: Rung, convolution: Conv1D | Conv2D, shape: Shape, fused: str) -> None:
    report = contract(
        device,
        convolution,
        shape,
        ["own pitches"],
        stand_in=rung.layer(convolution),
        training=False,
        fused=(fused,),
        tuning=device.tuning,
    )
    assert set(report.runs) == {"own pitches", f"with {fused}"}
    for run in report.runs.values():
        assert run.calls["forward"][-1].kernel == rung.kernel
        macros = run.calls["forward"][-1].macros
        assert {name: macros[name] for name in rung.macros} == rung.macros


@pytest.mark.parametrize("items", [1, 4])
@pytest.mark.parametrize("channels", [1, 2, 16])
def test_rounds_of_channels(device: Device, channels: int, items: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladder, "_MOST_ITEMS", items)
    convolution, shape = Conv1D(3, 4, padding=(1, 2)), Shape(67, 5)
    stand_in = RUNGS["002 local memory" if channels == 1 else f"002 {channels} channels"].layer(convolution)
    report = contract(device, convolution, shape, ["tight"], stand_in=stand_in, training=False)
    assert report.runs["tight"].calls["forward"][0].local_size == (items, 1, 1)


def test_shares_of_local_memory_fit() -> None:
    convolution = Conv1D(2, 100)
    for channels, name in ((1, "local memory"), (2, "2 channels")):
        rung = RUNGS[f"002 {name}"]
        node = layers.Input(1024, None, 120)()
        plan = make_plan(graph.from_nodes(node, rung.layer(convolution)(node)), 1)
        (call,) = [call for _, call in plan.calls if call.kernel == rung.kernel]
        assert call.local_size is not None
        # A tile of 8 positions reads 107 values.
        assert 4 * call.local_size[0] * (channels * 107 | 1) <= 40 << 10 < 8 * call.local_size[0] * (channels * 107 + 1)


@pytest.mark.parametrize(
    "name",
    ["000 concise", "000 input vectors", "000 16 units, 2 columns", "002 local memory", "004 4 units, 2 columns"],
)
def test_what_is_stored_before_the_activation(device: Device, name: str) -> None:
    convolution, shape = SHAPES[name[:3]][1]
    problem = make_problem(RUNGS[name].layer(convolution, preactivation=True), [shape], seed=3)
    bench = Bench(device, problem, Arrangement("stored", training=False, activation="relu6"))
    bench.load()
    bench.run("forward")
    _, stride, dilation = arguments(convolution)
    weight, bias = (problem.parameters[key].astype(np.float64) for key in ("weight", "bias"))
    if convolution.rank == 1:
        weight, bias = weight[:, :, None], bias[:, None]
    padding = sides(convolution, shape)
    expected = reference.conv2d(problem.inputs[0], weight, bias, stride=stride, padding=padding, dilation=dilation)
    stored = bench.mirror["memory preactivation"][: expected.size].reshape(expected.shape)
    assert (expected < 0).any()
    assert_close(stored, expected, what="stored", relative=2e-5, absolute=2e-5)
    output = ACTIVATIONS["relu6"][0](expected)
    assert_close(bench.values(bench.output), output, what="output", relative=2e-5, absolute=2e-5)


def test_names_are_unique() -> None:
    for rungs in LADDERS.values():
        assert len({rung.name for rung in rungs.rungs}) == len(rungs.rungs)
        assert rungs.rungs[0].name == "concise"


def test_rungs_are_in_no_file_format() -> None:
    assert "_OnRung" not in layers.Conv2D.kinds
    assert all(kind.__module__ != "blobnet.bench.ladder" for kind in layers.Conv2D.kinds.values())


# -- what takes which shape --------------------------------------------------------------------------------------------


def test_default_shapes_are_those_of_the_device() -> None:
    for kind in ("cpu", "gpu"):
        found = ladder.climbs(kind, None, None, None, "relu")
        assert [(item.seed, str(case)) for item, case in found] == [
            (item.seed, item.shapes[kind]) for item in LADDERS.values()
        ]
        assert all(case.layer.activation == "relu" for _, case in found)


@pytest.mark.parametrize(
    ("text", "seeds"),
    [("4x5x5:6k3", ["000"]), ("4x5x5:6k1s2", ["000", "004"]), ("4x5:6k3", ["000", "002"]), ("4x5:6k1", [*LADDERS])],
)
def test_a_shape_goes_to_the_seeds_that_take_it(text: str, seeds: list[str]) -> None:
    found = ladder.climbs("cpu", None, text, "position", None)
    assert [item.seed for item, _ in found] == seeds
    assert {case.layer for _, case in found} == {replace(parse(text).layer, bias="position")}


@pytest.mark.parametrize(
    ("seed", "text", "message"),
    [
        ("004", "4x5x5:6k3", "SUBJECT: a seed must have kernels for it. Received shape=4x5x5:6k3, seed 004=a filter "
                             "must have 1 tap, such as 96x14x14:96k1b."),
        ("002", "4x5x5:6k3", "seed 002=a convolution must have 1 axis, such as 1024x4:1024k5p2b."),
        (None, "4x5x5:6k3g2", "seed 000=a convolution must have one group, seed 002=a convolution must have one group"),
        (None, "4x5x5:norm", "seed 000=it must be a convolution, seed 002="),
        (None, "4x5x5:6k9", "the dilated filter must fit the padded input"),
    ],
)  # fmt: skip
def test_shapes_that_no_seed_takes(seed: str | None, text: str, message: str) -> None:
    with pytest.raises((OptionError, ShapeError)) as caught:
        ladder.climbs("cpu", seed, text, None, None)
    assert message in str(caught.value)


def test_filters_that_do_not_fit_registers() -> None:
    most: dict[str, int] = {f"000 {rung.name}": 128 for rung in LADDERS["000"].rungs[1:]}
    most |= {"002 shared units": 256, "002 local memory": 256}
    most |= {f"002 {channels} channels": 256 // channels for channels in (2, 4, 8, 16)}
    for name, rung in RUNGS.items():
        assert rung.obstacle(Conv2D(2, 4), Shape(3, 20, 20)) is None
        expected = f"a filter must have at most {most.get(name)} taps to fit registers, not 289"
        assert rung.obstacle(Conv2D(2, 17), Shape(3, 20, 20)) == (expected if name in most else None)
