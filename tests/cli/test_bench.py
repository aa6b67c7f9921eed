"""``blobnet bench``: what is counted, printed and refused; no test looks at how long anything takes."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blobnet
from blobnet import layers, models, plots
from blobnet.bench import roofline, timing
from blobnet.bench.network import LaunchTiming, Point, kernel_shares
from blobnet.bench.roofline import Roofline
from blobnet.command_line.bench import short
from blobnet.device.device import Device
from blobnet.device.discovery import DeviceInfo
from blobnet.errors import BlobnetError
from blobnet.examination import layer_cases
from blobnet.examination.layer_cases import Work, parse
from blobnet.examination.measured import Arrangement, Bench, make_problem
from blobnet.launch.kernel_call import Array, GlobalSize, KernelCall
from blobnet.layers import Conv2D, Dense, initializers
from blobnet.layers.base import Layer, ParameterSpec
from blobnet.losses import CrossEntropy
from blobnet.memory.blob import BFLOAT16, BFLOAT16_CELLS, FLOAT32, Shape, StorageType
from blobnet.network.graph import sequential
from blobnet.planning import make_plan
from blobnet.support.tables import ABOVE_FLOOR, floor_percent
from tests.bench import first_step, fit, single_layers, torch_twin
from tests.bench.single_layers import kernel_text, tile
from tests.kinds import tuning_for
from tests.torch_graphs import Network

ONE_SHAPE = ["bench", "conv", "2x5x6:4k3s2p1", "--batch-size", "2", "--repeats", "1"]


@pytest.fixture
def known_roofline(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device of 100 GFLOPS and 10 GB/s, which need not be measured."""
    monkeypatch.setattr(roofline, "measure", lambda _: Roofline(100e9, 10e9, 8e9))


def widest(lines: Sequence[str]) -> int:
    """The length of the longest line, but for the first: it has the device's own name."""
    return max(map(len, lines[1:]))


# -- counting ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "flops", "values"),
    [
        # (5 + 2 - 3) // 2 + 1 = 3 rows and (6 + 2 - 3) // 2 + 1 = 3 columns; 2 units x 9 taps for each output.
        ("2x5x6:4k3s2p1", {"forward": 2 * 3 * 4 * 9 * 18}, {"forward": 3 * 2 * 30 + 3 * 4 * 9 + 4 * 18}),
        ("2x5x6:4k3s2p1b", {"backward weights": 2 * 3 * 4 * 9 * 18}, {"backward data": 3 * 60 + 3 * 36 + 72 + 4}),
        # One input unit a group.
        ("4x5x5:4k3p1g4", {"backward data": 2 * 3 * 100 * 9}, {"backward data": 3 * 100 + 3 * 100 + 36}),
        ("4x7:2k5p2", {"forward": 2 * 3 * 14 * 20}, {"backward weights": 3 * 28 + 3 * 14 + 40}),
        ("4x7x7:2k3x1p1x0d2x1", {"forward": 2 * 3 * 2 * 5 * 7 * 12}, {"forward": 3 * 4 * 49 + 3 * 70 + 24}),
        ("7:dense5b", {"backward weights": 2 * 3 * 35}, {"forward": 3 * 7 + 3 * 5 + 35 + 5}),
        ("2x6x6:maxpool3s2p1", {"forward": 3 * 18 * 9, "backward": 3 * 18}, {"forward": 3 * 72 + 3 * 18}),
        ("2x6x6:maxpool3s2c", {"forward": 3 * 18 * 9, "backward": 3 * 18}, {"forward": 3 * 72 + 3 * 18}),
        ("2x3x3:norm", {"forward": 5 * 54, "backward": 9 * 54}, {"forward": 2 * 54, "backward": 3 * 54}),
        ("2x3x3:relu", {"forward": 54, "backward": 54}, {"forward": 2 * 54, "backward": 3 * 54}),
        ("2x3x3:add", {"forward": 54}, {"forward": 3 * 54}),
        ("2x3x3:globalpool", {"forward": 54}, {"forward": 54 + 6, "backward": 54 + 6}),
    ],
)
def test_flops_and_bytes(text: str, flops: dict[str, int], values: dict[str, int]) -> None:
    case = parse(text)
    assert str(case) == text
    assert {name: case.work(name, 3).flops for name in flops} == flops
    assert {name: case.work(name, 3).bytes for name in values} == {name: 4 * count for name, count in values.items()}


