"""Convolutions on the matrix unit of a processor: on AMX or AVX-512, or on what kernels/fragment.h has in their place.

Small integers are exact in bfloat16, and so are their sums in fp32: the layer contract holds as for fp32.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from blobnet.device import discovery
from blobnet.device.compiler import Compiler
from blobnet.device.device import Device
from blobnet.device.discovery import DriverTraits, products_on
from blobnet.examination.checks import plan_alone
from blobnet.hardware.device_model import MATRIX_UNITS, Answers, model_of
from blobnet.implementations import candidates
from blobnet.implementations.base import BACKWARD_DATA, BACKWARD_WEIGHTS, DIRECTIONS, FORWARD, choose
from blobnet.implementations.fragments import Fragments
from blobnet.launch.kernel_call import Tuning
from blobnet.launch.task import Task, TunedChoices
from blobnet.layers import Conv1D, Conv2D
from blobnet.memory.blob import BFLOAT16, FLOAT32, Shape
from tests.kinds import tuning_for
from tests.layers.test_convolution import contract
from tests.layers.test_convolution_cells import CASES
from tests.layers.test_convolution_tensor import check_rounding, exact

#: What a factor is rounded to, and by how much of itself at most.
ROUNDING = 2.0**-8
MORE_CASES: dict[str, tuple[Conv1D | Conv2D, Shape]] = {
    **CASES,
    "whole tiles": (Conv2D(64, 3, padding="same"), Shape(64, 16, 16)),
    "blocks of units and steps": (Conv2D(70, 3, padding=1), Shape(67, 6, 5)),
    "rows longer than a tile": (Conv2D(5, (1, 3), padding="same"), Shape(3, 2, 70)),
    "more tiles than are multiplied together": (Conv2D(5, 3, padding=1), Shape(3, 47, 53)),
    "one unit and position": (Conv2D(1, 1), Shape(1, 1, 1)),
    "depthwise": (Conv2D(6, 3, groups=6, stride=2, padding=1), Shape(6, 9, 7)),
    "a residual's places": (Conv2D(20, 1, bias="position"), Shape(33, 7, 7)),
}


def tuning(storage: Any = FLOAT32, **facts: Any) -> Tuning:
    return tuning_for("cpu", compute_units=2, precision="bf16", storage=storage, only={"fragments"}, **facts)


@pytest.mark.parametrize("case", MORE_CASES)
def test_exact_products(device: Device, case: str) -> None:
    report = exact(device, *MORE_CASES[case], ["tight", "own pitches"], fused=("sigmoid",), tuning=tuning())
    for run, phase in product(report.runs.values(), ["forward", "backward data", "backward parameters"]):
        assert any(call.kernel.endswith("_fragments") for call in run.calls[phase])


@pytest.mark.parametrize("count", [1, 2, 17])
def test_any_number_of_samples(device: Device, count: int) -> None:
    """Splits of the gradient are of whole samples, more of them than a short last batch has."""
    exact(device, Conv2D(9, 3, padding=1), Shape(5, 4, 6), ["tight"], count=count, tuning=tuning())


def test_parts_of_a_gradient_stay_in_a_cache(device: Device) -> None:
    """They are of few samples where a sample's numbers are many, but need no more memory than what is packed."""
    for layer, shape, fewer in (
        (Conv2D(9, 3, padding=1), Shape(5, 14, 16), True),
        (Conv2D(70, 3, padding=1), Shape(67, 3, 3), False),
    ):
        parts = list[int]()
        for cache in (1 << 20, 1 << 10):
            report = exact(device, layer, shape, ["tight"], count=33, tuning=tuning(caches=(1 << 10, cache)))
            calls = [call for run in report.runs.values() for call in run.calls["backward parameters"]]
            products = [call for call in calls if call.kernel.endswith("weight_fragments")]
            parts.append(max(int(call.macros["SPLITS"]) for call in products))
        assert (parts[1] > parts[0]) == fewer, (parts, shape)


