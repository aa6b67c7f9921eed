"""Grad-CAM and saliency, against PyTorch's own gradients of the same network in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blobnet as bn
from blobnet import layers
from blobnet.device.device import Device
from blobnet.errors import OptionError, ShapeError
from blobnet.losses.center_net import boxes_of


def branched(shape: tuple[int, ...] = (3, 13, 10), classes: int = 5) -> bn.Model:
    """A branch with a norm and dropout beside a sum, more dropout, and a norm with statistics of its own."""
    entry = layers.Input(*shape, name="input")()
    stem = layers.Conv2D(4, 3, padding="same", activation="relu", name="stem")(entry)
    pooled = layers.MaxPool2D(2, name="pool")(stem)
    branch = layers.Dropout(0.4)(layers.BatchNorm(name="norm")(layers.Conv2D(4, 3, padding="same", name="in")(pooled)))
    sum_ = layers.Activation("relu", name="sum")(branch + pooled)
    node = layers.Dense(classes, name="out")(layers.Dropout(0.5)(layers.GlobalAveragePool()(sum_)))
    model = bn.Model(entry, node, class_names=[f"class {number}" for number in range(classes)], seed=3)
    rng = np.random.default_rng(4)
    model.set_weights({name: rng.normal(0, 0.5, values.shape) for name, values in model.weights.items()})
    model.set_weights({"norm/running_variance": rng.uniform(0.5, 2, 4)})
    model.set_normalization([0.1, -0.2, 0.3], [0.5, 1.5, 2.0])
    return model


def in_torch(model: bn.Model, x: np.ndarray, classes: Any = None) -> dict[str, np.ndarray]:
    """The values of layers, the gradients of the score by them, and by samples, in PyTorch in float64."""
    torch = pytest.importorskip("torch")
    from torch.nn import functional

    weights = {name: torch.from_numpy(values.astype(np.float64)) for name, values in model.weights.items()}

    def named(name: str, *shape: int) -> list[Any]:
        return [own.reshape(shape or own.shape) for key, own in weights.items() if key.startswith(f"{name}/")]

    samples = torch.from_numpy(x).double().requires_grad_()
    kept = {}

    def keep(name: str, value: Any) -> Any:
        value.retain_grad()
        kept[name] = value
        return value

    mean, deviation = (weights[f"input/{key}"].reshape(-1, 1, 1) for key in ("mean", "deviation"))
    normal = (samples - mean) / deviation
    stem = keep("stem_relu", torch.relu(functional.conv2d(normal, *named("stem"), padding=1)))
    pooled = keep("pool", functional.max_pool2d(stem, 2))
    inner = keep("in", functional.conv2d(pooled, *named("in"), padding=1))
    norm = {key: weights[f"norm/{key}"] for key in ("running_mean", "running_variance", "scale", "shift")}
    epsilon = next(vertex.layer.epsilon for vertex in model.graph.vertices if vertex.name == "norm")  # type: ignore[attr-defined]
    branch = functional.batch_norm(inner, *norm.values(), eps=epsilon)
    sum_ = keep("sum", torch.relu(branch + pooled))
    out = functional.linear(sum_.mean((2, 3)), *named("out"))
    said = out.argmax(1) if classes is None else torch.as_tensor(classes).expand(len(x))
    out.gather(1, said[:, None]).sum().backward()
    found = {name: np.stack([value.detach().numpy(), value.grad.numpy()]) for name, value in kept.items()}
    return {**found, "samples": samples.grad.numpy()}


def cam(pair: np.ndarray) -> np.ndarray:
    values, gradients = pair
    return np.maximum((gradients.mean(axis=(2, 3), keepdims=True) * values).sum(axis=1), 0)


@pytest.mark.parametrize("classes", [None, 2, [4, 0, 1, 1, 3]])
def test_gradients_are_pytorchs(device: Device, classes: Any) -> None:
    model, x = branched(), np.random.default_rng(5).normal(size=(5, 3, 13, 10)).astype(np.float32)
    expected = in_torch(model, x, classes)
    given: dict[str, Any] = {"device": device, "batch_size": 2}
    said = classes if not isinstance(classes, int) else "class 2"
    for layer, name in ((None, "sum"), ("in", "in"), ("pool", "pool"), ("stem_relu", "stem_relu")):
        wanted = cam(expected[name])
        found = bn.explain.grad_cam(model, x, said, layer, **given)
        assert wanted.max() > 1e-3
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6 * wanted.max())
    found = bn.explain.saliency(model, x, said, **given)
    np.testing.assert_allclose(found, expected["samples"], rtol=1e-5, atol=1e-6 * np.abs(expected["samples"]).max())


def test_nothing_of_the_model_changes(device: Device) -> None:
    model, x = branched(), np.random.default_rng(6).integers(0, 3, (3, 3, 13, 10)).astype(np.uint8)
    weights, outputs = model.weights, model.predict(x, device=device)
    found = bn.explain.saliency(model, x, device=device)
    np.testing.assert_array_equal(found, bn.explain.saliency(model, x.astype(np.float32), device=device))
    np.testing.assert_array_equal(model.predict(x, device=device), outputs)
    for name, values in model.weights.items():
        np.testing.assert_array_equal(values, weights[name])


@pytest.mark.parametrize("takes_boxes", [False, True])
def test_outputs_with_positions(device: Device, takes_boxes: bool) -> None:
    """The score is the sum of the class's logits where it is the answer; of boxes the highest cell."""
    torch = pytest.importorskip("torch")
    model = bn.Sequential(
        [
            layers.Input(2, 6, 5),
            layers.Conv2D(3, 3, padding="same", activation="tanh", name="first"),
            layers.Conv2D(6, 1, name="last"),
        ],
        seed=1,
    )
    model.loss = bn.losses.CenterNet() if takes_boxes else None
    x = np.random.default_rng(7).normal(size=(2, 2, 6, 5)).astype(np.float32)
    samples = torch.from_numpy(x).double().requires_grad_()
    weights = {name: torch.from_numpy(values.astype(np.float64)) for name, values in model.weights.items()}
    convolved = torch.nn.functional.conv2d(samples, weights["first/weight"], weights["first/bias"], padding=1)
    outputs = torch.nn.functional.conv2d(torch.tanh(convolved), weights["last/weight"], weights["last/bias"])
    flat = outputs.flatten(2)
    answers = flat.argmax(1)
    if takes_boxes:
        kind = torch.as_tensor(boxes_of(outputs.detach().numpy().astype(np.float32))[:, 0, 0].astype(int))
        score = flat[[0, 1], kind].amax(1).sum()
        assert (kind < 2).all()
    else:
        kind = torch.tensor([torch.bincount(row).argmax() for row in answers])
        score = (flat[[0, 1], kind] * (answers == kind[:, None])).sum()
    score.backward()
    wanted = samples.grad.numpy()
    found = bn.explain.saliency(model, x, device=device)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6 * np.abs(wanted).max())
    missing = next(number for number in range(6) if not (answers == number).any()) if not takes_boxes else None
    if missing is not None:  # Of a class that no position gets, all positions.
        samples.grad = None
        flat = torch.nn.functional.conv2d(
            torch.tanh(torch.nn.functional.conv2d(samples, weights["first/weight"], weights["first/bias"], padding=1)),
            weights["last/weight"],
            weights["last/bias"],
        )
        flat[:, missing].sum().backward()
        found = bn.explain.saliency(model, x, missing, device=device)
        np.testing.assert_allclose(found, samples.grad.numpy(), rtol=1e-5, atol=1e-6)


