"""Kernel calls as data: exact roles and macros, work sizes, tunables. Needs no OpenCL."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from blobnet.errors import KernelError
from blobnet.hardware.device_model import GENERIC
from blobnet.launch import kernel_source
from blobnet.launch.kernel_call import Array, Blob, GlobalSize, KernelCall, for_model
from blobnet.launch.kernel_source import Definition
from blobnet.launch.work_sizes import copy_call, elementwise_work
from blobnet.memory.blob import BlobLayout, Halo, Shape, geometry_type
from tests.kinds import tuning_for

SHAPE = Shape(3, 5, 7)
LAYOUT = BlobLayout.padded(SHAPE.with_units(9), Halo((1, 2), (3, 1)), slack=5).slice_units(4, SHAPE.units)


def call() -> KernelCall:
    return KernelCall(
        "activation/forward",
        "relu1 forward",
        GlobalSize(4, 5, 3),
        blobs={"INPUT": Blob("a", LAYOUT), "OUTPUT": Blob("b", BlobLayout.padded(SHAPE))},
        macros={"FINISHED": Definition("(value, unit) ((value) < 0 ? 0.0f : (value))"), "MORE_ARRAYS": ""},
        tunables={"CELLS": 1},
        local_size=(4, 2, 8),
    )


def defines(source: str) -> dict[str, str]:
    return dict(re.findall(r"^#define (\w+(?:\([^)]*\))?) (.*)$", source.split("#line")[0], flags=re.MULTILINE))


def test_assemble_defines_macros_sizes_and_roles() -> None:
    found = defines(replace(call(), constant_sizes=True).assemble())
    assert found["FINISHED(value, unit)"] == "((value) < 0 ? 0.0f : (value))"
    assert (found["LOCAL_WIDTH"], found["PLANES"]) == ("4", "1")
    assert found["INPUT_UNIT_MEMORY_WIDTH"] == "10"
    assert found["INPUT_UNIT_MEMORY_ELEMENTS"] == str(8 * 10 + 3 + 5)
    assert found["INPUT_MEMORY_ELEMENTS"] == str(9 * (8 * 10 + 3 + 5))
    assert found["INPUT_UNIT_MEMORY_HEIGHT_OFFSET"] == "1"
    assert found["INPUT_UNIT_OFFSET"] == "input_unit_offset"
    assert found["INPUT_UNIT_PADDING"] == "(6 - input_unit_offset)"
    assert found["OUTPUT_UNIT_COUNT"] == "3"
    assert "GLOBAL_HEIGHT" not in found, "the header does not ask for it"


def test_sizes_may_be_arguments() -> None:
    """Where the header says so, calls that differ by sizes alone have the same program, and other arguments."""
    text = call().assemble()
    found = defines(text)
    assert (found["LOCAL_WIDTH"], found["CELLS"]) == ("4", "1")
    assert found["INPUT_UNIT_MEMORY_WIDTH"] == "input_geometry.unit_memory_width"
    assert found["INPUT_UNIT_PADDING"] == "(INPUT_UNIT_MEMORY_COUNT - INPUT_UNIT_COUNT - input_unit_offset)"
    assert geometry_type(plain=True) in text
    smaller = Shape(2, 4, 3)
    blobs = {role: Blob(role, BlobLayout.padded(smaller, Halo((1, 1), (1, 1)))) for role in ("INPUT", "OUTPUT")}
    other = replace(call(), blobs=blobs, global_size=GlobalSize(8, 5, 2))
    assert other.assemble() == text
    constant = replace(other, constant_sizes=True)
    assert constant.assemble() != replace(call(), constant_sizes=True).assemble()
    assert geometry_type(plain=True) not in constant.assemble()


def test_programs_of_a_class_of_device() -> None:
    calls = [call(), replace(call(), label="relu2 forward")]
    assert for_model(calls, GENERIC["gpu"]) == calls
    assert for_model(calls, GENERIC["cpu"]) == [replace(item, constant_sizes=True) for item in calls]


def test_moving_a_blob_compiles_nothing() -> None:
    moved = replace(LAYOUT, unit_offset=0)
    other = replace(call(), blobs={**call().blobs, "INPUT": Blob("c", moved)})
    assert other.assemble() == call().assemble()


def test_the_batch_is_no_macro() -> None:
    assert not any(
        "COUNT" in name and "UNIT" not in name and "PLANE" not in name for name in defines(call().assemble())
    )


@pytest.mark.parametrize("role", ["blobs", "arrays", "macros"])
def test_names_must_be_exactly_those_declared(role: str) -> None:
    extras: dict[str, Any] = {"blobs": Blob("c", LAYOUT), "arrays": Array("p", 3), "macros": 1}
    given = dict(getattr(call(), role))

    def changed(names: dict[str, Any]) -> KernelCall:
        changes: dict[str, Any] = {role: names}
        return replace(call(), **changes)

    subject = r"kernel activation/forward" + (r" \(relu1 forward\)" if role != "macros" else "")
    with pytest.raises(KernelError, match=rf"{subject}: the {role} given .* missing=\[\], unknown=\['EXTRA'\]"):
        changed({**given, "EXTRA": extras[role]}).assemble()
    if given:
        name = sorted(given)[-1]
        with pytest.raises(KernelError, match=rf"the {role} given .* missing=\['{name}'\], unknown=\[\]"):
            changed({key: value for key, value in given.items() if key != name}).assemble()


@pytest.mark.parametrize("count", [1, 2, 7])
def test_work_size_covers_the_batch_in_whole_groups(count: int) -> None:
    width, height, units = call().work_size(count)
    assert (width, height) == (4, 6)
    assert units % 8 == 0
    assert 3 * count <= units < 3 * count + 8
    once = replace(call(), global_size=GlobalSize(1, 1, 3, per_sample=False), local_size=None)
    assert once.work_size(count) == (1, 1, 3)


@pytest.mark.parametrize(
    ("count", "expected"), [(3, range(0)), (4, range(0)), (5, range(4, 5)), (8, range(4, 8)), (9, range(4, 8))]
)
def test_a_launch_takes_its_samples_of_the_batch(count: int, expected: range) -> None:
    part = replace(call(), samples=range(4, 8)).samples_of(count)
    assert (len(part), list(part)) == (len(expected), list(expected))
    assert call().samples_of(count) == range(count)


@pytest.mark.parametrize("shape", [SHAPE, Shape(1, 1, 1), Shape.flat(10), Shape(9, 1, 1000), Shape(3, 99, 99)], ids=str)
def test_elementwise_work(shape: Shape) -> None:
    size, local = elementwise_work(shape, tuning_for("cpu"))
    assert (size, local) == (GlobalSize(1, 1, shape.units), None)
    size, local = elementwise_work(shape, tuning_for("gpu"))
    assert local
    assert 1 <= local[0] * local[1] * local[2] <= 256
    assert size.units == shape.units
    assert size.width % local[0] == 0
    assert size.height % local[1] == 0
    assert size.height >= shape.height


def test_tuning_overrides_single_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    tunable = kernel_source.Tunable({"loops": 8, "lanes": 1}, (1, 8, 16))
    tuned = replace(kernel_source.load("activation/forward"), name="family/forward", tunables={"TILE": tunable})
    monkeypatch.setattr(kernel_source, "load", lambda name: tuned)
    assert tuning_for("cpu").of("family/forward") == {"TILE": 8}
    assert tuning_for("gpu").of("family/forward") == {"TILE": 1}
    assert tuning_for("gpu", {"family/forward": {"TILE": 16}}).of("family/forward") == {"TILE": 16}
    with pytest.raises(KernelError, match="legal value"):
        tuning_for("gpu", {"family/forward": {"TILE": 3}}).of("family/forward")


def test_copies_only_where_memory_differs() -> None:
    source, target = Blob("a", LAYOUT), Blob("b", LAYOUT)
    tuning = tuning_for("cpu")
    assert copy_call("copy", source, source, tuning) == []
    for calls, accumulate in (
        (copy_call("copy", source, target, tuning), 0),
        (copy_call("copy", source, target, tuning, accumulate=True), 1),
        (copy_call("copy", source, source, tuning, accumulate=True), 1),
    ):
        (only,) = calls
        assert only.kernel == "blob/copy"
        assert only.macros == {"ACCUMULATE": accumulate}
        only.assemble()


def test_elements_of_shapes_in_memory() -> None:
    assert Blob("a", LAYOUT).shape == SHAPE
