"""LSTM, GRU and Embedding: the contract, against PyTorch's modules in float64; training; what does not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blobnet as bn
from blobnet import layers
from blobnet.device.device import Device
from blobnet.errors import BlobnetError
from blobnet.examination.layer_references import reference_of
from blobnet.memory.blob import Shape
from tests.layers.layer_contract import check_central_differences, run_layer_contract
from tests.layers.torch_contract import run_torch_contract
from tests.torch_graphs import MODULES

KINDS = [layers.LSTM, layers.GRU]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"bidirectional": True},
    {"bidirectional": True, "return_sequences": False, "bias": False},
    {"reverse": True},
    {"reverse": True, "return_sequences": False},
    {"return_sequences": False, "bias": False},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options) or "plain")
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_contract(device: Device, kind: Any, options: dict[str, Any]) -> None:
    random = np.random.default_rng(len(str(options)))
    units, channels, width = (int(size) for size in random.integers(1, 8, 3))
    layer = kind(units, **options)
    run_torch_contract(device, layer, [Shape(channels, width)], lambda x, p: MODULES[layer.kind](layer, x, p), fused=())


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options) or "plain")
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_samples_of_several_lengths(device: Device, kind: Any, options: dict[str, Any]) -> None:
    """PyTorch's packed sequences: the longest, one position, and others; what lies beyond has no part in anything."""
    random = np.random.default_rng(len(str(options)))
    units, channels, width = (int(size) for size in random.integers(2, 8, 3))
    layer, shapes = kind(units, **options), [Shape(channels, width), Shape(1)]
    lengths = np.array([width, 1, random.integers(1, width + 1), random.integers(1, width + 1)])
    inputs = [random.standard_normal((4, channels, 1, width)), lengths.reshape(4, 1, 1, 1)]
    run_torch_contract(
        device, layer, shapes, lambda x, p: MODULES[layer.kind](layer, x, p), inputs=inputs, count=4, fused=()
    )


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_slopes(device: Device, kind: Any) -> None:
    check_central_differences(device, kind(3, bidirectional=True), [Shape(2, 4)])


@pytest.mark.parametrize("lengths", [[], [[4, 1, 3, 2, 4]]], ids=["whole", "lengths"])
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options) or "plain")
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_doctors_reference(kind: Any, options: dict[str, Any], lengths: list[list[int]]) -> None:
    """It is PyTorch's module."""
    torch = pytest.importorskip("torch")
    random, layer, shapes = np.random.default_rng(1), kind(3, **options), [Shape(2, 4), Shape(1)][: 1 + len(lengths)]
    x = [random.standard_normal((5, 2, 4)), *(np.array(own, np.float64)[:, None] for own in lengths)]
    parameters = {spec.name: random.standard_normal(spec.shape) for spec in layer.parameters(shapes)}
    tensors = {name: torch.tensor(values, requires_grad=True) for name, values in parameters.items()}
    given = [torch.tensor(values, requires_grad=True) for values in x]
    wanted = MODULES[layer.kind](layer, given, tensors)
    reference = reference_of(layer, shapes)
    np.testing.assert_allclose(reference.forward(x, parameters), wanted.detach().numpy(), atol=1e-12)
    delta = random.standard_normal(wanted.shape)
    wanted.backward(torch.tensor(delta))
    (dx, *others), gradients = reference.backward(x, parameters, delta)
    np.testing.assert_allclose(dx, given[0].grad.numpy(), atol=1e-12)
    assert not any(np.any(other) for other in others)
    for name, tensor in tensors.items():
        np.testing.assert_allclose(gradients[name], tensor.grad.numpy(), atol=1e-12, err_msg=name)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_training_on_several_lengths(device: Device, kind: Any, tmp_path: Any) -> None:
    """Whether the first letter is the last; what stands behind the end changes nothing, nor do other samples."""
    random = np.random.default_rng(5)
    letters, lengths = layers.Input(6, name="letters")(), layers.Input(1, name="lengths")()
    node = layers.Embedding(3, 4)(letters)
    node = kind(8, bidirectional=True, return_sequences=False)(kind(8)(node, lengths), lengths)
    model = bn.Model({"letters": letters, "lengths": lengths}, layers.Dense(2)(node), seed=0)
    count = random.integers(2, 7, (256, 1))
    x = {"letters": random.integers(0, 3, (256, 6)), "lengths": count}
    y = (x["letters"][:, 0] == np.take_along_axis(x["letters"], count - 1, 1)[:, 0]).astype(np.int64)
    adam = bn.optimizers.Adam(2e-2)
    history = model.fit(x, y, epochs=30, batch_size=32, optimizer=adam, device=device, verbose=False)
    assert history["accuracy"][-1] > 0.95
    found = model.predict(x, device=device)
    other = np.where(np.arange(6) < count, x["letters"], 2 - x["letters"])
    np.testing.assert_array_equal(model.predict({**x, "letters": other}, device=device), found)
    model.save(tmp_path / "m.h5")
    np.testing.assert_array_equal(bn.load(tmp_path / "m.h5").predict(x, device=device), found)


