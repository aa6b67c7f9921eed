"""Conv2D and Conv1D, forward and backward, in random configurations, arrangements and tunings."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest

from blobnet import Sequential
from blobnet.device.device import Device
from blobnet.errors import OptionError, ShapeError
from blobnet.examination.checks import one_of
from blobnet.examination.layer_references import arguments, reference_of, sides
from blobnet.implementations.base import FORWARD
from blobnet.implementations.blocking import reads
from blobnet.launch.kernel_call import Tuning
from blobnet.layers import Activation, Conv1D, Conv2D, Input
from blobnet.layers.activation import ACTIVATIONS
from blobnet.memory.blob import Shape
from blobnet.network.graph import from_nodes
from blobnet.planning import make_plan
from tests.kinds import kind_of, only, tuning_for
from tests.layers.arranged import Arrangement, Bench, finishing
from tests.layers.layer_contract import (
    ContractReport,
    Run,
    check_central_differences,
    run_layer_contract,
)
from tests.layers.random_cases import (
    Case,
    Traits,
    random_arrangement,
    random_overrides,
    traits_of_call,
)

Pair = tuple[int, int]
KERNELS = [f"convolution/{name}" for name in ("forward_flat", "backward_weight", "backward_data")]
FUSIBLE = [name for name in ACTIVATIONS if name != "softmax"]
BIASES: list[Any] = [False, True, "position"]


def direct(tuning: Tuning) -> Tuning:
    """A CPU's tuning that has only the kernels of this file; test_convolution_gathered.py is for the others."""
    return only(tuning, "direct")


def contract(
    device: Device,
    layer: Conv1D | Conv2D,
    shape: Shape,
    arrangements: Sequence[str | Arrangement] | None = None,
    **options: Any,
) -> ContractReport:
    """The layer contract of ``layer`` against the reference.

    ``options`` are those of run_layer_contract.
    """
    reference = reference_of(layer, [shape])
    return run_layer_contract(
        device,
        layer,
        [shape],
        reference_forward=reference.forward,
        reference_backward=reference.backward,
        arrangements=arrangements,
        **{"fused": (), "relative": 2e-5, "absolute": 2e-5, "tuning": direct(device.tuning), **options},
    )


def test_two_strides(device: Device) -> None:
    """Six phases of backward data, each with taps of its own; for a sample of all tests, too."""
    contract(device, Conv2D(3, (4, 5), stride=(2, 3), padding=1), Shape(2, 9, 13), ["own pitches"])


def phases_with_taps(layer: Conv1D | Conv2D, shape: Shape) -> int:
    """The phases of the input that any tap of the filter reads: the others have nothing to add to a delta."""
    vertical, horizontal = (
        {(tap * axis.dilation - axis.padding[0]) % axis.stride for tap in range(axis.kernel)}
        & set(range(min(axis.stride, size)))
        for axis, size in zip(layer._axes(shape), (shape.height, shape.width), strict=True)
    )
    return len(vertical) * len(horizontal)


def check_kernels(layer: Conv1D | Conv2D, shape: Shape, run: Run, device_class: str = "cpu") -> None:
    """Asserts that the layer chose the kernels that it should have, and one launch for each phase that needs it.

    Those of other classes of device are for tests/layers/test_convolution_variants.py.
    """
    if device_class != "cpu":
        return
    stride = arguments(layer)[1]
    split = [] if stride == (1, 1) else ["convolution/split_phases"]
    assert [call.kernel for call in run.calls["forward"]] == [*split, "convolution/forward_flat"]
    phases = min(stride[0], shape.height) * min(stride[1], shape.width)
    if run.arrangement.accumulate:
        phases = phases_with_taps(layer, shape)
    assert [call.kernel for call in run.calls["backward data"]] == ["convolution/backward_data"] * phases
    weights = run.calls["backward parameters"][len(split) :]
    assert [call.kernel for call in run.calls["backward parameters"]][: len(split)] == split
    weight, *others = [call.kernel for call in weights]
    assert weight == "convolution/backward_weight"
    splits = weights[0].macros["SPLITS"]
    bias = {False: [], True: ["gradient/unit_bias"], "position": ["gradient/position_bias"]}[layer.bias]
    assert others == (["gradient/reduce"] if splits != 1 else []) + bias
    one_row = layer.output_shape([shape]).height == 1
    if (run.arrangement.same_pitch and not split) or one_row:
        assert weights[0].macros["FLAT"] == 1