@pytest.mark.parametrize("storage", [FLOAT32, BFLOAT16], ids=lambda kind: kind.name)
def test_error(device: Device, storage: Any) -> None:
    check_rounding(device, tuning(storage), ROUNDING, absolute=2.0)


def test_nothing_else_is_infinite(device: Device) -> None:
    """Units after the last one, and positions after the last one, are multiplied with 0, which must find numbers."""
    x, delta = np.ones((2, 3, 4, 5)), np.ones((2, 2, 4, 5))
    x[1, 2, 3, 4] = x[0, 1, 0, 0] = delta[1, 1, 3, 4] = np.inf
    options: dict[str, Any] = {"parameters": {"weight": np.ones((2, 3, 1, 1))}, "delta": delta, "tuning": tuning()}
    report = contract(device, Conv2D(2, 1, bias=False), Shape(3, 4, 5), count=2, inputs=[x], **options)
    assert {np.isinf(run.output).sum() for run in report.runs.values()} == {2 * 2}


def test_those_who_asked_for_less_get_it_where_it_is() -> None:
    operation = plain(Conv2D(8, 3), Shape(8, 9, 9), 2, FORWARD)
    assert [*Fragments.candidates(operation)]
    operation = replace(operation, tuning=replace(operation.tuning, precision="fp32"))
    assert not [*Fragments.candidates(operation)]
    with_unit = model_of(Answers("cpu", is_host=True, matrix_unit="amx_bf16"))
    without, a_gpu = model_of(Answers("cpu", is_host=True)), model_of(Answers("gpu", matrix_unit="amx_bf16"))
    assert [products_on(model, "bf16") for model in (with_unit, without, a_gpu)] == ["bf16", "fp32", "fp32"]
    assert [products_on(with_unit, precision) for precision in ("fp32", "fp16")] == ["fp32", "fp32"]


def test_large_products_are_worth_it_and_few_units_are_not() -> None:
    """A group of one unit fills a thirtieth of a fragment, and three input units a tenth."""
    for layer, shape, has_unit in (
        (Conv2D(256, 3, padding=1), Shape(256, 14, 14), True),
        (Conv2D(64, 3, padding=1), Shape(64, 56, 56), True),
        (Conv2D(256, 3, padding=1, groups=256), Shape(256, 14, 14), False),
    ):
        for direction in DIRECTIONS:
            known = plain(layer, shape, 8, direction)
            known = replace(known, tuning=replace(known.tuning, choices=TunedChoices()))
            best = choose(TunedChoices(), Task("forward", "", 8), candidates(known))
            assert isinstance(best, Fragments) == has_unit, (layer, direction, best.way)