def test_phases() -> None:
    assert parse("2x5x6:4k3").directions == ("forward", "backward data", "backward weights")
    assert parse("2x5x6:norm").directions == ("forward", "backward")
    assert parse("2x5x6:add").directions == ("forward",)


@pytest.mark.parametrize("name", layer_cases.SUITES)
def test_suites_are_distinct_shapes(name: str) -> None:
    texts = [str(case) for case in layer_cases.suite(name)]
    assert texts == layer_cases.SUITES[name].split()
    assert len(set(texts)) == len(texts) == {"anchors": 24, "unet1d": 11}[name]


@pytest.mark.parametrize(
    ("name", "distinct", "convolutions", "gigaflops"),
    [("resnet50", 23, 53, 8.174), ("vgg16", 9, 13, 30.693), ("mobilenet_v2", 30, 52, 0.599), ("alexnet", 5, 5, 1.311)],
)
def test_convolutions_of_networks(name, distinct, convolutions, gigaflops, monkeypatch: pytest.MonkeyPatch) -> None:
    def zeros(spec: ParameterSpec, *_: object) -> np.ndarray:
        return np.zeros(spec.shape, np.float32)

    monkeypatch.setattr(initializers, "initialize", zeros)
    graph = getattr(models, name)().graph
    cases = single_layers.from_graph(graph, layer_cases.CONVOLUTIONS)
    assert len(cases) == distinct
    assert sum(case.count for case in cases) == convolutions
    total = sum(case.count * case.work("forward", 1).flops for case in cases)
    assert total / 1e9 == pytest.approx(gigaflops, abs=5e-4)
    assert [str(parse(str(case))) for case in cases] == [str(case) for case in cases]
    others = single_layers.from_graph(graph, layer_cases.OTHERS)
    launching = [vertex for vertex in graph.vertices[1:] if vertex.layer.kind != "Flatten"]
    assert sum(case.count for case in others) + convolutions == len(launching)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "64",
            "shape: it must be written <units>x<height>x<width>:<layer>. Received text=64. Hint: 64x56x56:128k3s1p1,",
        ),
        ("0x4x4:norm", "shape: it must be written"),
        ("2x3x4x5:norm", "shape: it must be written"),
        ("64x3:", "shape: it must be written"),
        ("64x9x9:128s2", "shape: a convolution must have a filter size, k3 say. Received text=64x9x9:128s2."),
        ("64x9x9:8k3k3", "shape: the options of this layer must be some of k, s, p, d, g, each once."),
        ("64x9x9:maxpool3k2", "shape: the options of this layer must be some of s, p, each once."),
        ("64x9x9:averagepool3c", "shape: only max pools have a ceil mode."),
        ("64x9x9:sofmax", "shape: what follows the colon must be a layer."),
        ("64x5x5:8k3g7", "Conv2D: groups must divide filters."),
        ("64x5x5:8k9", "Conv2D: the dilated filter must fit the padded input."),
    ],
)
def test_shapes_that_are_none(run, text, message) -> None:
    with pytest.raises(BlobnetError) as caught:
        parse(text)
    assert str(caught.value).startswith(message)
    if ":" in text:
        result = run("bench", "conv", text)
        assert (result.status, result.out) == (2, "")
        assert result.err.startswith(f"error: {message}")
        assert result.err.endswith("See 'blobnet bench --help'.\n")


def test_the_floor_is_what_takes_longer() -> None:
    top = Roofline(100e9, 10e9, 8e9)
    assert top.bandwidth == 10e9
    assert top.floor(2e9, 1e7) == (0.02, "compute")
    assert top.floor(1e7, 2e9) == (0.2, "memory")


def test_geometric_mean() -> None:
    assert single_layers.geometric_mean([0.5, 2.0, 8.0]) == pytest.approx(2.0)


# -- measuring ---------------------------------------------------------------------------------------------------------


def test_a_devices_roofline(device: Device) -> None:
    top = roofline.measure(device)
    assert top.flops > 0
    assert min(top.copy, top.read) > 0


