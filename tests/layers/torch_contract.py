"""The contract of layers that lower to contractions, with PyTorch in float64 as their reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from blobnet.contraction.training import passes
from blobnet.device.device import Device
from blobnet.layers.base import Layer
from blobnet.layers.lowered import ContractionLayer
from blobnet.memory.blob import Shape
from tests.layers.layer_contract import (
    ContractReport,
    Float64Array,
    Inputs,
    Parameters,
    check_central_differences,
    run_layer_contract,
)

#: (inputs, parameters) -> output, of tensors.
Module = Callable[[list[Any], dict[str, Any]], Any]


def run_torch_contract(
    device: Device,
    layer: Layer,
    shapes: Sequence[Shape],
    module: Module,
    *,
    differences: bool = False,
    relative: float = 3e-5,
    absolute: float = 3e-5,
    **options: Any,
) -> ContractReport:
    """Asserts that a layer keeps the contract, and is what ``module`` is: values, deltas and gradients.

    Args:
        differences: whether to look at the slopes of what the device computes, too.
        **options: as of run_layer_contract.
    """
    torch = pytest.importorskip("torch")

    def tensors(inputs: Inputs, parameters: Parameters) -> tuple[list[Any], dict[str, Any]]:
        given = [
            torch.tensor(values.reshape(len(values), *shape.dimensions), dtype=torch.float64, requires_grad=True)
            for values, shape in zip(inputs, shapes, strict=True)
        ]
        learned = {
            name: torch.tensor(values, dtype=torch.float64, requires_grad=True) for name, values in parameters.items()
        }
        return given, learned

    def forward(inputs: Inputs, parameters: Parameters) -> Float64Array:
        result: Float64Array = module(*tensors(inputs, parameters)).detach().numpy()
        return result

    def backward(
        inputs: Inputs, parameters: Parameters, delta: Float64Array
    ) -> tuple[list[Float64Array], Mapping[str, Float64Array]]:
        given, learned = tensors(inputs, parameters)
        output = module(given, learned)
        output.backward(torch.tensor(delta.reshape(output.shape)))
        zeros = [np.zeros(tensor.shape) for tensor in given]
        deltas = [none if item.grad is None else item.grad.numpy() for item, none in zip(given, zeros, strict=True)]
        trained = {spec.name for spec in layer.parameters(shapes) if spec.trainable}
        return deltas, {name: tensor.grad.numpy() for name, tensor in learned.items() if name in trained}

    if isinstance(layer, ContractionLayer):
        check_what_is_kept(layer, shapes)
    tolerance = {"relative": relative, "absolute": absolute}
    report = run_layer_contract(
        device, layer, shapes, reference_forward=forward, reference_backward=backward, **tolerance, **options
    )
    if differences:
        check_central_differences(device, layer, shapes)
    return report


def check_what_is_kept(layer: ContractionLayer, shapes: Sequence[Shape]) -> None:
    """What the class says that derivatives read is what they read."""
    bound = layer.bound(shapes)
    steps = passes(bound.program, [tensor.name for tensor in bound.program.inputs])
    read = {tensor.name for part in steps.gradients for tensor in part.inputs}
    assert layer.keeps_inputs == bool(read & set(bound.inputs)), f"{layer}: derivatives read {read}"
    assert layer.keeps_output == (bound.output.name in read), f"{layer}: derivatives read {read}"