# -- random configurations ---------------------------------------------------------------------------------------------


@cache
def random_case(rank: int, number: int) -> Case:
    """A case that its number determines; the filter always fits."""
    generator = np.random.default_rng([rank, number])
    axes = range(2 - rank, 2)
    kernel, stride, dilation, size, padding = [1, 1], [1, 1], [1, 1], [1, 1], [(0, 0), (0, 0)]
    for axis in axes:
        kernel[axis] = one_of(generator, 1, 2, 3, 3, 4, 5)
        stride[axis] = one_of(generator, 1, 1, 1, 1, 1, 1, 2, 2, 3)
        dilation[axis] = one_of(generator, 1, 1, 1, 2, 3)
        span = dilation[axis] * (kernel[axis] - 1) + 1
        padding[axis] = one_of(generator, *range(min(span, 4) + 1)), one_of(generator, *range(min(span, 4) + 1))
        least = max(1, span - sum(padding[axis]))
        most = 40 if axis == 1 else 9
        size[axis] = one_of(generator, least, *range(1, most + 1))
    forms: list[Any] = ["same", "valid", "sides", "sides", "symmetric"]
    form = one_of(generator, *forms)
    given: Any = padding[1] if rank == 1 else (padding[0], padding[1])
    if form == "symmetric":
        given = max(padding[1]) if rank == 1 else (max(padding[0]), max(padding[1]))
    elif form != "sides":
        given = form
    for axis in axes:
        span = dilation[axis] * (kernel[axis] - 1) + 1
        zeros = {"same": span, "valid": 0, "sides": sum(padding[axis]), "symmetric": 2 * max(padding[axis])}[form]
        size[axis] = max(size[axis], span - zeros)
    groups = one_of(generator, 1, 1, 1, 2, 3, 5)
    depthwise = groups > 1 and one_of(generator, False, True)
    group_units = 1 if depthwise else one_of(generator, 1, 2, 3, 4, 7)
    filters = groups * one_of(generator, 1, 2, 3, 5, 9)
    values: dict[str, Any] = {
        "kernel_size": kernel[1] if rank == 1 else tuple(kernel),
        "stride": stride[1] if rank == 1 else tuple(stride),
        "dilation": dilation[1] if rank == 1 else tuple(dilation),
        "padding": given,
        "groups": groups,
        "bias": one_of(generator, *BIASES),
    }

    def tunables() -> dict[str, int]:
        # Small tiles, since large ones take long to build.
        return {
            "MAXIMUM_LANES": one_of(generator, 1, 2, 4, 8, 16),
            "MAXIMUM_UNITS": one_of(generator, 1, 2, 3, 4),
            "MAXIMUM_VECTORS": one_of(generator, 1, 2, 3),
            "MAXIMUM_COLUMNS": one_of(generator, 1, 2, 3, 4),
            "MAXIMUM_SPLITS": one_of(generator, 1, 1, 2, 4),
            "MAXIMUM_ACCUMULATORS": 8,
            "TARGET_ITEMS": 1,
        }

    return Case(
        layer=Conv1D(filters, **values) if rank == 1 else Conv2D(filters, **values),
        shape=Shape(groups * group_units, *size[2 - rank :]),
        count=one_of(generator, 1, 2, 3),
        arrangement=random_arrangement(generator, "tight", "one pitch", "own pitches", "own pitches"),
        overrides=random_overrides(generator, KERNELS, tunables),
        seed=number,
        only=["direct"],
    )


#: The cases to run, by rank: few, chosen from the first 300 so that together they have all that the test below wants,
#: twice. (Each builds about four programs, which takes most of the time.)
NUMBERS = {
    1: [12, 13, 20, 38, 67, 102, 210, 231, 281],
    2: [3, 18, 24, 47, 100, 109, 143],
}
CASES = [(rank, number) for rank, numbers in NUMBERS.items() for number in numbers]