@pytest.mark.parametrize("is_host", [False, True])
def test_a_roofline_is_timed_as_layers_are(device: Device, is_host: bool, monkeypatch) -> None:
    call = KernelCall(
        "bench/peak",
        "peak",
        GlobalSize(1, per_sample=False),
        arrays={"RESULT": Array("result", 1)},
        macros={"LANES": 1, "CHAINS": 1, "STEPS": 1},
        tunables=device.tuning.of("bench/peak"),
    )
    monkeypatch.setattr(DeviceInfo, "is_host", is_host)
    monkeypatch.setattr(roofline, "event_seconds", lambda event: 5.0 if event.profile.end else 0.0)
    seconds = roofline._seconds(device, call, {"result": device.memory.allocate(4)}, 1)
    assert (seconds == 5.0) != is_host
    assert seconds > 0


@pytest.mark.parametrize("text", ["64x56x56:64k3p1", "3x224x224:64k7s2p3", "512x7x7:512k3p1"])
def test_a_convolution_is_timed_with_blobs_as_in_a_network(text: str) -> None:
    """Where blobs may have cells, it is between two others, or after the input of pictures."""
    case = parse(text)
    tuning = tuning_for("gpu", precision="bf16", storage=BFLOAT16, compute_units=132, capability=(9, 0))
    graph = single_layers._between(case)
    plan = make_plan(graph, 64, tuning=replace(tuning, cells=BFLOAT16_CELLS), **timing.CASE_SETTINGS)
    calls = single_layers._calls(plan, case)
    assert list(calls) == list(case.directions)
    for direction, own in calls.items():
        kernels = {call.kernel for call in own}
        assert any(kernel.endswith("_cells") for kernel in kernels), (direction, kernels)
        assert ("convolution/pack_cells" in kernels) == (case.input.units < 8 and direction != "backward data")


def test_a_measurement_times_the_plans_launches(device: Device) -> None:
    bench = single_layers.CaseBench(device, parse("4x6x6:4k3s2p1b"), 2)
    assert list(bench.calls) == ["forward", "backward data", "backward weights"]
    assert all(call.label.startswith("layer ") for calls in bench.calls.values() for call in calls)
    result = single_layers.measure(bench, "backward data", Roofline(100e9, 10e9, 8e9), 2)
    assert len(result.timing.launches) == len(result.calls)
    assert result.main in result.calls
    assert result.timing.ratio is None
    assert min(result.timing.wall, result.timing.on_device) > 0
    assert bench.sets == timing.MAX_SETS


JSON_FIELDS = {
    *("shape", "count", "direction", "ms", "wall_ms", "device_ms", "flops", "bytes", "flops_per_byte", "gflops"),
    *("gb_per_s", "floor_ms", "floor_part", "bound", "kernel", "tile", "work_items", "launches", "torch_ms", "ratio"),
}


def test_what_was_measured_is_a_fact_of_the_device(run, monkeypatch) -> None:
    # Numbers that no other test measures.
    monkeypatch.setattr(roofline, "measure", lambda _: Roofline(123e9, 17e9, 13e9))
    assert run(*ONE_SHAPE).status == 0
    texts = [re.split(" {2,}", line.strip()) for line in run("devices", "--facts").out.splitlines()]
    assert ["flops", "123 GFLOPS", "measured"] in texts
    assert ["bandwidth", "17 GB/s", "measured"] in texts


@pytest.mark.parametrize(
    ("given", "storage", "align"),
    [
        (["--storage", "bfloat16"], BFLOAT16, 1),
        (["--align", "8"], FLOAT32, 8),
        (["--precision", "bf16"], BFLOAT16, 1),
    ],
)
def test_blobs_are_as_the_options_say(run, monkeypatch, given: list[str], storage: StorageType, align: int) -> None:
    measured = list[Device]()
    monkeypatch.setattr(roofline, "measure", lambda device: measured.append(device) or Roofline(100e9, 10e9, 8e9))
    assert run(*ONE_SHAPE, *given).status == 0
    assert [(device.storage, device.padding.align) for device in measured] == [(storage, align)]


