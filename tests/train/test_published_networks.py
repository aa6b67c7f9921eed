"""The networks of blobnet.models that come from papers: their size, and their outputs against PyTorch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from blobnet import models
from blobnet.device.device import Device
from blobnet.layers import initializers
from blobnet.layers.base import ParameterSpec
from blobnet.memory.blob import FloatArray
from blobnet.model import Model
from tests.torch_graphs import Network

#: Trainable parameters for 1000 classes, and of what follows the planes: the values that the first dense layer sees.
PUBLISHED = {
    "resnet18": (11_689_512, 512),
    "resnet50": (25_557_032, 2048),
    "vgg16": (138_357_544, 512 * 7 * 7),
    "mobilenet_v2": (3_504_872, 1280),
    "alexnet": (61_100_840, 256 * 6 * 6),
}


#: What is also run on the device: building the kernels of all five takes minutes on some drivers.
DEVICE_NETWORKS = ["resnet18"]


def build(name: str, *arguments: object) -> Model:
    model: Model = getattr(models, name)(*arguments)
    return model


@pytest.mark.parametrize("name", PUBLISHED)
def test_as_many_parameters_as_published(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Drawing 138 million numbers takes seconds, and here only their number matters.
    def zeros(spec: ParameterSpec, *_: object) -> np.ndarray:
        return np.zeros(spec.shape, np.float32)

    monkeypatch.setattr(initializers, "initialize", zeros)
    model = build(name)
    parameters, values = PUBLISHED[name]
    assert model.parameter_count == parameters
    dense = next(vertex for vertex in model.graph.vertices if vertex.layer.kind == "Dense")
    assert sum(shape.elements for shape in model.graph.input_shapes(dense)) == values
    assert model.graph.output.shape.dimensions == (1000,)


def twins(name: str) -> tuple[Any, Model, FloatArray, Any]:
    """PyTorch, a network for samples of 64x64, a batch, and its outputs from the twin in PyTorch, in float64."""
    torch = pytest.importorskip("torch")
    from tests import torch_networks

    model = build(name, (3, 64, 64), 10, (), 3)
    random = np.random.default_rng(5)
    weights = model.weights
    for key, values in weights.items():  # As they start, norms and biases would do nothing.
        if values.ndim == 1 and not key.startswith("input/"):
            weights[key] = random.uniform(0.5, 1.5, values.shape).astype(np.float32)
    model.set_weights(weights)
    x = random.standard_normal((2, 3, 64, 64)).astype(np.float32)
    dense = next(vertex for vertex in model.graph.vertices if vertex.layer.kind == "Dense")
    features = sum(shape.elements for shape in model.graph.input_shapes(dense))
    network = getattr(torch_networks, name)(3, 10, features)
    torch_networks.copy_weights(model.graph, weights, network, torch.tensor(x))
    with torch.no_grad():
        return torch, model, x, network.double()(torch.tensor(x).double()).numpy()


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.long
def test_the_definition_is_that_of_the_twin(name: str) -> None:
    torch, model, x, wanted = twins(name)
    with torch.no_grad():
        found = Network(model.graph, model.weights).output(x, training=False)
    assert np.allclose(found.numpy().reshape(wanted.shape), wanted, rtol=1e-9, atol=0)


@pytest.mark.long
@pytest.mark.parametrize("name", DEVICE_NETWORKS)
def test_outputs_are_the_twins(name: str, device: Device) -> None:
    _, model, x, wanted = twins(name)
    # Errors of float32 sums grow along up to 50 layers.
    assert np.abs(model.predict(x, device=device) - wanted).max() <= 2e-5 * np.abs(wanted).max()