def test_one_of_several_outputs(device: Device) -> None:
    entries = {"a": layers.Input(4, name="a")(), "b": layers.Input(3, name="b")()}
    outputs = {"p": layers.Dense(2)(entries["a"]), "q": layers.Dense(3)(layers.Concat()([entries["a"], entries["b"]]))}
    model = bn.Model(entries, outputs, seed=2)
    x = {"a": np.ones((2, 4), np.float32), "b": np.ones((2, 3), np.float32)}
    weights = model.weights[f"{model.graph.outputs['q'].name}/weight"]
    found = bn.explain.saliency(model, x, [2, 0], output="q", device=device)
    np.testing.assert_allclose(np.concatenate([found["a"], found["b"]], axis=1), weights[[2, 0]], rtol=1e-6)
    with pytest.raises(OptionError, match=r"saliency: output must name one of the model's outputs\. .*outputs=p, q"):
        bn.explain.saliency(model, x)
    with pytest.raises(OptionError, match=r"grad_cam: a layer of the model must have positions, as its samples have"):
        bn.explain.grad_cam(model, x, output="q")


def test_numbers_are_explained_one_by_one(device: Device) -> None:
    """A number is its own score; the largest of several is no answer."""
    model, x = bn.Sequential([layers.Input(4), layers.Dense(3, name="d")], seed=2), np.ones((2, 4), np.float32)
    model.loss = bn.losses.MeanSquaredError()
    found = bn.explain.saliency(model, x, 1, device=device)
    np.testing.assert_allclose(found, model.weights["d/weight"][[1, 1]], rtol=1e-6)
    rule = r"saliency: of several numbers the model says none: classes must be the number of a unit\. .*output=\(3\)"
    with pytest.raises(OptionError, match=rule):
        bn.explain.saliency(model, x, device=device)
    one = bn.Sequential([layers.Input(4), layers.Dense(1, name="d")], seed=2)
    one.loss = bn.losses.MeanSquaredError()
    np.testing.assert_allclose(bn.explain.saliency(one, x, device=device), one.weights["d/weight"][[0, 0]], rtol=1e-6)