def test_json(run, known_roofline) -> None:
    result = run(*ONE_SHAPE, "--json")
    assert (result.status, result.err) == (0, "")
    found = json.loads(result.out)
    assert found["batch_size"] == 2
    assert found["torch"] is None
    assert found["geometric_means"] == {}
    assert found["roofline"] == {"gflops": 100.0, "copy_gb_per_s": 10.0, "read_gb_per_s": 8.0}
    assert [item["direction"] for item in found["results"]] == ["forward", "backward data", "backward weights"]
    for item in found["results"]:
        assert set(item) == JSON_FIELDS
        assert (item["shape"], item["count"], item["bound"]) == ("2x5x6:4k3s2p1", 1, "memory")
        assert item["flops"] == 2 * 2 * 4 * 9 * 18
        assert item["bytes"] == 4 * (2 * 60 + 2 * 36 + 72)
        assert item["floor_ms"] == pytest.approx(item["bytes"] / 10e9 * 1e3)
        assert item["floor_part"] == pytest.approx(item["floor_ms"] / item["ms"])
        assert item["gflops"] == pytest.approx(item["flops"] / item["ms"] / 1e6)
        assert item["device_ms"] == pytest.approx(sum(launch["ms"] for launch in item["launches"]))
        assert item["kernel"] in {launch["kernel"] for launch in item["launches"]}


@pytest.mark.parametrize(
    "layer", [Conv2D(40, 3, padding=1), Conv2D(6, 3, stride=2, groups=6), Conv2D(24, 1), Dense(300)]
)
@pytest.mark.parametrize("device_class", ["cpu", "gpu"])
def test_tiles_tell_candidates_apart(device: Device, layer: Layer, device_class: str) -> None:
    tuning = tuning_for(device_class)
    site = Bench(device, make_problem(layer, [Shape(24, 11, 13)]), Arrangement("tight", tight=True), tuning).site
    for candidates in layer.alternatives(site).values():
        names = [candidate.way for candidate in candidates]
        shown = {
            (candidate.way.variant, *(tuple(tile(call).items()) for call in candidate.calls()))
            for candidate in candidates
        }
        assert len(set(names)) == len(names) == len(shown)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.00123456, "0.00123"),
        (0.1834, "0.183"),
        (99.96, "100"),
        (123.45, "123.5"),
        (4321.6, "4322"),
        (104321.6, "104322"),
        (9.99e6, "9990000"),
        (1.04e7, "1.0e+07"),
    ],
)
def test_numbers_are_short(value: float, shown: str) -> None:
    assert short(value) == shown


@pytest.mark.parametrize(
    ("floor", "seconds", "shown"),
    [
        (0.5, 2.0, "25"),
        (0.999, 1.0, "100"),
        (1.0, 1.0, "100"),
        (1.001, 1.0, ">100"),
        (9.0, 1.0, ">100"),
        (0.0, 1.0, "0"),
    ],
)
def test_a_floor_that_was_none_has_no_percentage(floor: float, seconds: float, shown: str) -> None:
    assert floor_percent(floor, seconds) == shown


def test_what_passes_its_floor_lends_nothing_to_others(run, known_roofline, monkeypatch) -> None:
    original = single_layers.measure

    def measure(bench: Any, direction: str, *others: Any) -> Any:
        result = original(bench, direction, *others)
        return replace(result, floor=result.seconds * (7 if direction == "forward" else 0.5))

    monkeypatch.setattr(single_layers, "measure", measure)
    record = json.loads(run(*ONE_SHAPE, "--json").out)
    for item in record["results"]:
        total = record["totals"][item["direction"]]
        part = 1 if item["direction"] == "forward" else 0.5
        assert total["floor_ms"] == pytest.approx(part * item["ms"])
        assert item["floor_part"] == pytest.approx(7 if part == 1 else 0.5)
    lines = run(*ONE_SHAPE).out.splitlines()
    assert [line.split()[-1] for line in lines if "floor " in line and " ms for all" in line] == ["%"] * 3
    assert sum(" >100 memory" in line for line in lines) == 1
    assert sum(", 100 %" in line for line in lines) == 1


