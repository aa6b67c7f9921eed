"""The seeds' ladders (tests/bench/schedules.py): every rung computes the convolution, and is what it says it is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blobnet.contraction.lowering import lower
from blobnet.contraction.schedule import Schedule, check, prepared
from blobnet.device.device import Device
from blobnet.examination import layer_cases
from blobnet.examination.reference import convolution as reference
from blobnet.execution.contractions import Compiled, compiled
from blobnet.hardware.device_model import GENERIC
from tests.bench import schedules
from tests.reference.compare import assert_close

#: For each seed: units that no block divides, odd widths, strides, dilations, paddings; and a bias and an activation.
CASES = [
    ("000", "5x4x9:19k3psame", "", ""),
    ("000", "3x6x11:18k3x2s1x2p1x2d2x3", "position", "P > 0 ? P : P / 8"),
    ("000", "33x23:17k5p2s3", "unit", "min(max(P, 0), 6)"),
    ("002", "21x4:3k5p2", "unit", "P > 0 ? P : P / 8"),
    ("002", "32x23:5k3s2d3p2", "position", ""),
    ("004", "9x3x5:7k1", "", "min(max(P, 0), 6)"),
    ("004", "8x3x6:6k1s1x2p1", "position", ""),
    ("004", "12x9:5k1", "unit", ""),
]
ACTIVATIONS = {
    "": lambda p: p,
    "P > 0 ? P : P / 8": lambda p: np.where(p > 0, p, p / 8),
    "min(max(P, 0), 6)": lambda p: np.clip(p, 0, 6),
}


def expected(seed: str, case: layer_cases.Case, arrays: dict[str, np.ndarray]) -> np.ndarray:
    """What comes before the activation, in float64, units first; from NCHW and OIHW."""
    x, w, bias = arrays["I"], arrays["W"], arrays.get("B")
    if seed == "004":
        x = np.moveaxis(x, -1, 1)
        bias = None if bias is None else np.moveaxis(bias, -1, 0)
    w = np.moveaxis(w, 0, 1) if seed == "000" else w
    axes = [schedules.WindowAxis(1)] * (case.layer.rank == 1) + [*schedules.axes(case)]
    if case.layer.rank == 1:
        x, w = x[:, :, None], w[:, :, None]
        bias = None if bias is None else bias[:, None]
    stride, dilation = (tuple(getattr(axis, name) for axis in axes) for name in ("stride", "dilation"))
    padding = tuple(axis.padding for axis in axes)
    result = reference.conv2d(x, w, None, reference.Windows(stride, padding, dilation))
    return result if bias is None else result + bias


@pytest.mark.parametrize(("seed", "text", "bias", "activation"), CASES)
def test_every_rung(device: Device, seed: str, text: str, bias: str, activation: str) -> None:
    case = layer_cases.parse(text)
    assert schedules.obstacle(seed, case) is None
    program = schedules.program(seed, case, 3, bias, activation, preactivation=True)
    rng = np.random.default_rng(len(text))
    arrays = {tensor.name: rng.standard_normal(tensor.shape) for tensor in program.inputs}
    before = expected(seed, case, arrays)
    after = ACTIVATIONS[activation](before)
    assert not activation or (before < 0).any()
    names = set()
    for rung in schedules.rungs(seed, case, device.model):
        results = compiled(device, program, schedules.chooser(rung.schedule, device.model)).run(arrays)
        for name, values in (("P", before), ("R", after)):
            found = np.moveaxis(results[name], -1, 1) if seed == "004" else results[name]
            found = found if case.layer.rank == 2 else found[:, :, None]
            assert_close(found, values, what=f"{rung.name}: {name}", relative=2e-5, absolute=2e-5)
        names.add(rung.name)
    assert len(names) == len(list(schedules.rungs(seed, case, device.model)))
    assert "concise" in names


@pytest.mark.parametrize("group", [1, 4, 64])
def test_rounds_of_channels(device: Device, group: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer work-items than there are input units, and less local memory than all of them need."""
    monkeypatch.setattr(schedules, "MAX_ITEMS", group)
    monkeypatch.setattr(schedules, "LOCAL_BYTES", 3000)
    case = layer_cases.parse("66x5:3k4p2")
    program = schedules.program("002", case, 2)
    arrays = {tensor.name: np.random.default_rng(0).standard_normal(tensor.shape) for tensor in program.inputs}
    for rung in schedules.rungs("002", case, device.model):
        forced = Schedule.parse(rung.schedule)
        assert forced.shared[1] <= group
        lowered = lower(program, lambda _, forced=forced: forced)
        if forced.local:
            check(prepared(lowered.steps[0].whole, forced), forced, group, 3000)
            assert forced.chunks
        results = Compiled(device, lowered).run(arrays)
        assert_close(
            results["R"][:, :, None], expected("002", case, arrays), what=rung.name, relative=2e-5, absolute=2e-5
        )


def kernel(seed: str, text: str, name: str) -> str:
    """The text of a rung's main kernel on a GPU."""
    case = layer_cases.parse(text)
    (rung,) = (rung for rung in schedules.rungs(seed, case, GENERIC["gpu"]) if rung.name == name)
    lowered = lower(schedules.program(seed, case, 1), lambda _: Schedule.parse(rung.schedule))
    return lowered.steps[-1].kernel.text