def embedding_contract(device: Device, shape: Shape, **options: Any) -> None:
    """Also of numbers that there are not, which give zeros."""
    random = np.random.default_rng(2)
    layer, x = layers.Embedding(7, 3), random.integers(-1, 9, (3, shape.elements)).astype(np.float32)
    x[0, 0] = 1.5
    reference = reference_of(layer, [shape])
    run_layer_contract(
        device,
        layer,
        [shape],
        reference_forward=reference.forward,
        reference_backward=reference.backward,
        inputs=[x.reshape(3, shape.units, 1, shape.width)],
        **options,
    )


@pytest.mark.parametrize("shape", [Shape(5), Shape(1, 5)], ids=str)
def test_embedding(device: Device, shape: Shape) -> None:
    embedding_contract(device, shape)
    torch = pytest.importorskip("torch")
    reference, weight = reference_of(layers.Embedding(7, 3), [shape]), np.random.default_rng(3).standard_normal((7, 3))
    wanted = torch.nn.functional.embedding(torch.tensor([[0, 6, 3, 3, 1]]), torch.tensor(weight)).numpy()
    numbers = np.array([0, 6, 3, 3, 1.0]).reshape(1, shape.units, 1, shape.width)
    np.testing.assert_array_equal(reference.forward([numbers], {"weight": weight})[0], wanted[0].T)


def reader(kind: Any, seed: int = 0) -> bn.Model:
    return bn.Sequential(
        [
            layers.Input(6),
            layers.Embedding(5, 4, name="letters"),
            kind(6, bidirectional=True, name="both"),
            kind(5, return_sequences=False, name="last"),
            layers.Dense(2, name="logits"),
        ],
        seed=seed,
    )


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_training(device: Device, kind: Any, tmp_path: Any) -> None:
    """Whether a letter comes twice; in shards, from a file, and with other types between layers."""
    random = np.random.default_rng(3)
    x = random.integers(0, 5, (256, 6))
    y = ((x == 0).sum(axis=1) > 1).astype(np.int64)
    adam = bn.optimizers.Adam(2e-2)
    model, again = reader(kind), reader(kind)
    options: dict[str, Any] = {"epochs": 12, "batch_size": 32, "optimizer": adam, "device": device, "verbose": False}
    history = model.fit(x, y, **options)
    assert history["accuracy"][-1] > 0.95
    model.save(tmp_path / "reader.h5")
    loaded = bn.load(tmp_path / "reader.h5")
    np.testing.assert_array_equal(loaded.predict(x[:9], device=device), model.predict(x[:9], device=device))
    again.fit(x, y, shards=2, **options)
    assert again.history["accuracy"][-1] > 0.95
    narrow = model.predict(x, device=device, storage="bfloat16").argmax(axis=1)
    assert np.mean(narrow == model.predict(x, device=device).argmax(axis=1)) > 0.97


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: layers.LSTM(0), "units must be an int of at least 1"),
        (lambda: layers.GRU(2, bias=1), "bias must be True or False"),
        (lambda: layers.LSTM(2, bidirectional=True, reverse=True), "both directions are bidirectional"),
        (lambda: layers.GRU(2, initializer="glorot"), "the initializer must be a known one"),
        (lambda: layers.LSTM(2)(layers.Input(3, 4, 5)()), r"the input must have the axes \(units, width\)"),
        (
            lambda: layers.GRU(2)(layers.Input(3, width=4)(), layers.Input(2)()),
            r"the second input must be one number a sample, its length\. Received inputs=",
        ),
        (lambda: layers.Embedding(0, 3), "count must be an int of at least 1"),
        (lambda: layers.Embedding(5, 3)(layers.Input(2, width=4)()), "the input must be a row of numbers"),
    ],
)
def test_what_does_not_fit(make: Any, text: str) -> None:
    with pytest.raises(BlobnetError, match=text):
        make()


def test_numbers_that_a_type_does_not_have(device: Device) -> None:
    model = bn.Sequential([layers.Input(3), layers.Embedding(300, 2)])
    x = np.array([[299, 257, 0]])
    assert np.abs(model.predict(x, device=device)).min() > 0
    with pytest.raises(BlobnetError, match="numbers must be exact in the type that lies between layers"):
        model.predict(x, device=device, storage="bfloat16")
    series, lengths = layers.Input(1, width=300)(), layers.Input(1)()
    model = bn.Model([series, lengths], layers.LSTM(1)(series, lengths))
    with pytest.raises(BlobnetError, match=r"numbers must be exact .* Received count=300, type=bfloat16"):
        model.predict([np.zeros((1, 1, 300)), np.ones((1, 1))], device=device, storage="bfloat16")