def test_a_strip_is_shown_as_a_tile(device: Device) -> None:
    layer = Conv2D(3, 3, groups=3)
    site = Bench(device, make_problem(layer, [Shape(3, 9, 9)]), Arrangement("tight"), tuning_for("gpu")).site
    (call,) = layer.forward(site)
    assert tile(call) == {"STRIP": 4}
    assert kernel_text(call) == "forward_strip 4"


def test_table(run, known_roofline) -> None:
    result = run(*ONE_SHAPE)
    assert (result.status, result.err) == (0, "")
    lines = result.out.splitlines()
    assert widest(lines) <= 130  # GPUs' kernels name their tiles.
    assert "measured: 100.0 GFLOPS; copy 10.0, read 8.0 GB/s" in lines
    first = lines.index("2x5x6:4k3s2p1: 2.59 kflop, 1.06 kB, 2.45 flop/byte")
    assert [line.split("  ")[1] for line in lines[first + 1 : first + 4]] == list(layer_cases.DIRECTIONS)
    assert sum(" ms for all, each as often as it occurs; floor " in line for line in lines) == 3


def test_one_direction(run, known_roofline) -> None:
    found = json.loads(run(*ONE_SHAPE, "--direction", "backward-data", "--json").out)
    assert [item["direction"] for item in found["results"]] == ["backward data"]


@pytest.mark.parametrize("text", ["3x4x4:norm", "12:dense5", "3x6:relu", "3x5x5:maxpool2", "3x4x4:add", "6:dropout"])
def test_other_layers(run, known_roofline, text) -> None:
    found = json.loads(run("bench", "layer", text, "--batch-size", "2", "--repeats", "1", "--json").out)
    assert [item["direction"] for item in found["results"]] == list(parse(text).directions)


def test_a_network_of_ones_own(run, known_roofline, net) -> None:
    arguments = [net, "--batch-size", "2", "--repeats", "1", "--size", "6", "--json"]
    found = json.loads(run("bench", "conv", *arguments).out)
    assert {item["shape"] for item in found["results"]} == {"1x6x6:4k3psame"}
    found = json.loads(run("bench", "layer", *arguments).out)
    assert {item["shape"] for item in found["results"]} == {"4x6x6:norm", "4x6x6:relu", "4x6x6:dropout", "144:dense10b"}


def test_a_whole_network(run, known_roofline, net, tmp_path) -> None:
    pytest.importorskip("matplotlib")
    arguments = ["bench", "model", net, "--batch-size", "2", "--repeats", "1", "--size", "6", "--classes", "3"]
    result = run(*arguments, "--plot", "roofline.svg")
    assert (result.status, result.err) == (0, "")
    assert widest(result.out.splitlines()) <= 120
    for text in ("for 1x6x6 and 3 classes", "training  ", "inference  ", "host time a launch: ", "convolution/"):
        assert text in result.out
    assert (tmp_path / "roofline.svg").read_bytes().startswith(b"<?xml")
    found = json.loads(run(*arguments, "--json").out)
    assert [step["kind"] for step in found["steps"]] == ["training", "inference"]
    assert found["steps"][0]["launches"] == len(found["launches"])
    assert sum(kernel["launches"] for kernel in found["kernels"]) == len(found["launches"])
    for kernel in found["kernels"]:
        times = [launch["ms"] for launch in found["launches"] if launch["kernel"] == kernel["kernel"]]
        assert (kernel["launches"], kernel["ms"]) == (len(times), pytest.approx(sum(times)))
        assert kernel["floor_ms"] > 0
    assert found["steps"][0]["bytes"] > found["steps"][1]["bytes"] > 0
    for step in found["steps"]:
        assert step["images_per_s"] == pytest.approx(2 / step["ms"] * 1e3)
    assert found["host_us_per_launch"] > 0
    assert "conv2d_1 forward" in run(*arguments, "--launches").out