@pytest.mark.parametrize(("rank", "number"), CASES)
def test_at_random(device: Device, rank: int, number: int) -> None:
    case = random_case(rank, number)
    assert isinstance(case.layer, Conv1D | Conv2D)
    report = contract(device, case.layer, case.shape, [case.arrangement], **case.options)
    (run,) = report.runs.values()
    check_kernels(case.layer, case.shape, run)


def traits(case: Case, bench: Bench) -> Traits:
    """What a case has that can go wrong."""
    layer, shape = case.layer, case.shape
    assert isinstance(layer, Conv1D | Conv2D)
    kernel, stride, dilation = arguments(layer)
    output = layer.output_shape([shape])
    group_units = {
        "forward_flat": layer.filters // layer.groups,
        "backward_weight": layer.filters // layer.groups,
        "backward_data": shape.units // layer.groups,
    }
    found: Traits = {
        ("rank", layer.rank),
        ("bias", layer.bias),
        ("count", case.count),
        ("stride > kernel", any(s > k for s, k in zip(stride, kernel, strict=True))),
        ("rectangular", kernel[0] != kernel[1]),
        ("different strides", stride[0] != stride[1]),
        ("dilated and strided", max(dilation) > 1 and max(stride) > 1),
        ("dilated, stride 1", max(dilation) > 1 and max(stride) == 1 and max(kernel) > 1),
        ("1 x 1 filter", kernel == (1, 1)),
        ("depthwise", layer.groups > 1 and layer.groups == shape.units),
        ("groups", layer.groups > 1 and layer.groups != shape.units),
        ("asymmetric", any(first != second for first, second in sides(layer, shape))),
        ("padding", layer.padding if isinstance(layer.padding, str) else "zeros"),
        ("one output", (output.height, output.width) == (1, 1)),
        ("bias sums", layer.bias is True and (output.width >= 16, output.width % 16 == 0)),
        ("epilogue and += and pitch", (bool(bench.arrangement.activation), bench.arrangement.accumulate)),
    }
    for call in (call for calls in bench.calls.values() for call in calls):
        family, _, direction = call.kernel.partition("/")
        if family != "convolution" or direction == "split_phases":
            continue
        macros = call.macros
        found |= traits_of_call(call)
        lanes, block_units = int(macros["LANES"]), int(macros["BLOCK_UNITS"])
        found.add((call.kernel, ("units left over", group_units[direction] % block_units > 0)))
        if direction.startswith("forward"):
            run = output.width + (output.height - 1) * call.blobs["INPUT"].layout.width.memory
            found.add((call.kernel, ("positions left over", lanes > 1 and run % lanes > 0)))
            found.add((call.kernel, ("several vectors", int(macros["BLOCK_VECTORS"]) > 1)))
            found.add((call.kernel, ("split", stride != (1, 1))))
            phases = call.blobs["INPUT"].layout
            widened = stride != (1, 1) and phases.width.memory > phases.width.size
            found.add((call.kernel, ("split at the output's pitch", widened)))
            found.add((call.kernel, ("several blocks", int(macros["BLOCKS_AT_ONCE"]) > 1)))
            rows = not macros["FLAT"] and lanes > 1
            found.add((call.kernel, ("rows overlap", rows and output.width > lanes and output.width % lanes > 0)))
        if direction == "backward_weight":
            found.add((call.kernel, ("split and flat", (stride != (1, 1), bool(macros["FLAT"])))))
            columns = shape.units // layer.groups * kernel[0] * kernel[1]
            found.add((call.kernel, ("columns left over", columns % int(macros["BLOCK_COLUMNS"]) > 0)))
        one_row = len({blob.layout.width.memory for blob in call.blobs.values()}) == 1 and stride == (1, 1)
        if one_row and lanes > 1 and direction == "forward_flat":
            found.add((call.kernel, ("whole vectors stored", layer.bias)))
        if one_row and lanes > 1 and direction == "backward_data":
            found.add((call.kernel, ("whole vectors stored", bool(macros["ACCUMULATE"]))))
        if direction == "backward_data":
            found.add((call.kernel, ("no taps", 0 in (macros["TAPS_Y"], macros["TAPS_X"]))))
            found.add((call.kernel, ("several vectors", int(macros["BLOCK_VECTORS"]) > 1)))
    return found


