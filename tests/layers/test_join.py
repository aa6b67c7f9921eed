"""Add, Concat and Flatten, each on its own; tests/train/test_plans.py has them in graphs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from blobnet.device.device import Device
from blobnet.errors import ShapeError
from blobnet.launch.kernel_call import Tuning
from blobnet.layers import Add, Concat, Flatten
from blobnet.layers.base import Layer
from blobnet.memory.blob import Shape
from tests.kinds import tuning_for
from tests.layers.layer_contract import ContractReport, Float64Array, check_central_differences, run_layer_contract
from tests.reference import joins


def contract(
    device: Device,
    layer: Layer,
    shapes: Sequence[Shape],
    arrangements: Sequence[str] | None = None,
    tuning: Tuning | None = None,
) -> ContractReport:
    def forward(inputs: Sequence[Float64Array], parameters: object) -> Float64Array:
        if isinstance(layer, Flatten):
            return joins.flatten(inputs[0])
        return joins.add(inputs) if isinstance(layer, Add) else joins.concat(inputs)

    def backward(
        inputs: Sequence[Float64Array], parameters: object, delta: Float64Array
    ) -> tuple[list[Float64Array], dict[str, Float64Array]]:
        if isinstance(layer, Flatten):
            return [joins.flatten_backward(inputs[0], delta)], {}
        return (joins.add_backward if isinstance(layer, Add) else joins.concat_backward)(inputs, delta), {}

    return run_layer_contract(
        device,
        layer,
        shapes,
        reference_forward=forward,
        reference_backward=backward,
        relative=3e-7,  # Sums of three numbers.
        absolute=3e-7,
        arrangements=arrangements,
        tuning=tuning,
    )


def test_add(device: Device) -> None:
    count = 3
    report = contract(device, Add(), [Shape(3, 5, 7)] * count)
    assert report.kernels == {"join/add", "blob/copy"}
    assert report.runs["tight"].kernels == ["join/add"] * (count - 1) + ["blob/copy"] * count
    for position in range(count):
        run = report.runs[f"by placement (in place {position}, delta shared)"]
        assert run.kernels == ["join/add"] * (count - 1)


@pytest.mark.parametrize("shape", [Shape(2, 19), Shape.flat(5), Shape(1, 1, 1), Shape(2, 3, 4, 5)], ids=str)
def test_shapes_of_add(device: Device, shape: Shape) -> None:
    contract(device, Add(), [shape] * 2, ["own pitches"])


CONCATENATED = [
    [Shape(3, 9), Shape(1, 9)],
    [Shape.flat(3), Shape.flat(1), Shape.flat(6)],
    [Shape(2, 3, 3)],
    [Shape(2, 3, 4, 5), Shape(1, 3, 4, 5)],
]


def test_concat(device: Device) -> None:
    report = contract(device, Concat(), [Shape(2, 5, 7), Shape(1, 5, 7), Shape(4, 5, 7)])
    run = report.runs["by placement (concat 0, delta concat)"]
    assert run.kernels == []
    np.testing.assert_array_equal(run.output, report.runs["tight"].output)


@pytest.mark.parametrize("shapes", CONCATENATED, ids=lambda shapes: " ".join(str(shape) for shape in shapes))
def test_shapes_of_concat(device: Device, shapes: list[Shape]) -> None:
    contract(device, Concat(), shapes, ["own pitches"])


def test_flatten(device: Device) -> None:
    report = contract(device, Flatten(), [Shape(3, 5, 7)])
    assert report.runs["by placement (shared 0, delta shared)"].kernels == []


@pytest.mark.parametrize("shape", [Shape(4, 9), Shape.flat(6), Shape(1, 40, 1), Shape(2, 3, 4, 5)], ids=str)
def test_shapes_of_flatten(device: Device, shape: Shape) -> None:
    contract(device, Flatten(), [shape], ["own pitches"])


@pytest.mark.parametrize("device_class", ["cpu", "gpu"])
def test_work_sizes_of_each_class(device: Device, device_class: str) -> None:
    contract(device, Flatten(), [Shape(5, 13, 17)], ["own pitches"], tuning_for(device_class))
    contract(device, Add(), [Shape(3, 4, 70)] * 2, ["own pitches"], tuning_for(device_class))


def test_slopes(device: Device) -> None:
    check_central_differences(device, Add(), [Shape(2, 3, 4)] * 3)
    check_central_differences(device, Concat(), [Shape(2, 3, 4), Shape(1, 3, 4)])
    check_central_differences(device, Flatten(), [Shape(2, 3, 4)])


def test_add_takes_equal_shapes() -> None:
    with pytest.raises(ShapeError, match=r"join1 \(Add\): all inputs .* the same shape.*\(2, 3, 4\) \(2, 4, 3\)"):
        Add(name="join1").output_shape([Shape(2, 3, 4), Shape(2, 4, 3)])


def test_concat_takes_equal_planes() -> None:
    with pytest.raises(
        ShapeError, match=r"Concat: all inputs must have the same axes but for the units.*\(2, 3\) \(2, 4\)"
    ):
        Concat().output_shape([Shape(2, 3), Shape(2, 4)])