@pytest.mark.parametrize("augment", [[], ["--augment", "flip,mixup"]], ids=str)
def test_fit_and_predict(run, known_roofline, net, augment, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "_EPOCH_SECONDS", 0.0)
    settings = ["--batch-size", "2", "--repeats", "1", "--size", "6", "--device", device.info.address]
    found = run("bench", "fit", net, *settings, *augment)
    assert (found.status, " of the images/s without Flip(" in found.out) == (0, bool(augment))
    calls = json.loads(run("bench", "fit", net, *settings, *augment, "--json").out)["calls"]
    assert [call["what"] for call in calls] == ["fit", *(["augment"] if augment else []), "predict", "predict"]
    assert [call["samples"] for call in calls] == [2] * (len(calls) - 1) + [1]
    assert all(call["ms"] > 0 and call["device_ms"] > 0 for call in calls)


def test_fit_with_what_does_not_change_the_samples(run, net, device: Device) -> None:
    settings = ["--batch-size", "2", "--augment", "saturation", "--device", device.info.address]
    assert "Saturation: the model's input must have three units" in run("bench", "fit", net, *settings).err


def test_kernels_against_the_roofline() -> None:
    """Bytes of every launch at the bandwidth, or all operations of a phase for its longest launch at the peak."""
    network_plan = make_plan(
        sequential([layers.Input(2, 6, 5, name="in"), layers.Conv2D(3, 3, name="one"), layers.Dense(4, name="two")]),
        7,
        loss=CrossEntropy(),
        training=True,
    )
    calls = [call for _, call in network_plan.calls]
    profile = [LaunchTiming(call, (1, 1, 1), 1.0 + number % 3) for number, call in enumerate(calls)]
    of_one = [item for item in profile if (item.call.vertex, item.call.direction) == (1, "forward")]
    point = Point("one", "forward", Work(10**6, 1), of_one)
    assert point.seconds == sum(item.seconds for item in of_one)
    top = Roofline(flops=1e4, copy=50.0, read=1e2)
    shares = kernel_shares(profile, [point], top, 7)
    assert sum(share.launches for share in shares) == len(calls)
    assert [share.seconds for share in shares] == sorted((share.seconds for share in shares), reverse=True)
    longest = max(of_one, key=lambda item: item.seconds)
    for share in shares:
        mine = [item for item in profile if item.kernel == share.kernel]
        assert (share.launches, share.seconds) == (len(mine), sum(item.seconds for item in mine))
        by_memory = sum(item.call.bytes(7) / 1e2 for item in mine if item is not longest)
        by_compute = 1e6 / 1e4 if longest in mine else 0.0
        assert by_compute == 0 or longest.call.bytes(7) / 1e2 < by_compute
        assert share.floor == pytest.approx(by_memory + by_compute)
        assert share.bound == ("compute" if by_compute > by_memory else "memory")
    figure = plots.step(shares * 20, {"forward": [(2.0, 5e3)]}, top, "a step")
    bars, roof = figure.axes
    rows = [label.get_text() for label in bars.get_yticklabels()]
    assert rows[0] == shares[0].kernel
    assert len(rows) == 21
    assert rows[-1] == f"{20 * len(shares) - 20} others"
    took = 20e3 * sum(share.seconds for share in shares)
    needed = 20e3 * sum(min(share.seconds, share.floor) for share in shares)
    assert bars.get_title() == f"kernels: {took:.4g} ms, of which the roofline needs {needed:.4g} ms"
    assert needed < 20e3 * sum(share.floor for share in shares)  # A kernel that passes its floor counts as it is.
    assert bars.get_xlabel().endswith(ABOVE_FLOOR)
    widths = sorted({round(patch.get_width(), 6) for patch in bars.patches}, reverse=True)
    assert 1e3 * shares[0].seconds in widths
    assert roof.get_xlabel() == "flops per byte, each byte moved once"


