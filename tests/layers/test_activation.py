"""Activation, forward and backward."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from blobnet.device.device import Device
from blobnet.errors import OptionError
from blobnet.examination.measured import in_memory
from blobnet.examination.reference import activation as reference
from blobnet.layers import Activation
from blobnet.layers.activation import ACTIVATIONS
from blobnet.layers.base import Placement, Placements
from blobnet.memory.blob import Shape
from tests.kinds import kind_of, tuning_for
from tests.layers.layer_contract import ContractReport, check_central_differences, run_layer_contract

#: Every function, and those with numbers of their own.
FUNCTIONS = (*ACTIVATIONS, "leaky_relu(0.3)", "leaky_relu(0)", "relu(1.5)")

SHAPES = [Shape(4, 9), Shape.flat(11), Shape(1, 1, 1), Shape(2, 33, 17), Shape(2, 3, 4, 5)]


def contract(
    device: Device,
    function: str,
    shape: Shape,
    arrangements: list[str] | None = None,
    device_class: str | None = None,
    values: npt.ArrayLike | None = None,
) -> ContractReport:
    forward, backward = reference.named(function)
    if values is None:
        values = 3 * np.random.default_rng(1).standard_normal((3, *in_memory(shape)))
    return run_layer_contract(
        device,
        Activation(function),
        [shape],
        reference_forward=lambda inputs, parameters: forward(inputs[0]),
        reference_backward=lambda inputs, parameters, delta: ([backward(inputs[0], delta)], {}),
        inputs=[values],
        relative=1e-5,
        absolute=2e-6,
        arrangements=arrangements,
        tuning=tuning_for(device_class or kind_of(device)),
    )


@pytest.mark.parametrize("function", ["relu", "gelu", "softmax"])
def test_contract(device: Device, function: str) -> None:
    report = contract(device, function, Shape(3, 5, 7))
    family = "activation/softmax_" if function == "softmax" else "activation/"
    assert report.kernels == {f"{family}forward", f"{family}backward"}
    in_place = [run for run in report.runs.values() if run.arrangement.by_placement]
    assert in_place
    for run in in_place:
        if run.arrangement.training:
            delta, separate = run.input_deltas[0], report.runs["tight"].input_deltas[0]
            assert delta is not None
            assert separate is not None
            np.testing.assert_allclose(delta, separate, rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(run.output, report.runs["tight"].output, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_function(device: Device, function: str) -> None:
    contract(device, function, Shape(3, 5, 7), ["own pitches"])


@pytest.mark.parametrize("function", ["gelu", "softmax"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_shape(device: Device, function: str, shape: Shape) -> None:
    contract(device, function, shape, ["own pitches"])


@pytest.mark.parametrize("function", ["tanh", "softmax"])
@pytest.mark.parametrize("device_class", ["cpu", "gpu"])
def test_work_sizes_of_each_class(device: Device, function: str, device_class: str) -> None:
    contract(device, function, Shape(3, 5, 9), ["one pitch"], device_class)


@pytest.mark.parametrize(
    "function", ["sigmoid", "tanh", "silu", "gelu", "softplus", "softmax", "elu", "mish", "hard_swish"]
)
def test_large_values_stay_finite(device: Device, function: str) -> None:
    # In the shape and arrangement of the test above, whose programs are built already.
    values = np.resize([-1e4, -200, -90, -30, -1e-3, 0, 1e-3, 30, 90, 200, 1e4], (3, 3, 5, 7))
    contract(device, function, Shape(3, 5, 7), ["own pitches"], values=values)


@pytest.mark.parametrize("function", [name for name in FUNCTIONS if "relu" in name or "hard" in name or name == "elu"])
def test_slopes_at_kinks_are_those_of_pytorch(device: Device, function: str) -> None:
    """The references' are (tests/reference/test_references.py)."""
    values = np.resize([-6, -3, -1, -0.0, 0.0, 0.5, 1.5, 3, 6, 7], (3, 3, 5, 7))
    contract(device, function, Shape(3, 5, 7), ["own pitches"], values=values)


@pytest.mark.parametrize("function", ["gelu", "softmax"])
def test_slopes(device: Device, function: str) -> None:
    check_central_differences(device, Activation(function), [Shape(3, 4, 3)])


def test_unknown_function() -> None:
    with pytest.raises(OptionError, match=r"Activation: .*Received function=rellu.*Hint: did you mean .*'relu'"):
        Activation("rellu")


@pytest.mark.parametrize(
    ("layer", "text"),
    [
        (Activation("leaky_relu", slope=0.2), "leaky_relu(0.2)"),
        (Activation("leaky_relu(0.2)"), "leaky_relu(0.2)"),
        (Activation("relu", limit=4), "relu(4.0)"),
        (Activation("leaky_relu"), "leaky_relu"),
        (Activation("relu"), "relu"),
        (Activation("softmax"), "softmax"),
    ],
    ids=str,
)
def test_numbers(layer: Activation, text: str) -> None:
    assert layer.nonlinearity.text == text
    assert Activation(**layer.config()) == layer
    assert Activation(text) == layer


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"function": "elu", "slope": 0.1}, r"slope is an option of leaky_relu alone. Received function=elu"),
        ({"function": "leaky_relu", "limit": 6}, r"limit is an option of relu alone. Received function=leaky_relu"),
        ({"function": "leaky_relu", "slope": -0.1}, r"slope must be a number at least 0. Received slope=-0.1"),
        ({"function": "leaky_relu", "slope": math.nan}, r"slope must be a number at least 0. Received slope=nan"),
        ({"function": "relu", "limit": 0}, r"limit must be a number above 0. Received limit=0"),
        ({"function": "relu(0)"}, r"limit must be a number above 0. Received limit=0"),
        ({"function": "relu(4)", "limit": 4}, r"limit must be given once"),
        ({"function": "relu(x)"}, r"the activation must be a known function. Received function=relu\(x\)"),
        ({"function": "tanh(2)"}, r"the activation must be a known function. Received function=tanh\(2\)"),
    ],
    ids=str,
)
def test_wrong_numbers(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Activation(**arguments)


@pytest.mark.parametrize("function", ACTIVATIONS)
def test_placement(function: str) -> None:
    layer = Activation(function)
    # The planner keeps it from writing over what the backward pass reads.
    for training in (False, True):
        assert layer.placement(SHAPES[:1], training) == Placements(Placement.IN_PLACE, Placement.IN_PLACE)
    assert layer.kept.inputs != layer.kept.output