def wanted_traits() -> Traits:
    answers = (False, True)
    wanted: Traits = {("rank", 1), ("rank", 2), *(("bias", bias) for bias in BIASES)}
    wanted |= {("count", count) for count in (1, 2, 3)} | {("padding", form) for form in ("same", "valid", "zeros")}
    for question in (
        "stride > kernel",
        "rectangular",
        "different strides",
        "dilated and strided",
        "dilated, stride 1",
        "1 x 1 filter",
        "depthwise",
        "groups",
        "asymmetric",
        "one output",
    ):
        wanted |= {(question, answer) for answer in answers}
    wanted |= {("bias sums", (runs, whole)) for runs, whole in ((False, False), (True, False), (True, True))}
    wanted |= {("epilogue and += and pitch", (fused, added)) for fused in answers for added in answers}
    for name in KERNELS:
        wanted |= {(name, ("lanes", lanes)) for lanes in (1, 2, 4, 8, 16)}
        wanted |= {(name, (question, answer)) for question in ("one pitch", "units left over") for answer in answers}
    wanted |= {("convolution/forward_flat", ("BIAS_MODE", mode)) for mode in (0, 1, 2)}
    questions = "positions left over", "several vectors", "split", "several blocks", "rows overlap"
    for question in (*questions, "split at the output's pitch"):
        wanted |= {("convolution/forward_flat", (question, answer)) for answer in answers}
    wanted |= {("convolution/backward_weight", ("FLAT", flat)) for flat in (0, 1)}
    wanted |= {("convolution/backward_weight", ("split and flat", (s, flat))) for s in answers for flat in answers}
    wanted |= {("convolution/backward_weight", ("SPLITS", splits)) for splits in (1, 2, 4)}
    wanted |= {("convolution/backward_weight", ("columns left over", answer)) for answer in answers}
    wanted |= {("convolution/backward_data", ("ACCUMULATE", added)) for added in (0, 1)}
    wanted |= {("convolution/forward_flat", ("whole vectors stored", bias)) for bias in BIASES}
    for question in ("no taps", "several vectors", "whole vectors stored"):
        wanted |= {("convolution/backward_data", (question, answer)) for answer in answers}
    return wanted


def test_the_random_cases_reach_every_variant(device: Device) -> None:
    """All that the random cases are for is among them: kernels, stores, pitches, tunings, arguments."""
    cases = [random_case(rank, number) for rank, number in CASES]
    missing = wanted_traits() - set[tuple[str, Any]]().union(*(traits(case, case.bench(device)) for case in cases))
    assert not missing, missing


# -- chosen configurations ---------------------------------------------------------------------------------------------


def test_every_arrangement(device: Device) -> None:
    layer, shape = Conv2D(4, (2, 3), stride=(1, 2), padding="same", bias="position"), Shape(2, 5, 9)
    report = contract(device, layer, shape)
    assert {"tight", "one pitch", "own pitches"} <= set(report.runs)
    for run in report.runs.values():
        check_kernels(layer, shape, run, kind_of(device))


@pytest.mark.parametrize(("function", "stride"), [*((name, 1) for name in FUSIBLE), ("gelu", 2), ("sigmoid", 2)])
def test_every_activation_in_the_epilogue(device: Device, function: str, stride: int) -> None:
    report = contract(device, Conv2D(3, 3, stride=stride, padding=1), Shape(2, 5, 7), [], fused=[function])
    (run,) = report.runs.values()
    assert run.calls["forward"][-1].macros["FINISHED"] == finishing(function)