@pytest.mark.long
def test_first_steps(net, run, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BLOBNET_DEVICE", raising=False)
    cold, warm = first_step.seconds(net, (1, 6, 6), 3, 2, device.info.address)
    assert min(cold, warm) > 0
    with pytest.raises(
        BlobnetError, match=r"first step: a new process must train one step\. Received status=1, said=.*"
    ):
        first_step.seconds("none.py:net", (1, 6, 6), 3, 2, device.info.address)


# -- PyTorch -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        *(
            "2x5x6:4k3s2p1b",
            "4x9:4k5p2",
            "4x5x5:4k3p1g4",
            "7:dense5b",
            "2x3x3:dense5",
            "2x4x4:norm",
            "6:norm",
            "2x4:norm",
        ),
        *("2x5x5:averagepool2", "2x5x5:maxpool3s2p1", "2x6:maxpool2", "2x5x5:globalpool", "2x5:globalpool"),
        *("2x3x3:add", "2x3x3:dropout", "2x3x3:relu6", "2x3x3:softmax", "2x3x3:gelu"),
    ],
)
def test_every_phase_of_a_layers_twin(text: str) -> None:
    pytest.importorskip("torch")
    case = parse(text)
    twin = torch_twin.CaseTwin(case, 3, 1, "cpu")
    for direction in case.directions:
        assert twin.burst(direction, 1) > 0
    (phases,) = twin._sets
    assert tuple(phases["forward"]().shape) == (3, *case.output.dimensions)
    if "backward data" in phases:
        found = phases["backward data"]()
        delta = found[0] if isinstance(found, tuple) else found
        assert delta.shape[0] == 3
        assert delta[0].numel() == case.input.elements


@pytest.mark.parametrize("text", ["2x5x6:4k3s2p1b", "2x4x4:norm"])
def test_against_pytorch(run, known_roofline, device: Device, text) -> None:
    pytest.importorskip("torch")
    if device.info.kind != "cpu":
        pytest.skip("PyTorch may not be there for this device")
    what = "conv" if "k" in text else "layer"
    result = run("bench", what, text, "--batch-size", "2", "--repeats", "1", "--against", "torch", "--json")
    found = json.loads(result.out)
    assert found["torch"].startswith("PyTorch ")
    for item in found["results"]:
        assert min(item["torch_ms"], item["ratio"]) > 0
        assert found["geometric_means"][item["direction"]] == pytest.approx(item["ratio"])


def test_a_network_against_pytorch(run, known_roofline, device: Device, net) -> None:
    pytest.importorskip("torch")
    if device.info.kind != "cpu":
        pytest.skip("PyTorch may not be there for this device")
    arguments = ["bench", "model", net, "--batch-size", "2", "--repeats", "1", "--against", "torch"]
    assert run(*arguments).out.count("; PyTorch ") == 3
    assert all(step["ratio"] > 0 for step in json.loads(run(*arguments, "--json").out)["steps"])


@pytest.mark.parametrize("name", ["lenet5", "resnet8"])
def test_the_twin_of_a_network_computes_the_same(name: str) -> None:
    torch = pytest.importorskip("torch")
    model = getattr(models, name)((1, 16, 16), 7)
    model.set_normalization([0.5], [2.0])
    x = np.random.default_rng(2).standard_normal((3, 1, 16, 16)).astype(np.float32)
    with torch.no_grad():
        wanted = Network(model.graph, model.weights).output(x, training=False)
        found = torch_twin.Twin(model).module.eval().double()(torch.tensor(x).double())
    assert torch.allclose(found, wanted, rtol=1e-9)


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["conv", "resnet5"], "SUBJECT: it must be a suite, a network, or a shape such as 64x56x56:64k3p1. Received "
                              "name=resnet5. Hint: did you mean 'resnet56' or 'resnet50'"),
        (["conv", "anchor"], "did you mean 'anchors'"),
        (["cnov"], "argument WHAT: unknown name 'cnov': did you mean 'conv'?"),
        (["conv", "64x5x5:norm"], "SUBJECT: these layers are not of the kind to measure. Received layers="
                                  "['64x5x5:norm']. Hint: blobnet bench layer measures them."),
        (["layer", "anchors"], "Hint: blobnet bench conv measures them."),
        (["conv", "anchors", "--size", "64"], "--size: only networks are built for a size."),
        (["conv", "4x5x5:4k3", "--direction", "backward"], "--direction: it must be one that the layers have."),
        (["conv", "4x5x5:4k3", "--direction", "sideways"], "argument --direction: unknown name 'sideways'"),
        (["conv", "4x5x5:4k3", "--launches"], "--launches: this option is not for bench conv."),
        (["conv", "4x5x5:4k3", "--repeats", "0"], "argument --repeats: it must be a whole number of at least 1"),
        (["conv", "4x5x5:4k3", "--against", "pytorch"], "argument --against: unknown name 'pytorch': did you mean"),
        (["conv", "4x5x5:4k3", "--plot", "a.jpg"], "--plot: the file's name must end in .png, .pdf or .svg."),
        (["model"], "SUBJECT: bench model needs a network. Hint: known names: airbench, alexnet, "),
        (["model", "lenet"], "MODEL: it must be one of blobnet's models, or a function of yours. Received name=lenet."),
        (["model", "lenet5", "--direction", "forward"], "--direction: this option is not for bench model."),
        (["conv", "nowhere.py:net"], "nowhere.py: there must be such a Python file."),
        (["model", "lenet5", "--augment", "flip"], "--augment: this option is not for bench model."),
        (["fit", "lenet5", "--launches"], "--launches: this option is not for bench fit."),
        (["fit"], "SUBJECT: bench fit needs a network."),
        (["ladder"], "argument WHAT: unknown name 'ladder'"),
    ],
)  # fmt: skip
def test_refused(run, arguments, message) -> None:
    result = run("bench", *arguments)
    assert (result.status, result.out) == (2, "")
    assert message in result.err


