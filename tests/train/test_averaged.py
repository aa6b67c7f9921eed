"""Test-time augmentation: means over views, against NumPy on the answers for each view."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from blobnet import layers, losses, onnx
from blobnet.device.device import Device
from blobnet.errors import OptionError
from blobnet.model import Model, Sequential, load

Images = npt.NDArray[np.uint8]
X: Images = np.random.default_rng(0).integers(0, 256, (37, 3, 9, 7), dtype=np.uint8)
Y = np.random.default_rng(1).integers(0, 5, len(X))
#: What each word looks at: how views are made of samples whose mean is 0, and what is outside.
VIEWS: dict[str, list[tuple[bool, bool, int, int]]] = {
    "flip": [(False, False, 0, 0), (False, True, 0, 0)],
    "vflip, flip": [(down, right, 0, 0) for down in (False, True) for right in (False, True)],
    "shift=2": [(False, False, 0, 0), *((False, False, down, right) for down in (-2, 2) for right in (-2, 2))],
}
VIEWS["flip,shift=1"] = [
    (False, mirrored, down, right)
    for mirrored in (False, True)
    for down, right in [(0, 0), (-1, -1), (-1, 1), (1, -1), (1, 1)]
]
MEAN = np.array([90, 120, 140], np.float32)


def network(head: int, *, has_positions: bool = False) -> Model:
    parts: list[layers.Layer] = [layers.Input(3, 9, 7), layers.Conv2D(6, 3, padding=1, activation="relu")]
    parts += [layers.BatchNorm()]
    parts += [layers.Conv2D(head, 3, padding=1)] if has_positions else [layers.Flatten(), layers.Dense(head)]
    model = Sequential(parts, seed=3)
    model.set_normalization(MEAN, [50, 60, 70])
    return model


def view(x: Images, flips: tuple[bool, bool], shift: tuple[int, int]) -> npt.NDArray[np.float32]:
    """A view by NumPy: each sample moved, with the mean outside, or mirrored."""
    result = np.empty(x.shape, np.float32)
    result[:] = MEAN[:, None, None]
    for y, column in np.ndindex(9, 7):
        from_y = 8 - y if flips[0] else y - shift[0]
        from_x = 6 - column if flips[1] else column - shift[1]
        if 0 <= from_y < 9 and 0 <= from_x < 7:
            result[:, :, y, column] = x[:, :, from_y, from_x]
    return result


def answers(model: Model, tta: str, device: Device) -> list[npt.NDArray[np.float64]]:
    made = []
    for down, right, *shift in VIEWS[tta]:
        # A mirrored one is not moved the other way, since all four corners are looked at.
        x = view(view(X, (False, False), (shift[0], shift[1])).astype(np.float32), (down, right), (0, 0))
        made.append(model.predict(x, device=device).astype(np.float64))
    return made


def softmax(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    powers = np.exp(values - values.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("tta", VIEWS)
def test_probabilities_of_classes(device: Device, tta: str) -> None:
    model = network(5)
    wanted = np.mean([softmax(own) for own in answers(model, tta, device)], axis=0)
    found = model.predict_proba(X, tta=tta, device=device)
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=1e-6)
    assert np.abs(found - model.predict_proba(X, device=device)).max() > 0.01
    np.testing.assert_allclose(model.predict(X, tta=tta, device=device), np.log(wanted), rtol=1e-4, atol=1e-4)
    parts = list(model.predict_batches(X, tta=tta.split(","), batch_size=8, device=device))
    np.testing.assert_allclose(np.concatenate(parts), np.log(wanted), rtol=1e-4, atol=1e-4)
    measured = model.evaluate(X, Y, tta=tta, metrics=["f1"], device=device)
    assert measured["loss"] == pytest.approx(-np.log(wanted[np.arange(len(X)), Y]).mean(), rel=1e-4)
    assert measured["accuracy"] == pytest.approx(np.mean(wanted.argmax(axis=1) == Y))
    assert "f1" in measured


def test_probabilities_of_labels(device: Device) -> None:
    model, targets = network(4), np.random.default_rng(2).integers(0, 2, (len(X), 4)).astype(np.float32)
    model.loss = losses.BinaryCrossEntropy()
    model.set_weights({name: 30 * values for name, values in model.weights.items() if name.endswith("dense/weight")})
    wanted = np.mean([1 / (1 + np.exp(-own)) for own in answers(model, "flip", device)], axis=0)
    np.testing.assert_allclose(model.predict_proba(X, tta="flip", device=device), wanted, rtol=1e-4, atol=1e-7)
    found = model.evaluate(X, targets, tta="flip", device=device)["loss"]
    inside = np.clip(wanted, 1e-300, 1 - 1e-16)
    exact = -(targets * np.log(inside) + (1 - targets) * np.log1p(-inside))
    assert found == pytest.approx(exact.mean(), rel=1e-2)


def test_numbers(device: Device) -> None:
    model, targets = network(2), np.random.default_rng(2).standard_normal((len(X), 2)).astype(np.float32)
    wanted = np.mean(answers(model, "vflip, flip", device), axis=0)
    settings: dict[str, Any] = {"tta": "vflip, flip", "device": device}
    found = model.evaluate(X, targets, loss="mean-squared-error", metrics=["mae"], **settings)
    assert found["loss"] == pytest.approx(np.mean((wanted - targets) ** 2), rel=1e-4)
    assert found["mae"] == pytest.approx(np.mean(np.abs(wanted - targets)), rel=1e-4)
    model.loss = losses.MeanSquaredError()
    np.testing.assert_allclose(model.predict(X, **settings), wanted, rtol=1e-4, atol=1e-5)


def test_masks_are_moved_back(device: Device) -> None:
    model = network(4, has_positions=True)
    back = [own[:, :, :: -1 if down else 1, :: -1 if right else 1] for own, (down, right, *_) in
            zip(answers(model, "vflip, flip", device), VIEWS["vflip, flip"], strict=True)]  # fmt: skip
    wanted = np.mean([softmax(own) for own in back], axis=0)
    found = model.predict_proba(X, tta="vflip, flip", device=device)
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=1e-6)


def test_the_mean_is_of_the_weights_of_now(device: Device, tmp_path: Path) -> None:
    model = network(5)
    before = model.predict(X, tta="flip", device=device)
    model.averaged("flip").fit(X, Y, epochs=1, verbose=False, device=device)  # A model of its own.
    np.testing.assert_array_equal(model.predict(X, tta="flip", device=device), before)
    model.fit(X, Y, epochs=1, verbose=False, device=device)
    after = model.predict(X, tta="flip", device=device)
    assert np.abs(after - before).max() > 1e-3
    other = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(other.predict(X, tta="flip", device=device), after)
    model.averaged("flip").save(tmp_path / "mean.h5")
    np.testing.assert_array_equal(load(tmp_path / "mean.h5").predict(X, device=device), after)


def test_the_mean_is_exported(device: Device, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    model = network(5)
    onnx.save(model.averaged("flip,shift=1"), tmp_path / "mean.onnx")
    session = runtime.InferenceSession(tmp_path / "mean.onnx", providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: X.astype(np.float32)})
    np.testing.assert_allclose(found, model.predict(X, tta="flip,shift=1", device=device), rtol=1e-4, atol=1e-5)


def test_several_outputs_have_means_of_their_kinds(device: Device) -> None:
    entry = layers.Input(3, 9, 7)()
    plane = layers.Conv2D(4, 3, padding=1, activation="tanh")(entry)
    kind, size = (layers.Dense(units, name=name)(layers.Flatten()(plane)) for units, name in ((5, "kind"), (1, "size")))
    model = Model(entry, {"kind": kind, "size": size})
    model.loss = {"kind": losses.CrossEntropy(), "size": losses.MeanSquaredError()}
    x = X / np.float32(255)
    both = [model.predict(part, device=device) for part in (x, np.ascontiguousarray(x[..., ::-1]))]
    found = model.predict(x, tta="flip", device=device)
    wanted = np.log(np.mean([softmax(own["kind"].astype(np.float64)) for own in both], axis=0))
    np.testing.assert_allclose(found["kind"], wanted, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["size"], np.mean([own["size"] for own in both], axis=0), rtol=1e-4, atol=1e-5)


def test_losses_by_the_names_of_outputs(device: Device) -> None:
    """Of several, and of a single one, whose name stays that of the model's."""
    entry = layers.Input(3, 9, 7, name="picture")()
    flat = layers.Flatten()(layers.Conv2D(4, 3, activation="tanh")(entry))
    kind, size = layers.Dense(5, name="kind")(flat), layers.Dense(1, name="size")(flat)
    x, sizes = X / np.float32(255), np.random.default_rng(3).standard_normal((len(X), 1)).astype(np.float32)
    given: dict[str, Any] = {"metrics": {"kind": ["f1"]}, "tta": "flip", "device": device}
    one = Model(entry, kind)
    alone = one.evaluate({"picture": x}, {"kind": Y}, loss={"kind": "cross_entropy"}, **given)
    mean = softmax(one.predict(x, tta="flip", device=device).astype(np.float64))
    assert alone["loss"] == pytest.approx(-np.log(mean[np.arange(len(X)), Y]).mean(), rel=1e-4)
    both = Model(entry, {"kind": kind, "size": size})
    found = both.evaluate(x, {"kind": Y, "size": sizes}, loss={"kind": "cross_entropy", "size": "mse"}, **given)
    assert [found[f"kind_{name}"] for name in alone] == pytest.approx(list(alone.values()))
    answers = [both.predict(part, device=device)["size"] for part in (x, np.ascontiguousarray(x[..., ::-1]))]
    assert found["size_loss"] == pytest.approx(np.mean((np.mean(answers, axis=0) - sizes) ** 2), rel=1e-4)