#: Sizes at which something is as small, as large or as empty as it gets.
EDGES: dict[str, tuple[Conv1D | Conv2D, Shape, int]] = {
    "everything 1": (Conv2D(1, 1), Shape(1, 1, 1), 1),
    "1 x 1 input in zeros": (Conv2D(3, 3, padding=1), Shape(2, 1, 1), 2),
    "1 x 1 input, stride 3": (Conv2D(2, 3, stride=3, padding=2), Shape(2, 1, 1), 1),
    "filter as large as the input": (Conv2D(3, (4, 5)), Shape(2, 4, 5), 2),
    "outputs of zeros alone": (Conv2D(2, 2, padding=((3, 2), (2, 4))), Shape(2, 3, 3), 1),
    "a filter row longer than a plane": (Conv2D(2, (1, 7), padding=(0, 3)), Shape(2, 3, 2), 2),
    "columns that no window reaches": (Conv2D(2, 2, stride=(1, 3)), Shape(2, 4, 7), 2),
    "dilation over the stride": (Conv2D(2, 3, stride=2, dilation=3, padding="same"), Shape(1, 7, 8), 1),
    # Positions are one fewer than a vector has lanes, and no zeros lie between the units.
    "many units": (Conv2D(37, 1), Shape(41, 3, 5), 2),
    "one long row": (Conv1D(2, 5, padding="same"), Shape(3, 131), 1),
}


@pytest.mark.parametrize("edge", EDGES)
def test_edges(device: Device, edge: str) -> None:
    layer, shape, count = EDGES[edge]
    report = contract(device, layer, shape, ["tight"], count=count, absolute=4e-5)
    check_kernels(layer, shape, report.runs["tight"], kind_of(device))


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_the_defaults_of_both_kinds_of_device(device: Device, kind: str, stride: int) -> None:
    # At stride 2 a vector of 16 lanes may reach from one row over the next one's end: 10 cells at a pitch of 21.
    layer, shape = Conv2D(10, 3, stride=stride, padding="same", groups=2), Shape(6, 7, 19)
    tuning = tuning_for(kind)
    report = contract(device, layer, shape, ["one pitch"], tuning=direct(tuning))
    check_kernels(layer, shape, report.runs["one pitch"], tuning.model.name)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (Conv2D(3, (3, 2), padding=(2, 1), bias="position"), Shape(2, 4, 5)),
        (Conv2D(4, 3, stride=(1, 2), padding="same", dilation=(2, 1), groups=2), Shape(4, 6, 7)),
        (Conv1D(3, 3, stride=2, padding=(0, 2)), Shape(2, 9)),
    ],
    ids=str,
)
def test_slopes(device: Device, layer: Conv1D | Conv2D, shape: Shape) -> None:
    check_central_differences(device, layer, [shape])


@pytest.mark.parametrize(("units", "depth", "units_first"), [(8, 24, 1), (24, 8, 0)])
def test_a_wide_source_is_read_in_parts(units: int, depth: int, units_first: int) -> None:
    """Where caches hold all, cores share the positions of a source that is more than the result, else its units."""
    model = Sequential([Input(depth, 14, 14), Conv2D(units, 1)])
    plan = make_plan(model.graph, 1, tuning=tuning_for("cpu", only={"direct"}))
    (call,) = (call for _, call in plan.calls if call.kernel == "convolution/forward_flat")
    assert call.macros["UNITS_FIRST"] == units_first


# -- shapes, parameters, arguments -------------------------------------------------------------------------------------


