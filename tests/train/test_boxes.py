"""CenterNet: against PyTorch step by step, and trained until it finds boxes."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import blobnet as bn
from blobnet.errors import BlobnetError
from blobnet.losses import CenterNet
from tests.reference.compare import assert_close
from tests.scenes import CLASSES, scenes
from tests.torch_graphs import Network, loss_sums, optimizer_of

TRUNKS = [name for name in bn.models.__all__ if name not in ("centernet", "unet_1d", "vit_tiny")]


def small(size: tuple[int, int] = (64, 64), seed: int = 0) -> bn.Model:
    return bn.models.centernet((3, *size), classes=3, class_names=CLASSES, seed=seed, trunk="resnet8", filters=(32, 32))


def test_like_pytorch_step_by_step(device: Any) -> None:
    """Weights after each of three steps, and the loss before it; in float64 there."""
    pytest.importorskip("torch")
    x, y = scenes(6, (32, 40), seed=3)
    model = small((32, 40))
    model.set_normalization(x.mean(axis=(0, 2, 3)), x.std(axis=(0, 2, 3)))
    loss, optimizer = CenterNet(), bn.optimizers.SGD(0.01, momentum=0.9)
    network = Network(model.graph, model.weights)
    step = optimizer_of(network, optimizer, {})
    samples = x.astype(np.float32)
    losses = []
    for _ in range(3):
        value, weight = loss_sums(loss, network.output(samples, training=True), y)
        losses.append(float(value.detach()) / weight)
        (value / weight).backward()
        step()
    history = model.fit(x, y, epochs=3, batch_size=6, optimizer=optimizer, loss=loss, device=device, verbose=False)
    assert_close(history["loss"], losses, relative=1e-4, absolute=1e-5, what="losses")
    for name, values in model.weights.items():
        wanted = network.tensors[name].detach().numpy()
        assert_close(values, wanted, relative=2e-3, absolute=2e-4, what=name)


def test_a_training_finds_boxes(device: Any) -> None:
    """COCO's mean average precision on scenes that it has not seen; without a training it is 0."""
    pytest.importorskip("pycocotools")
    (x, y), test = scenes(192, (48, 48)), scenes(48, (48, 48), seed=1)
    model = small((48, 48))
    model.set_normalization(x.mean(axis=(0, 2, 3)), x.std(axis=(0, 2, 3)))
    metrics = ("box_map", "box_map_50")
    before = model.evaluate(*test, loss=CenterNet(), metrics=metrics, device=device)
    rate = bn.schedules.Cosine(4e-3)
    model.fit(x, y, epochs=16, batch_size=16, loss="center-net", optimizer=bn.optimizers.Adam(rate), augment="flip")
    found = model.evaluate(*test, metrics=metrics)
    assert before["box_map_50"] < 0.01
    assert found["box_map_50"] > 0.6, found
    assert found["box_map"] > 0.35, found


@pytest.mark.parametrize("trunk", TRUNKS)
def test_trunks(trunk: str) -> None:
    """Any network that has planes; the output has about a quarter of the picture's sides."""
    shape = inspect.signature(getattr(bn.models, trunk)).parameters["input_shape"].default
    output = bn.models.centernet(shape, classes=3, trunk=trunk).graph.output.shape
    assert output.units == 7
    assert 0.7 <= output.height * 4 / shape[1] <= (1.2 if trunk != "unet" else 4)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"trunk": "resnet81"}, "centernet: the trunk must be one of blobnet's networks.*resnet18"),
        ({"trunk": "vit_tiny"}, "the trunk must have planes, with a height and a width, up to its last layers"),
        ({"trunk": bn.models.resnet8((1, 28, 28))}, "centernet: the trunk must take such samples"),
    ],
)
def test_wrong_trunks(given: Any, said: str) -> None:
    with pytest.raises(BlobnetError, match=said):
        bn.models.centernet((3, 224, 224), **given)


def test_a_trunk_keeps_its_weights() -> None:
    trunk = bn.models.resnet8((3, 32, 32), seed=5)
    model = bn.models.centernet((3, 32, 32), classes=2, trunk=trunk)
    np.testing.assert_array_equal(model.weights["stem_conv/weight"], trunk.weights["stem_conv/weight"])
    np.testing.assert_allclose(1 / (1 + np.exp(-model.weights["heat/bias"])), 0.1, rtol=1e-6)