@pytest.mark.parametrize(("own", "size"), [((4, 3), (13, 10)), ((7, 5), (3, 5)), ((1, 1), (2, 3))])
def test_maps_are_scaled_as_pytorch_scales(own: tuple[int, int], size: tuple[int, int]) -> None:
    torch = pytest.importorskip("torch")
    maps = np.random.default_rng(8).uniform(size=(2, *own)).astype(np.float32)
    settings: dict[str, Any] = {"size": size, "mode": "bilinear", "align_corners": False}
    wanted = torch.nn.functional.interpolate(torch.from_numpy(maps)[:, None], **settings)[:, 0].numpy()
    if own[0] > size[0]:  # Down, each value is one of the map's, or between two of them.
        wanted = torch.nn.functional.interpolate(torch.from_numpy(maps)[:, None], antialias=False, **settings)[:, 0]
    np.testing.assert_allclose(bn.explain.resized(maps, size), wanted, atol=1e-6)


def test_overlay() -> None:
    pictures = np.full((3, 1, 3, 2), 100, np.uint8)
    pictures[:, :, 2] = 10, 235
    maps = np.array([[[0, 1], [2, 4], [0, 0]], [[0, 0]] * 3, [[0, 0], [0, 1e-3], [0, 0]]], np.float32)
    drawn = bn.explain.overlay(pictures, maps)
    assert drawn.shape == (3, 3, 2, 3)
    assert drawn[1, 2].tolist() == [[0, 0, 0], [255, 255, 255]]
    assert (drawn[1, :2] == 102).all()  # A map of nothing leaves the picture.
    heat = np.array([[0, 0.25], [0.5, 1]])
    covered, drawn = 0.75 * heat, drawn[:, :2].astype(float)
    np.testing.assert_allclose(drawn[0, ..., 0], (1 - covered) * 102 + covered * 255, atol=0.51)
    np.testing.assert_allclose(drawn[0, ..., 1], (1 - covered) * 102 + covered * 255 * heat, atol=0.51)
    np.testing.assert_allclose(drawn[0, ..., 2], (1 - covered) * 102, atol=0.51)
    np.testing.assert_array_equal(drawn[2, 1, 1], drawn[0, 1, 1])  # Each map has its own largest value.
    gradients = np.random.default_rng(9).normal(size=(3, 2, 3, 2))
    np.testing.assert_array_equal(
        bn.explain.overlay(pictures, gradients), bn.explain.overlay(pictures, np.abs(gradients).max(axis=1))
    )
    with pytest.raises(ShapeError, match=r"overlay: it takes pictures .* and a map \(height, width\) for each"):
        bn.explain.overlay(pictures, maps[:2])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"classes": 5}, "a class must be the number of a unit, from 0 to 4, or a name. Received 5"),
        ({"classes": True}, "a class must be the number of a unit"),
        ({"classes": "clas 3"}, "every name must be that of a class of the model. Received name=clas 3. Hint: "),
        (
            {"classes": [0, 1]},
            "there must be one class for all samples, or one for each. Received classes=2, samples=3",
        ),
        ({"layer": "out"}, "the layer must have positions, and the output must depend on it. Received layer=out"),
        ({"layer": "steam"}, "it must name a layer of the model. Received layer=steam. Hint: "),
    ],
)
def test_errors(device: Device, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError) as caught:
        bn.explain.grad_cam(branched(), np.zeros((3, 3, 13, 10), np.float32), device=device, **arguments)
    assert f"grad_cam: {said}" in str(caught.value)
    with pytest.raises(OptionError, match="grad_cam: it takes a Model"):
        bn.explain.grad_cam("model.h5", None)  # type: ignore[arg-type]