def terms(text: str) -> int:
    return len(re.findall(r"\bsum\w* \+= t_I_", text))


def test_the_rungs_are_those_of_the_seeds() -> None:
    """Loads are counted in the texts."""
    shape = "64x56x56:64k3p1"
    assert kernel("000", shape, "concise").count("LOAD") == 0
    weights = kernel("000", shape, "weight vectors")
    assert (weights.count("= LOAD8(t_W"), weights.count("LOAD")) == (1, 1)  # And one alone: the ninth.
    rows = kernel("000", shape, "input vectors")
    assert (rows.count("= LOAD8(t_W"), rows.count("= LOAD2(t_I")) == (1, 3)
    # 9 loads of 16 for 16 filters of 9 taps, with nothing left over.
    block = kernel("000", shape, "16 units")
    assert (block.count("= LOAD16(t_W"), block.count("LOAD"), block.count("const float t_W")) == (9, 9 + 3, 0)
    assert terms(block) == 16 * 9
    both = kernel("000", shape, "16 units, 2 columns")
    assert (both.count("= LOAD16(t_W"), terms(both)) == (9, 2 * 16 * 9)
    product = kernel("004", "240x28x28:240k1", "4 input units a step")
    assert (product.count("= LOAD4(t_I"), product.count("= LOAD4(t_packed"), product.count("STORE4(")) == (2, 4, 2)
    local = kernel("002", "1024x4:1024k5p2", "4 channels")
    assert "reqd_work_group_size(128, 1, 1)" in local  # What fits local memory at a time: half of the units.
    assert local.count("barrier(") == 2 + 4
    assert terms(local) == 4 * 5 * 4
    assert local.count("aligned(128)") == 3  # Input, weights, partial sums.
    assert kernel("002", "1024x4:1024k5p2", "shared units").count("aligned(128)") == 1


def test_shares_of_local_memory_fit() -> None:
    """One group's local memory, as check counts it; with twice as much it would not fit."""
    for text in (*layer_cases.UNET1D.split(), "1024x120:2k15", "512x7:3k15s2d2p12"):
        case = layer_cases.parse(text)
        program = schedules.program("002", case, 1)
        for rung in schedules.rungs("002", case, GENERIC["gpu"]):
            schedule = Schedule.parse(rung.schedule)
            (step, *_) = lower(program, lambda _, schedule=schedule: schedule).steps
            check(step.table, schedule, GENERIC["gpu"].group_size, schedules.LOCAL_BYTES)


@pytest.mark.parametrize(
    ("seed", "text", "reason"),
    [
        ("004", "4x5x5:6k3", "a filter must have 1 tap"),
        ("002", "4x5x5:6k3", "a convolution must have 1 axis"),
        ("000", "4x5x5:6k3g2", "it must be a convolution of one group"),
        ("002", "4x5x5:norm", "it must be a convolution of one group"),
        ("000", "4x5:6k1", None),
        ("002", "4x5:6k1", None),
        ("004", "4x5:6k1", None),
    ],
)
def test_a_shape_goes_to_the_seeds_that_take_it(seed: str, text: str, reason: str | None) -> None:
    assert schedules.obstacle(seed, layer_cases.parse(text)) == reason


def test_the_script(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, device: Device) -> None:
    roof = schedules.Roofline(1e10, 1e10, 2e10)
    monkeypatch.setattr(schedules, "measure", lambda _: roof)
    arguments: list[Any] = ["4x7:5k3p1", "4x5x5:16k13p6", "--device", device.info.address, "--repeats", "1"]
    monkeypatch.syspath_prepend(Path(schedules.__file__).parent)
    monkeypatch.setattr("sys.argv", ["schedules.py", *arguments, "--bias", "unit", "--show"])
    schedules.main()
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 400
    for seed, text in (("000", "4x7:5k3p1"), ("002", "4x7:5k3p1"), ("000", "4x5x5:16k13p6")):
        first = lines.index(f"seed {seed}, {schedules.TITLES[seed]}: {text}, batch 1")
        case = layer_cases.parse(text)
        work = case.work("forward", 1)
        assert lines[first + 1].startswith(f"{work.flops / 1e6:.4g} MFLOP, {work.bytes / 1e6:.4g} MB, in theory ")
        rows = [line[2:24].strip() for line in lines[first + 3 :] if line.startswith("  ") and line[2] != " "]
        names = [rung.name for rung in schedules.rungs(seed, case, device.model)]
        assert rows[: len(names) + 2] == [*names, "chosen", "production"]
    skipped = [line for line in lines if "skipped" in line]
    assert "seed 004: 4x7:5k3p1 skipped: a filter must have 1 tap" in skipped
    assert any("the innermost loop must have no more than 2048 multiply-adds" in line for line in skipped)
    (row,) = [line for line in lines if line.startswith("4x7:5k3p1 ")]
    floor = max(work_of("4x7:5k3p1")[0] / 1e10, work_of("4x7:5k3p1")[1] / 2e10)
    assert float(row.split()[-5]) == pytest.approx(1e6 * floor, rel=0.01)


def work_of(text: str) -> tuple[int, int]:
    work = layer_cases.parse(text).work("forward", 1)
    return work.flops, work.bytes