def test_layers_of_a_model_may_have_any_names(device: Device) -> None:
    names = ["view_1", "contraction_1", "mask_back_1", "mask_mean"]
    parts = [layers.Conv2D(4, 3, padding=1, activation="tanh", name=name) for name in names]
    model = Sequential([layers.Input(3, 9, 7), *parts], seed=3)
    own, mirrored = (model.predict(x, device=device) for x in (X, np.ascontiguousarray(X[..., ::-1])))
    wanted = (softmax(own.astype(np.float64)) + softmax(mirrored[..., ::-1].astype(np.float64))) / 2
    np.testing.assert_allclose(model.predict_proba(X, tta="flip", device=device), wanted, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("model", "tta", "message"),
    [
        (lambda: network(5), "flop", r"tta: every word must be that of a view\. Received word='flop'\. Hint: flip \("),
        (lambda: network(5), 3, "tta: it must be words in a text"),
        (lambda: network(5), "shift=0", "every word must be that of a view"),
        (lambda: Sequential([layers.Input(9), layers.Dense(2)]), "flip", "one input, of pictures with a height and a"),
        (lambda: network(4, has_positions=True), "shift=1", r"are not moved back by cells.*Hint: flip does for these"),
    ],
)
def test_errors(model: Any, tta: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        model().averaged(tta)


def test_boxes_have_no_mean() -> None:
    with pytest.raises(OptionError, match="answers of boxes and volumes are not moved back"):
        network(9, has_positions=True).averaged("flip", loss="center-net")
