"""Weights of samples and classes, steps of several batches, averaged weights, and learning rates of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blobnet as bn
from blobnet import layers
from blobnet.callbacks import Callback, Checkpoint
from blobnet.data.sample_weights import prepare_class_weights, prepare_sample_weights
from blobnet.device.device import Device
from blobnet.errors import DataError, FileError, OptionError
from blobnet.execution.executor import Launch
from blobnet.losses import CrossEntropy, Dice, Focal, Loss, MeanSquaredError
from blobnet.model import Model, Sequential
from blobnet.optimizers import SGD, Adam
from blobnet.training.trainer import Progress
from tests.tiny import digits, tiny_model


def plain_model(dropout: float = 0.0) -> Model:
    """Without batch norm, whose statistics are those of a batch."""
    return Sequential(
        [
            layers.Input(1, 8, 8, name="input"),
            layers.Conv2D(4, 3, padding=1, activation="relu", name="conv1"),
            layers.Dropout(dropout, name="dropout"),
            layers.Flatten(name="flatten"),
            layers.Dense(10, name="logits"),
        ],
        class_names=[f"digit {digit}" for digit in range(10)],
    )


def fitted(model: Model, device: Device, x: Any, y: Any, **options: Any) -> Model:
    settings: dict[str, Any] = {"epochs": 2, "batch_size": 8, "optimizer": SGD(0.1), "verbose": False}
    model.fit(x, y, device=device, **(settings | options))
    return model


def assert_same(one: Model, other: Model, *, bits: bool = False) -> None:
    for name, values in one.weights.items():
        if bits:
            assert values.tobytes() == other.weights[name].tobytes(), name
        else:
            np.testing.assert_allclose(values, other.weights[name], rtol=2e-5, atol=2e-6, err_msg=name)


def assert_moved(model: Model, other: Model) -> None:
    assert max(np.abs(values - other.weights[name]).max() for name, values in model.weights.items()) > 1e-3


# -- weights of samples and classes ------------------------------------------------------------------------------------


def test_a_weight_is_a_repetition(device: Device) -> None:
    """All in one batch, so that the order does not matter."""
    x, y = digits(9)
    weights = np.array([1, 3, 0, 2, 1, 1, 2, 0, 1])
    weighted = fitted(plain_model(), device, x, y, batch_size=32, sample_weights=weights)
    repeated = fitted(plain_model(), device, np.repeat(x, weights, axis=0), np.repeat(y, weights), batch_size=32)
    assert_same(weighted, repeated)
    np.testing.assert_allclose(weighted.history["loss"], repeated.history["loss"], rtol=1e-5)
    assert_moved(weighted, fitted(plain_model(), device, x, y, batch_size=32))


def test_weights_of_classes_are_those_of_their_samples(device: Device) -> None:
    x, y = digits(21)
    samples, classes = np.linspace(0.5, 2, 21), np.linspace(2, 0.25, 10)
    both = fitted(plain_model(), device, x, y, sample_weights=samples, class_weights=classes)
    assert_same(both, fitted(plain_model(), device, x, y, sample_weights=samples * classes[y]))
    assert_moved(both, fitted(plain_model(), device, x, y, sample_weights=samples))


def test_weights_stay_with_their_samples_when_some_are_held_out(device: Device) -> None:
    x, y = digits(20)
    weights = np.linspace(0.1, 3, 20)
    found = fitted(plain_model(), device, x, y, batch_size=32, sample_weights=weights, validation=0.25)
    kept = np.sort(np.random.default_rng(0).permutation(20)[5:])
    wanted = fitted(plain_model(), device, x[kept], y[kept], batch_size=32, sample_weights=weights[kept])
    assert_same(found, wanted)
    with pytest.raises(DataError, match=r"sample_weights: there must be one weight for each sample\. .*samples=20"):
        fitted(plain_model(), device, x, y, sample_weights=weights[kept], validation=0.25)


def test_balanced(device: Device) -> None:
    x, y = digits(21)
    found = fitted(plain_model(), device, x, y, class_weights="balanced")
    counts = np.bincount(y, minlength=10)
    present = counts > 0
    share = {int(label): 21 / (present.sum() * counts[label]) for label in np.flatnonzero(present)}
    assert_same(found, fitted(plain_model(), device, x, y, class_weights=share))
    total = sum(share[int(label)] for label in y)
    assert total == pytest.approx(21)


def test_class_weights_by_name_or_number() -> None:
    labels, names = np.array([0, 1, 1]), ("cat", "dog", "owl")

    def prepared(weights: Any, loss: Any = None) -> Any:
        return prepare_class_weights(weights, loss or CrossEntropy(), 3, labels, names)

    assert prepared(None) is None
    assert prepared({"dog": 2.5, 2: 0}).tolist() == [1, 2.5, 0]
    assert prepared([1, 2, 3]).tolist() == [1, 2, 3]
    assert prepared("balanced").tolist() == [1.5, 0.75, 0]
    assert prepare_class_weights("balanced", Dice(), 2, np.array([[0, -1], [-1, 0]])).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ("balance", "class_weights: weights by name must be 'balanced'. Received balance. Hint: did you mean"),
        ({"cow": 1}, "class_weights: each class must be one of the model's names, or a number from 0 to 2. Received"),
        ({"catt": 1}, "Received class='catt'. Hint: did you mean 'cat'?"),
        ({3: 1}, "Received class=3."),
        ({True: 1}, "Received class=True."),
        ([1, 2], r"class_weights: there must be one weight for each class. Received shape=(2,), classes=3."),
        ([1, -2, 3], "class_weights: every weight must be finite and at least 0. Received index=1, weight=-2.0."),
        ([1, 2, np.nan], "Received index=2, weight=nan."),
        ([0, 0, 0], "class_weights: at least one weight must be above 0. Received weights=3 times 0."),
    ],
)
def test_wrong_class_weights(weights: Any, message: str) -> None:
    with pytest.raises((OptionError, DataError)) as caught:
        prepare_class_weights(weights, CrossEntropy(), 3, np.array([0, 1, 2]), ("cat", "dog", "owl"))
    assert message in str(caught.value)


def test_class_weights_need_classes(device: Device) -> None:
    message = (
        r"class_weights: the loss must be one of classes\. Received loss=MeanSquaredError.*Hint: give sample_weights"
    )
    with pytest.raises(OptionError, match=message):
        fitted(
            plain_model(), device, digits(4)[0], np.zeros((4, 10)), loss=MeanSquaredError(), class_weights="balanced"
        )


def test_wrong_sample_weights() -> None:
    for weights, message in (
        ([1, 2], r"sample_weights: there must be one weight for each sample\. Received shape=\(2,\), samples=3"),
        ([1, np.inf, 2], r"sample_weights: every weight must be finite and at least 0\. Received index=1, weight=inf"),
        ([0, 0, 0], r"sample_weights: at least one weight must be above 0"),
        (["a", "b", "c"], r"sample_weights: the weights must be numbers"),
    ):
        with pytest.raises(DataError, match=message):
            prepare_sample_weights(weights, 3)


def test_another_divisor_binds_only_what_takes_it(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    bound: list[str] = []
    set_batch = Launch.set_batch
    monkeypatch.setattr(
        Launch, "set_batch", lambda item, batch: bound.append(item.call.kernel) or set_batch(item, batch)
    )
    x, y = digits(16)
    fitted(plain_model(), device, x, y, epochs=3, sample_weights=np.linspace(0.5, 2, 16))
    assert bound.count("loss/cross_entropy") == 6
    assert bound.count("loss/accumulate") == bound.count("input/forward") == 1


# -- steps of several batches ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [24, 53, 17])
def test_batches_of_a_step_are_one_batch(device: Device, count: int) -> None:
    """Also where the last step has fewer of them, and with dropout, which follows from a sample's place in the step."""
    x, y = digits(count)
    options: dict[str, Any] = {
        "sample_weights": np.linspace(0.1, 2, count),
        "class_weights": np.linspace(1, 3, 10),
        "optimizer": SGD(0.05, momentum=0.9, clip_norm=1.0),
    }
    parts = fitted(plain_model(0.3), device, x, y, batch_size=8, accumulate=3, debug=True, **options)
    whole = fitted(plain_model(0.3), device, x, y, batch_size=24, **options)
    assert_same(parts, whole)
    np.testing.assert_allclose(parts.history["loss"], whole.history["loss"], rtol=1e-5)
    assert parts.training_state is not None
    assert whole.training_state is not None
    assert parts.training_state.step == whole.training_state.step == 2 * -(-count // 24)


def test_positions_of_the_batches_of_a_step(device: Device) -> None:
    """Samples with more and fewer positions to ignore weigh as in one batch."""

    def model() -> Model:
        return Sequential([layers.Input(1, 8, 8), layers.Conv2D(3, 3, padding=1)])

    x, _ = digits(7)
    y = np.where(x[:, 0] > 0.5, 1, np.where(x[:, 0] > 0.1, 2, 9))
    y[2:4] = 9
    options: dict[str, Any] = {"loss": CrossEntropy(ignore=9), "class_weights": [1, 2, 0.5]}
    parts = fitted(model(), device, x, y, batch_size=2, accumulate=4, **options)
    assert_same(parts, fitted(model(), device, x, y, batch_size=8, **options))


@pytest.mark.parametrize(
    "loss", [CrossEntropy(ignore=9), Focal(ignore=9), Dice(ignore=9)], ids=lambda loss: loss.kernel
)
def test_a_class_for_each_position_is_learned(device: Device, loss: Loss) -> None:
    x, _ = digits(40)
    y = np.where(x[:, 0] > 0.6, 1, np.where(x[:, 0] > 0.2, 2, 0)).astype(np.uint8)
    y[:, :, 7] = 9
    source = layers.Input(1, 8, 8)()
    model = Model(source, layers.Conv2D(3, 1)(layers.Conv2D(8, 3, padding=1, activation="tanh")(source)))
    options: dict[str, Any] = {
        "loss": loss,
        "optimizer": Adam(0.03),
        "validation": (x[30:], y[30:]),
        "metrics": ["iou"],
    }
    fitted(model, device, x[:30], y[:30], epochs=60, average=0.9, **options)
    assert model.history["validation_iou"][-1] > 0.85 > 0.7 > model.history["validation_iou"][0]
    report = model.report(x[30:], y[30:], batch_size=3)
    predicted = model.predict(x[30:]).argmax(axis=1)
    counted = y[30:] != 9
    for row in range(3):
        for column in range(3):
            assert report.matrix[row, column] == ((y[30:] == row) & (predicted == column) & counted).sum()
    assert np.isnan(report.class_auc).all()
    assert report.accuracy == pytest.approx(model.history["validation_accuracy"][-1], abs=1e-6)
    assert model.predict_proba(x[:2]).shape == (2, 3, 8, 8)


def test_streams(device: Device) -> None:
    """Batches of any size, whose weights nobody knows ahead."""

    def model() -> Model:
        return Sequential([layers.Input(1, 8, 8), layers.Conv2D(3, 3, padding=1)])

    x, _ = digits(13)
    y = np.where(x[:, 0] > 0.5, 1, np.where(x[:, 0] > 0.1, 2, 9))
    y[3:6] = 9
    stream = [(x[first:last], y[first:last]) for first, last in ((0, 3), (3, 6), (6, 12), (12, 13))]
    options: dict[str, Any] = {"loss": CrossEntropy(ignore=9), "class_weights": {1: 2.5}, "epochs": 1}
    found = fitted(model(), device, stream, None, batch_size=6, accumulate=4, **options)
    assert_same(found, fitted(model(), device, x, y, batch_size=13, **options))
    for refused, message in (
        ({"sample_weights": np.ones(13)}, r"sample_weights: a stream of batches cannot have them\. Hint: give arrays"),
        ({"class_weights": "balanced"}, r"class_weights: 'balanced' must know all labels, .* Hint: give a weight for"),
        (
            {"validation": (stream, None), "metrics": ["iou"]},
            r"fit: metrics are .* no stream\. Received validation=a str",
        ),
    ):
        with pytest.raises(OptionError, match=message):
            fitted(model(), device, stream, None, batch_size=6, **(options | refused))
    with pytest.raises(OptionError, match=r"evaluate: metrics are measured on data that are no stream"):
        found.evaluate(stream, metrics=["iou"])


def test_resuming_keeps_accumulation_and_average(device: Device, tmp_path: Path) -> None:
    x, y = digits(22)
    options: dict[str, Any] = {"accumulate": 2, "average": 0.9, "optimizer": Adam(1e-2)}
    straight = fitted(tiny_model(), device, x, y, epochs=3, **options)
    path = tmp_path / "model.h5"
    fitted(tiny_model(), device, x, y, epochs=2, callbacks=[Checkpoint(path)], **options)
    resumed = fitted(bn.load(path), device, x, y, epochs=3, resume=True, **options)
    assert_same(resumed, straight, bits=True)
    for changed, message in (
        ({"accumulate": 1}, r"resume: the accumulate must be .* Received saved=2, now=1"),
        ({"average": 0.5}, r"resume: the average must be .* Received saved=0.9, now=0.5"),
        ({"average": 0.0}, r"resume: the average must be .* Received saved=0.9, now=0.0"),
        ({"class_weights": "balanced"}, r"resume: the class weights must be .* Received saved=None"),
    ):
        with pytest.raises(OptionError, match=message):
            fitted(bn.load(path), device, x, y, epochs=3, resume=True, **(options | changed))


# -- averaged weights --------------------------------------------------------------------------------------------------


class _Steps(Callback):
    """The parameters themselves after every epoch."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    def epoch_end(self, progress: Progress) -> None:
        self.seen.append(progress.trainer.step.parameters.read())


@pytest.mark.parametrize("decay", [0.0, 0.2, 0.999])
def test_average(device: Device, decay: float) -> None:
    x, y = digits(8)
    steps, model = _Steps(), tiny_model()
    expected = {name: values.astype(np.float64) for name, values in model.weights.items()}
    held_out = digits(6, first=8)
    fitted(model, device, x, y, epochs=4, average=decay, callbacks=[steps], validation=held_out, debug=True)
    trainable = {name for name, spec in model.graph.named_parameters.items() if spec.trainable}
    for step, weights in enumerate(steps.seen, start=1):
        rate = 1 - min(decay, (1 + step) / (10 + step))
        for name, values in weights.items():
            expected[name] += (rate if name in trainable else 1.0) * (values - expected[name])
    for name, values in model.weights.items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-5, atol=1e-7, err_msg=name)
    # What validation measures is what the model has.
    assert model.history["validation_loss"][-1] == pytest.approx(model.evaluate(*held_out)["loss"], rel=1e-6)
    if not decay:
        assert_same(model, fitted(tiny_model(), device, x, y, epochs=4), bits=False)


def test_wrong_averages_and_accumulations(device: Device) -> None:
    for options, message in (
        ({"average": 1.0}, r"fit: average must be a finite number of at least 0 and below 1\. Received average=1.0"),
        ({"accumulate": 0}, r"fit: accumulate must be .* Received accumulate=0"),
    ):
        with pytest.raises(OptionError, match=message):
            fitted(tiny_model(), device, *digits(8), **options)


# -- learning rates of one's own ---------------------------------------------------------------------------------------


def falling(step: int) -> float:
    return 0.1 / (1 + step)


def test_any_function_of_the_step(device: Device, tmp_path: Path) -> None:
    x, y = digits(22)
    path = tmp_path / "model.h5"
    ours = fitted(plain_model(), device, x, y, optimizer=SGD(falling), callbacks=[Checkpoint(path)])
    rates = [0.1 / (1 + step) for step in range(6)]
    assert_same(ours, fitted(plain_model(), device, x, y, optimizer=SGD(lambda step: rates[step])), bits=True)
    assert_moved(ours, fitted(plain_model(), device, x, y, optimizer=SGD(0.1)))
    message = r"resume: a file cannot hold the function of a schedule\. Received function=falling\. Hint: give fit the"
    with pytest.raises(FileError, match=message):
        bn.load(path).fit(x, y, epochs=3, batch_size=8, resume=True, device=device, verbose=False)
    again = fitted(bn.load(path), device, x, y, epochs=3, optimizer=SGD(falling), resume=True)
    assert_same(again, fitted(plain_model(), device, x, y, epochs=3, optimizer=SGD(falling)), bits=True)


def test_a_function_that_returns_no_rate(device: Device) -> None:
    for rate in (-1.0, None, float("nan")):
        with pytest.raises(OptionError, match=r"learning rate of step 0: rate must be a finite number of at least 0\."):
            fitted(plain_model(), device, *digits(8), optimizer=SGD(lambda step, rate=rate: rate))
