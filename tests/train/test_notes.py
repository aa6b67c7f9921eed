"""Notes on trainings that run, but hardly as they were meant."""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np
import pytest

import blobnet as bn
from blobnet import layers
from blobnet.device.device import Device
from blobnet.errors import BlobnetWarning

RANDOM = np.random.default_rng(1)
PICTURES = RANDOM.integers(0, 256, (30, 1, 6, 6)).astype(np.uint8)
Y = RANDOM.integers(0, 3, 30)
OTHER_SCALE = r"^x: normalised samples should have a deviation of about 1; these seem to have another scale"
NOT_NORMALISED = r"^x: samples should be normalised: with values as large as these a model hardly learns\."


def model(*behind: layers.Layer, last: str | None = None) -> bn.Sequential:
    return bn.Sequential([layers.Input(1, 6, 6), *behind, layers.Flatten(), layers.Dense(3, activation=last)])


def fit(made: bn.Model, x: Any, device: Device, y: Any = Y, **settings: Any) -> None:
    made.fit(x, y, batch_size=10, device=device, verbose=False, **settings)


def test_samples_in_another_scale(device: Device) -> None:
    made = model()
    made.set_normalization([PICTURES.mean()], [PICTURES.std()])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(made, PICTURES, device)
        made.predict(PICTURES, device=device)
        made.predict(PICTURES[:1], device=device)
        made.set_weights(made.weights)
        made.predict(PICTURES[:1] / 255, device=device)  # One picture may be anything.
    for use in (
        lambda x: made.predict(x, device=device),
        lambda x: made.evaluate(x, Y, device=device),
        lambda x: fit(made, x, device),
    ):
        made.set_weights(made.weights)
        with pytest.warns(BlobnetWarning, match=OTHER_SCALE + r".*deviation=0\.00\d+\. Hint: "):
            use((PICTURES / 255).astype(np.float32))
    made.set_weights(made.weights)
    with pytest.warns(BlobnetWarning, match=OTHER_SCALE + r".*deviation=0\.06"):  # Digits from 0 to 16, as 0 to 1.
        made.predict((PICTURES / 16).astype(np.float32), device=device)
    small = model()
    small.set_normalization([0.5], [0.29])
    with pytest.warns(BlobnetWarning, match=OTHER_SCALE):
        small.predict(PICTURES, device=device)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        small.predict(PICTURES, device=device)  # Once is enough.


def test_large_samples_without_normalization(device: Device) -> None:
    with pytest.warns(BlobnetWarning, match=NOT_NORMALISED + r".*set_normalization"):
        fit(model(), PICTURES, device)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(model(layers.BatchNorm()), PICTURES, device)
        fit(model(), PICTURES / 255, device)
        model().predict(PICTURES, device=device)  # Weights may have been made for these.


@pytest.mark.parametrize("moved", [False, True])
def test_numbers_for_an_embedding_stay_as_they_are(device: Device, moved: bool) -> None:
    movers = (layers.Slice(((0, 8),)), layers.Reshape((1, 8))) if moved else ()
    behind = (*movers, layers.Embedding(50, 4), layers.Flatten(), layers.Dense(3))
    made = bn.Sequential([layers.Input(9 if moved else 8), *behind])
    x = RANDOM.integers(0, 50, (30, 9 if moved else 8)).astype(np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(made, x, device)
    said = r"^set_normalization: an Embedding reads this input, whose numbers must stay whole.*Hint: leave this out"
    with pytest.raises(bn.errors.OptionError, match=said):
        made.set_normalization(x.mean(), x.std())
    made.set_normalization(1, 1)  # Numbers from 1 on.
    assert not bn.Sequential([layers.Input(8), layers.Dense(8), layers.Embedding(50, 4)]).graph.holds_numbers(
        made.graph.vertices[0]
    )


@pytest.mark.parametrize(("last", "loss"), [("softmax", "cross_entropy"), ("sigmoid", "bce")])
def test_probabilities_where_logits_belong(device: Device, last: str, loss: str) -> None:
    x = (PICTURES / 255).astype(np.float32)
    y = Y if loss == "cross_entropy" else np.eye(3, dtype=np.float32)[Y]
    with pytest.warns(BlobnetWarning, match=r"\(Activation\): \w+ takes logits, and does itself what this layer does"):
        fit(model(last=last), x, device, y, loss=loss)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(model(last=last), x, device, np.eye(3, dtype=np.float32)[Y], loss="mse")
        fit(model(), x, device, y, loss=loss)


@pytest.mark.parametrize(("last", "noted"), [("relu", True), ("gelu", True), ("leaky_relu(0.2)", False), (None, False)])
def test_activations_where_logits_belong(device: Device, last: str | None, noted: bool) -> None:
    x = (PICTURES / 255).astype(np.float32)
    rule = r"\(Activation\): CrossEntropy takes logits, which may be any number, and this layer leaves some out\. "
    rule += "Received "
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        fit(model(last=last), x, device)
        fit(model(last=last), x, device, np.eye(3, dtype=np.float32)[Y], loss="mse")
    found = [str(item.message) for item in said if issubclass(item.category, BlobnetWarning)]
    assert len(found) == noted
    assert all(re.search(rf"{rule}function={last}\. Hint: end the model without", text) for text in found)


@pytest.mark.parametrize(
    ("arguments", "noted"), [((1, 8, 3), True), ((8, 3), False), ((1, 7, 2), False), ((2, 8, 3), False)]
)
def test_convolutions_in_the_order_of_pytorch(device: Device, arguments: tuple[int, ...], noted: bool) -> None:
    x = RANDOM.random((30, 1, 12, 12)).astype(np.float32)
    made = bn.Sequential([layers.Input(1, 12, 12), layers.Conv2D(*arguments), layers.Flatten(), layers.Dense(3)])
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        fit(made, x, device)
    found = [str(item.message) for item in said if issubclass(item.category, BlobnetWarning)]
    assert len(found) == noted
    assert all("(Conv2D): these numbers seem to be in PyTorch's order" in text for text in found)