CONVOLUTION_NET = """
import blobnet as bn
from blobnet import layers

def planes(input_shape=(1, 8, 8), classes=10):
    return bn.Sequential([layers.Input(*input_shape), layers.Conv2D(classes, 3)])

def one_sided(input_shape=(1, 8, 8), classes=10):
    steps = [layers.Conv2D(classes, 2, padding="same"), layers.GlobalAveragePool()]
    return bn.Sequential([layers.Input(*input_shape), *steps])
"""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["model", "lenet5", "--batch-size", "100000000"],
            "all buffers must fit the device's memory. Received batch_size=",
        ),
        (
            ["model", "nets.py:planes", "--classes", 1],
            "CrossEntropy: the model's output must be one logit for each of at least 2 classes.",
        ),
        (["model", "lenet5", "--plot", "missing/a.png"], "missing/a.png: the folder of the file must exist."),
        (["model", "lenet5", "--size", "3"], "the window must not be larger than the padded input"),
        (["model", "nets.py:one_sided", "--against", "torch"], "PyTorch pads both sides of an axis alike"),
        (["conv", "4x5x5:4k2psame", "--against", "torch"], "PyTorch pads both sides of an axis alike"),
        (["layer", "4x5x5:maxpool2psames1", "--against", "torch"], "PyTorch pads both sides of an axis alike"),
    ],
)
def test_refused_before_anything_is_measured(run, tmp_path: Path, arguments, message, monkeypatch) -> None:
    if "torch" in arguments:
        pytest.importorskip("torch")
    (tmp_path / "nets.py").write_text(CONVOLUTION_NET, encoding="utf-8")

    def measured(_: Device) -> None:
        raise AssertionError("nothing may be measured")

    monkeypatch.setattr(roofline, "measure", measured)
    result = run("bench", *arguments)
    assert (result.status, result.out) == (2, "")
    assert message in result.err


def test_without_pytorch(run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    result = run(*ONE_SHAPE, "--against", "torch")
    assert result.status == 2
    assert result.err.startswith("error: --against torch: PyTorch must be installed. Received cause=")
    assert "Hint: pip install torch" in result.err


@pytest.mark.parametrize(
    ("arguments", "subject"),
    [(["model", "lenet5", "--against", "torch"], "--against torch"), (["layer", "3x4x4:norm"], "bench layer")],
)
def test_without_a_checkout(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments, subject: str) -> None:
    monkeypatch.setattr(blobnet, "__file__", str(tmp_path / "blobnet" / "__init__.py"))
    result = run("bench", *arguments)
    rule = "what measures blobnet's own figures is in its repository, and not in what is installed."
    assert result.status == 2
    assert result.err.startswith(f"error: {subject}: {rule} Received missing={tmp_path}")
    assert "Hint: run `pip install -e .` in a checkout of the repository." in result.err


def test_what_pytorch_has_not(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    for text in ("4x5x5:4k2psame", "4x5x5:maxpool2psames1"):
        with pytest.raises(BlobnetError, match="PyTorch pads both sides of an axis alike"):
            torch_twin.CaseTwin(parse(text), 1, 1, "cpu")