@pytest.mark.parametrize("stride", [1, (2, 1)])
def test_units_first(device: Device, stride: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of units one after the other, with several blocks of everything and groups."""
    monkeypatch.setattr("blobnet.implementations.direct.reads", lambda *_: (0, 1))
    layer, shape = Conv2D(26, 3, stride=stride, padding=1, groups=2), Shape(28, 9, 17)
    tuning = tuning_for("cpu", only={"direct"})
    (run,) = contract(device, layer, shape, ["own pitches"], tuning=tuning).runs.values()
    calls = [call for calls in run.calls.values() for call in calls if "UNITS_FIRST" in call.macros]
    assert {call.kernel for call in calls} == set(KERNELS)
    assert all(call.macros["UNITS_FIRST"] == 1 for call in calls)


def test_what_no_cache_holds_is_read_once() -> None:
    def order(*sizes: int) -> bool:
        units_first, columns_first = reads(*sizes)
        return units_first < columns_first

    # 256x56x56:64k1: the input is 3 MB, and would be read for each block of units; 64x56x56:64k1: a cache holds it.
    assert order(64 * 256, 8, 256 * 3136, 66)
    assert not order(64 * 64, 8, 64 * 3136, 66)
    # 512x7x7:512k3p1: the weights are 9 MB, and would be read for each tile of positions.
    assert not order(512 * 512 * 9, 64, 512 * 49, 2)
    assert reads(100, 3, 20, 5) == (120, 120)


@pytest.mark.parametrize("kernel_size", [1, 3])
def test_splitting_the_input_costs_as_much_for_every_filter(kernel_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def costs(per_value: int) -> list[float]:
        monkeypatch.setattr("blobnet.implementations.direct.COPY_COST", per_value)
        (found,) = [found for task, found in layer.alternatives(site).items() if task.direction == FORWARD]
        return [candidate.cost for candidate in found]

    node = Input(24, 9, 12)()
    layer = Conv2D(40, kernel_size, stride=2, padding=kernel_size // 2, name="layer")
    plan = make_plan(from_nodes(node, layer(node)), 7, loss=None, tuning=tuning_for("cpu", only={"direct"}))
    site = plan.sites["layer"]
    # Of 1x1 filters a phase is read, of 3x3 ones all four, with what the last taps reach into.
    copied = 24 * 5 * 6 if kernel_size == 1 else 24 * 4 * 6 * 7
    difference = 1000 * copied * 7 / site.tuning.model.cores
    assert costs(1000) == pytest.approx([cost + difference for cost in costs(0)], rel=1e-6)


def test_shapes_and_parameters() -> None:
    layer = Conv2D(8, (3, 5), stride=(2, 1), padding="same", groups=2, bias="position")
    specs = {spec.name: spec for spec in layer.parameters([Shape(6, 9, 10)])}
    assert layer.output_shape([Shape(6, 9, 10)]) == Shape(8, 5, 10)
    assert {name: spec.shape for name, spec in specs.items()} == {"weight": (8, 3, 3, 5), "bias": (8, 5, 10)}
    assert specs["weight"].decayed
    assert not specs["bias"].decayed
    specs = {spec.name: spec for spec in Conv1D(4, 3, bias="position").parameters([Shape(2, 7)])}
    assert {name: spec.shape for name, spec in specs.items()} == {"weight": (4, 2, 3), "bias": (4, 5)}
    assert [spec.name for spec in Conv2D(4, 3, bias=False).parameters([Shape(2, 7, 7)])] == ["weight"]
    assert [spec.shape for spec in Conv2D(4, 3).parameters([Shape(2, 7, 7)])] == [(4, 2, 3, 3), (4,)]


def test_an_activation_is_split_off() -> None:
    plain, behind = Conv2D(4, 3, activation="relu", name="c1").expanded()
    assert plain == Conv2D(4, 3, name="c1")
    assert behind == Activation("relu", name="c1_relu")
    assert Conv2D(4, 3, name="c1").expanded() == (plain,)


@pytest.mark.parametrize("name", ["filters", "groups"])
@pytest.mark.parametrize("value", [0, -1, 2.0, "3", None, (3,), True])
def test_wrong_counts(name: str, value: Any) -> None:
    with pytest.raises(OptionError, match=rf"^c1 \(Conv2D\): {name} must be an int of at least 1\. Received {name}="):
        Conv2D(**{"filters": 4, "kernel_size": 3, "name": "c1", name: value})


@pytest.mark.parametrize("name", ["kernel_size", "stride", "dilation"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "3", None, (3,), (3, 0), (1, 2, 3), (1, 1.0)])
def test_wrong_window_numbers(name: str, value: Any) -> None:
    rule = rf"^Conv2D: {name} must be an int or a pair of ints of at least 1\. Received {name}="
    with pytest.raises(OptionError, match=rule):
        Conv2D(**{"filters": 4, "kernel_size": 3, name: value})


@pytest.mark.parametrize("name", ["kernel_size", "stride", "dilation"])
@pytest.mark.parametrize("value", [0, (1, 2), "1"])
def test_wrong_window_numbers_in_one_dimension(name: str, value: Any) -> None:
    with pytest.raises(OptionError, match=rf"^Conv1D: {name} must be an int of at least 1\. Received {name}="):
        Conv1D(**{"filters": 4, "kernel_size": 3, name: value})


@pytest.mark.parametrize(
    "value", [-1, 0.5, "SAME", None, (1,), (1, 2, 3), (1, -1), ((1, 2), 3), ((1, 2), (3, -1)), ((1, 2),)]
)
def test_wrong_padding(value: Any) -> None:
    rule = (
        r"^Conv2D: padding must be an int, \(vertical, horizontal\), \(\(top, bottom\), \(left, right\)\), 'same' or "
        r"'valid', without negative numbers\. Received padding="
    )
    with pytest.raises(OptionError, match=rule):
        Conv2D(4, 3, padding=value)


@pytest.mark.parametrize("value", [-1, (1, 2, 3), ((1, 2), (3, 4)), "full"])
def test_wrong_padding_in_one_dimension(value: Any) -> None:
    rule = r"^Conv1D: padding must be an int, \(left, right\), 'same' or 'valid', without negative numbers\. Received "
    with pytest.raises(OptionError, match=rule):
        Conv1D(4, 3, padding=value)


@pytest.mark.parametrize("value", ["unit", 2, None, []])
def test_wrong_bias(value: Any) -> None:
    with pytest.raises(OptionError, match=r"^Conv2D: bias must be True, False or 'position'\. Received bias="):
        Conv2D(4, 3, bias=value)


def test_unknown_activation() -> None:
    with pytest.raises(OptionError, match=r"known function\. Received function=rellu\. Hint: did you mean .*'relu'"):
        Conv2D(4, 3, activation="rellu")


def test_unknown_initializer() -> None:
    rule = (
        r"^c1 \(Conv2D\): the initializer must be a known one\. Received .*=he_norml\. Hint: did you mean 'he_normal'"
    )
    with pytest.raises(OptionError, match=rule):
        Conv2D(4, 3, initializer="he_norml", name="c1")


def test_lists_become_tuples() -> None:
    layer = Conv2D(4, [3, 5], stride=[1, 2], padding=[[0, 1], [2, 3]], dilation=[1, 1])
    same = Conv2D(4, (3, 5), stride=(1, 2), padding=((0, 1), (2, 3)), dilation=(1, 1))
    assert layer == same
    assert hash(layer) == hash(same)
    assert Conv1D(4, [3], padding=[1, 2]) == Conv1D(4, (3,), padding=(1, 2))


def test_groups_that_do_not_divide() -> None:
    with pytest.raises(OptionError, match=r"^Conv2D: groups must divide filters\. Received filters=8, groups=3\.$"):
        Conv2D(8, 3, groups=3)
    rule = r"^c1 \(Conv2D\): groups must divide the input's units\. Received input=\(5, 9, 9\), groups=4\.$"
    with pytest.raises(ShapeError, match=rule):
        Conv2D(8, 3, groups=4, name="c1").output_shape([Shape(5, 9, 9)])


def test_a_filter_larger_than_its_padded_input() -> None:
    rule = (
        r"^Conv2D: the dilated filter must fit the padded input\. Received input=\(3, 6, 9\), filter=\(3, 9\), "
        r"padding=\(\(1, 0\), \(0, 0\)\)\. Hint: use a smaller filter"
    )
    layer = Conv2D(8, (3, 5), dilation=(1, 2), padding=((1, 0), (0, 0)))
    assert layer.output_shape([Shape(3, 2, 9)]) == Shape(8, 1, 1)
    with pytest.raises(ShapeError, match=rule.replace("9", "8", 1).replace("6", "2")):
        layer.output_shape([Shape(3, 2, 8)])
    with pytest.raises(ShapeError, match="must fit the padded input"):
        layer.output_shape([Shape(3, 1, 9)])


@pytest.mark.parametrize(
    ("layer", "shape", "axes"),
    [
        (Conv2D(4, 3), Shape(3, 9), r"\(units, height, width\)\. Received input=\(3, 9\)"),
        (Conv2D(4, 3), Shape.flat(9), r"\(units, height, width\)\. Received input=\(9\)"),
        (Conv1D(4, 3), Shape(3, 9, 9), r"\(units, width\)\. Received input=\(3, 9, 9\)"),
    ],
    ids=str,
)
def test_inputs_of_another_rank(layer: Conv1D | Conv2D, shape: Shape, axes: str) -> None:
    with pytest.raises(ShapeError, match=rf"^{layer.kind}: the input must have the axes {axes}"):
        layer.output_shape([shape])