def test_all_that_is_read_is_there() -> None:
    """Planes have what taps read, and behind the last one is a tile's rest."""
    for layer, shape in MORE_CASES.values():
        for direction in (FORWARD, BACKWARD_DATA, BACKWARD_WEIGHTS):
            (item,) = Fragments.candidates(plain(layer, shape, 3, direction))
            assert isinstance(item, Fragments)
            rest = 0 if direction == BACKWARD_WEIGHTS else 31
            for phase, taps in zip(item.phases, item.tables, strict=True):
                positions = getattr(item, "_summed", -(-item._positions(phase) // 32) * 32)
                last = max((shift for shift, _ in taps), default=0) + positions
                assert last <= item.plane + rest
                assert item.row_positions >= phase.horizontal.size


@pytest.mark.parametrize("seed", range(20))
def test_taps_read_their_number_or_a_zero(seed: int) -> None:
    """Whatever stride, dilation and padding: at the place of each result and tap lies what the formula has there."""
    rng = np.random.default_rng(seed)
    (height, width), (y_step, x_step) = rng.integers(1, 10, 2), rng.integers(1, 5, 2)
    kernel, dilation, before, after = (rng.integers(low, high, 2) for low, high in ((1, 6), (1, 4), (0, 5), (0, 5)))
    padding = tuple((int(low), int(high)) for low, high in zip(before, after, strict=True))
    layer = Conv2D(2, tuple(map(int, kernel)), (int(y_step), int(x_step)), padding, dilation=tuple(map(int, dilation)))
    if any((np.array([height, width]) + before + after) <= (kernel - 1) * dilation):
        pytest.skip("nothing fits")
    for direction in DIRECTIONS:
        operation = plain(layer, Shape(2, int(height), int(width)), 2, direction)
        (item,) = Fragments.candidates(operation)
        assert isinstance(item, Fragments)
        source = operation.source.shape
        plane = _packed_plane(item, source.height, source.width)
        for phase, table in zip(item.phases, item.tables, strict=True):
            axes = (phase.vertical, phase.horizontal)
            taps = product(*(range(axis.count) for axis in axes))
            for tap, (shift, _) in zip(taps, table, strict=True):
                for result in product(*(range(axis.size) for axis in axes)):
                    y, x = (
                        axis.stride * at + axis.shift + number * axis.shift_step
                        for axis, at, number in zip(axes, result, tap, strict=True)
                    )
                    is_there = 0 <= y < source.height and 0 <= x < source.width
                    place = result[0] * item.row_positions + result[1] + shift
                    assert plane[place] == (y * source.width + x + 1 if is_there else 0)


def _packed_plane(item: Fragments, height: int, width: int) -> Any:
    """What convolution/pack_fragments.cl makes of a unit whose numbers count from 1; its end is that of memory."""
    rows, columns = item.rows, item.columns
    lines = []
    for row_phase, column_phase, row in product(rows.phases, columns.phases, range(item.row_count)):
        y = row_phase + (rows.shifts[0] + row) * rows.stride
        xs = column_phase + (columns.shifts[0] + np.arange(item.row_positions)) * columns.stride
        is_there = (0 <= y < height) & (xs >= 0) & (xs < width)
        lines.append(np.where(is_there, y * width + xs + 1, 0))
    data = np.concatenate(lines)
    return np.concatenate([data, np.zeros(item.plane - len(data), int)])


@pytest.mark.parametrize(
    ("vendor", "features", "unit"),
    [
        ("GenuineIntel", "fpu avx512f avx512_bf16 amx_tile", ""),
        ("AuthenticAMD", "fpu avx512f avx512_bf16", "avx512_bf16"),
        ("AuthenticAMD", "fpu avx512f", ""),
    ],
)
def test_which_processors_have_such_a_unit(
    monkeypatch: pytest.MonkeyPatch, vendor: str, features: str, unit: str
) -> None:
    lines = {"vendor_id": f"vendor_id : {vendor}", "flags": f"flags : {features}"}
    monkeypatch.setattr(discovery, "_processor_line", lambda *starts: lines[starts[0]])
    monkeypatch.setattr(discovery, "machine", lambda: "x86_64")
    monkeypatch.setattr(sys, "platform", "linux")
    for known in (discovery.matrix_unit, discovery._processor_features):
        known.cache_clear()
    try:
        assert discovery.matrix_unit() == unit
    finally:
        for known in (discovery.matrix_unit, discovery._processor_features):
            known.cache_clear()


def test_a_driver_that_takes_no_assembly_is_given_none(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """And those who ask for bfloat16 there get the products of fp32."""
    traits = replace(DriverTraits.of(device.info), takes_assembly=False)
    info = replace(device.info)
    vars(info)["traits"] = traits
    assert not {f"-D{unit.macro}" for unit in MATRIX_UNITS.values()} & {*Compiler(device.queue.context, info).options}
    assert "bf16" not in info.model.tensor_types or not info.is_host


def plain(layer: Conv1D | Conv2D, shape: Shape, count: int, direction: str) -> Any:
    """An operation of a layer alone."""
    site = plan_alone(layer, shape, count, tuning())[1]
    return layer.operation(site, direction)
