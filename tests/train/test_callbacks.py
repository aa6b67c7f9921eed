"""Callbacks: what they write, when they stop, and what stays when something else stops the training."""

from __future__ import annotations

import copy
import csv
import math
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blobnet as bn
from blobnet import layers
from blobnet.callbacks import (
    Callback,
    Checkpoint,
    CSVLog,
    EarlyStopping,
    ReduceOnPlateau,
    SaveBest,
    TensorBoard,
)
from blobnet.device.device import Device
from blobnet.errors import DataError, FileError, OptionError, TrainingError
from blobnet.hardware.device_model import GENERIC
from blobnet.launch.task import TunedChoices
from blobnet.losses import CrossEntropy
from blobnet.model import Model, Sequential
from blobnet.optimizers import SGD, Adam
from blobnet.planning import make_plan
from blobnet.training.trainer import Progress
from blobnet.training.training_step import TrainingStep
from tests.tiny import digits, tiny_model
from tests.two_ends import data, two_ends

ROOT = Path(__file__).parents[2]


def fit(model: Model, device: Device, callbacks: Any, **options: Any) -> Model:
    settings: dict[str, Any] = {"epochs": 2, "batch_size": 8, "optimizer": Adam(1e-2), "verbose": False}
    model.fit(*digits(16), device=device, callbacks=callbacks, **(settings | options))
    return model


def same_weights(one: Model, other: Model) -> bool:
    return all(np.array_equal(values, other.weights[name]) for name, values in one.weights.items())


@pytest.mark.parametrize(
    ("method", "hint"),
    [
        ("on_epoch_end", "did you mean 'epoch_end'?"),
        ("on_train_begin", "did you mean 'begin'?"),
        ("on_train_end", "did you mean 'end'?"),
        ("on_batch_end", "did you mean 'step_end'"),
        ("on_train_batch_end", "did you mean 'step_end'"),
        ("on_fit_end", "did you mean 'end'"),
        ("on_whatever", "the hooks are begin, step_end, epoch_end, end, failed, release."),
    ],
)
def test_hooks_of_other_names_are_told(device: Device, method: str, hint: str) -> None:
    foreign = type("Foreign", (Callback,), {method: lambda self, progress: None})
    rule = rf"^Foreign: no hook of a training has this name, so nobody calls it\. Received method={method}\. Hint: "
    with pytest.warns(bn.errors.BlobnetWarning, match=rule + re.escape(hint)):
        fit(tiny_model(), device, [foreign()], epochs=1)


def test_hooks_of_other_parameters_are_refused(device: Device) -> None:
    class OfKeras(Callback):
        def epoch_end(self, epoch: int, logs: Any) -> None:  # type: ignore[override]
            raise AssertionError

    message = (
        "OfKeras: epoch_end must take what it is given. Received cause=missing a required argument: 'logs'. "
        "Hint: def epoch_end(self, progress)."
    )
    with pytest.raises(OptionError, match=f"^{re.escape(message)}$"):
        fit(tiny_model(), device, OfKeras())


CHANGES: dict[str, Any] = {
    "fit": lambda model, device: model.fit(*digits(8), device=device),
    "set_weights": lambda model, device: model.set_normalization(1, 2),
    "initialize": lambda model, device: model.initialize(1),
    "take_weights": lambda model, device: model.take_weights(tiny_model(3)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_callback_cannot_change_the_model_that_is_training(device: Device, change: str) -> None:
    """Its weights would be lost at the end of the epoch, or the training with them."""

    class Change(Callback):
        error: OptionError | None = None

        def epoch_end(self, progress: Progress) -> None:
            with pytest.raises(OptionError) as caught:
                CHANGES[change](model, device)
            self.error = caught.value
            # A copy is another model, and what only looks may.
            copy.copy(model).initialize(0)
            model.predict(digits(8)[0], device=device)

    model, callback = tiny_model(), Change()
    fit(model, device, callback)
    rule = (
        f"{change}: this model is training, and its weights are replaced behind every epoch. Hint: a callback may end"
    )
    assert str(callback.error).startswith(rule)
    assert same_weights(model, fit(tiny_model(), device, ()))
    CHANGES[change](model, device)  # Behind the training all may again.


class Script(Callback):
    """Puts values of its own in the place of a measured one, and keeps every epoch's weights."""

    def __init__(self, name: str, values: list[float]) -> None:
        self.name = name
        self.values = values
        self.weights: list[dict[str, Any]] = []

    def epoch_end(self, progress: Progress) -> None:
        progress.history[self.name][-1] = self.values[progress.trainer.epoch - 1]
        self.weights.append(progress.trainer.weights())


class Calls(Callback):
    """Remembers which methods were called."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def begin(self, progress: Progress) -> None:
        self.seen.append("begin")

    def epoch_end(self, progress: Progress) -> None:
        self.seen.append(f"epoch {progress.trainer.epoch}/{progress.epochs}")
        assert len(progress.history["loss"]) == progress.trainer.epoch

    def end(self, progress: Progress) -> None:
        self.seen.append("end")


def test_order_of_calls(device: Device) -> None:
    calls = Calls()
    fit(tiny_model(), device, [calls])
    assert calls.seen == ["begin", "epoch 1/2", "epoch 2/2", "end"]


# -- early stopping ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("monitor", "values", "epochs", "best"),
    [
        ("loss", [3.0, 2.0, 2.5, 2.0, 1.0], 4, 2),
        ("accuracy", [0.1, 0.5, 0.4, 0.5, 0.9], 4, 2),
        ("loss", [1.0, 2.0, 0.5, 3.0, 3.0], 5, 3),
        ("loss", [math.nan, 2.0, math.nan, 1.0, 1.0], 5, 4),
        ("loss", [3.0, 2.9995, 2.999, 0.0, 0.0], 3, 1),
    ],
    ids=str,
)
def test_early_stopping(device: Device, monitor: str, values: list[float], epochs: int, best: int) -> None:
    script, stopping = Script(monitor, values), EarlyStopping(monitor, patience=2, minimum_change=0.01)
    model = fit(tiny_model(), device, [script, stopping], epochs=5)
    assert len(model.history["loss"]) == epochs
    for name, wanted in script.weights[best - 1].items():
        assert np.array_equal(model.weights[name], wanted), "the weights are those of the best epoch"
    assert stopping.waited == epochs - best


def test_early_stopping_says_why_and_may_keep_the_last_weights(device: Device) -> None:
    reasons = []

    class Reason(Callback):
        def end(self, progress: Progress) -> None:
            reasons.append(progress.stop)

    script = Script("loss", [1.0, 2.0, 3.0])
    stopping = EarlyStopping("loss", patience=1, restore_best=False)
    model = fit(tiny_model(), device, [script, stopping, Reason()], epochs=3)
    assert reasons == ["loss has not become better than 1.0000 for 1 epoch"]
    assert np.array_equal(model.weights["logits/weight"], script.weights[-1]["logits/weight"])
    assert len(script.weights) == 2


def test_what_is_no_callback_is_refused_and_one_needs_no_list(device: Device) -> None:
    calls = Calls()
    fit(tiny_model(), device, calls)
    assert calls.seen[0] == "begin"
    assert calls.seen[-1] == "end"
    for wrong, received in ((3, "int"), ([calls, print], "builtin_function_or_method"), ([Calls], "Calls")):
        rule = rf"callbacks: each must be a Callback\. Received type={received}\. Hint"
        with pytest.raises(OptionError, match=rule):
            fit(tiny_model(), device, wrong)
    rule = r"EarlyStopping: monitor must be the name of a value\. Received monitor=3\. Hint: give numbers by name"
    with pytest.raises(OptionError, match=rule):
        EarlyStopping(3)  # type: ignore[arg-type]


def test_early_stopping_refuses_what_is_not_measured_before_the_first_epoch(device: Device, tmp_path: Path) -> None:
    model = tiny_model()
    for monitor, message in (
        ("validation_loss", r"Received monitor=validation_loss\. Hint: train with validation data, or monitor another"),
        ("acuracy", r"Received monitor=acuracy\. Hint: did you mean 'accuracy'"),
    ):
        calls = Calls()
        rule = r"EarlyStopping: monitor must be one of the values that this training measures\. " + message
        with pytest.raises(OptionError, match=rule):
            fit(model, device, [calls, EarlyStopping(monitor)])
        assert calls.seen == ["begin"]
    fit(model, device, [EarlyStopping()], validation=digits(4))
    assert list(model.history)[-1] == "validation_top_5"


def test_early_stopping_on_a_value_of_another_callback(device: Device) -> None:
    class Added(Callback):
        def begin(self, progress: Progress) -> None:
            progress.metrics.append("score")

        def epoch_end(self, progress: Progress) -> None:
            progress.history.setdefault("score", []).append(-float(progress.trainer.epoch))

    model = fit(tiny_model(), device, [Added(), EarlyStopping("score", patience=1)], epochs=5)
    assert model.history["score"] == [-1.0, -2.0]


def test_early_stopping_goes_on_waiting_in_a_resumed_training(device: Device) -> None:
    model = fit(tiny_model(), device, [Script("loss", [1.0, 2.0])], epochs=2)
    script = Script("loss", [1.0, 2.0, 3.0, 4.0])
    # The weights of the best epoch are gone.
    with pytest.raises(OptionError, match=r"EarlyStopping: .*\. Received epochs_since=1\. Hint: resume from the best"):
        fit(model, device, [script, EarlyStopping("loss", patience=2)], epochs=9, resume=True)
    stopping = EarlyStopping("loss", patience=2, restore_best=False)
    fit(model, device, [script, stopping], epochs=9, resume=True)
    assert model.history["loss"] == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("patience", [0, 1.5, None])
def test_patience_must_be_a_positive_int(patience: Any) -> None:
    with pytest.raises(OptionError, match=r"EarlyStopping: patience must be an int of at least 1\. Received patience="):
        EarlyStopping(patience=patience)


# -- the best epoch, and plateaus -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("monitor", "falls", "values", "best"),
    [
        ("loss", None, [3.0, 2.0, 2.5, 1.995, 1.0], 5),
        ("loss", None, [3.0, 2.0, 2.5, 1.995, 2.0], 2),
        ("accuracy", None, [0.1, 0.5, 0.4, 0.505, 0.2], 2),
        ("accuracy", True, [0.5, 0.4, 0.1, 0.5, 0.6], 3),
        ("loss", None, [math.nan, 2.0, math.nan, 3.0, 2.0], 2),
    ],
    ids=str,
)
def test_save_best(
    device: Device, tmp_path: Path, monitor: str, falls: bool | None, values: list[float], best: int
) -> None:
    path = tmp_path / "best.h5"
    script = Script(monitor, values)
    fit(tiny_model(), device, [script, SaveBest(path, monitor, 0.01, falls)], epochs=5)
    saved = bn.load(path)
    assert saved.training_state is not None
    assert saved.training_state.epoch == best
    for name, wanted in script.weights[best - 1].items():
        assert np.array_equal(saved.weights[name], wanted)
    assert saved.class_names == tiny_model().class_names


def test_save_best_of_a_resumed_training_keeps_a_better_file(device: Device, tmp_path: Path) -> None:
    last, best = tmp_path / "last.h5", tmp_path / "best.h5"
    fit(tiny_model(), device, [Script("loss", [1.0, 2.0]), Checkpoint(last), SaveBest(best, "loss")], epochs=2)
    before = best.read_bytes()
    resumed = bn.load(last)
    fit(resumed, device, [Script("loss", [1.0, 2.0, 1.5]), SaveBest(best, "loss")], epochs=3, resume=True)
    assert best.read_bytes() == before
    fit(resumed, device, [Script("loss", [1.0, 2.0, 1.5, 0.5]), SaveBest(best, "loss")], epochs=4, resume=True)
    assert bn.load(best).history["loss"] == [1.0, 2.0, 1.5, 0.5]
    with pytest.raises(FileError, match=r"no/best\.h5: the folder of the file must exist"):
        fit(tiny_model(), device, [SaveBest(tmp_path / "no" / "best.h5", "loss")])
    with pytest.raises(OptionError, match=r"SaveBest: monitor must be one of .* Received monitor=validation_loss"):
        fit(tiny_model(), device, [SaveBest(best)])


class Rates(Callback):
    """The learning rate of every epoch's last step."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def epoch_end(self, progress: Progress) -> None:
        self.seen.append(progress.trainer.learning_rate)


def test_reduce_on_plateau(device: Device) -> None:
    values = [3.0, 2.0, 2.0, 2.1, 1.0, 1.5, 1.5, 1.5, 1.5, 1.0]
    expected = [0.1, 0.1, 0.1, 0.1, 0.025, 0.025, 0.025, 0.00625, 0.00625, 0.0015625]
    rates = Rates()
    plateau = ReduceOnPlateau("loss", factor=0.25, patience=2)
    fit(tiny_model(), device, [rates, Script("loss", values), plateau], epochs=10, optimizer=SGD(0.1))
    np.testing.assert_allclose(rates.seen, expected, rtol=1e-12)
    # A training that was interrupted goes on with the same rates.
    model = fit(tiny_model(), device, [Script("loss", values), plateau], epochs=6, optimizer=SGD(0.1))
    again = Rates()
    fit(model, device, [again, Script("loss", values), plateau], epochs=10, optimizer=SGD(0.1), resume=True)
    np.testing.assert_allclose(again.seen, expected[6:], rtol=1e-12)


def test_reduced_rates_reach_the_weights(device: Device) -> None:
    flat = [1.0, 1.0, 1.0]
    plateau = ReduceOnPlateau("loss", factor=0.5, patience=1)
    reduced = fit(tiny_model(), device, [Script("loss", flat), plateau], epochs=3, optimizer=SGD(0.1))
    rates = [0.1, 0.1, 0.1, 0.1, 0.05, 0.05]
    assert same_weights(reduced, fit(tiny_model(), device, [], epochs=3, optimizer=SGD(lambda step: rates[step])))


def test_wrong_plateaus() -> None:
    for options, message in (
        ({"factor": 1}, r"ReduceOnPlateau: factor must be a finite number above 0 and below 1\. Received factor=1\."),
        ({"patience": 0}, r"ReduceOnPlateau: patience must be an int of at least 1\. Received patience=0\."),
    ):
        with pytest.raises(OptionError, match=message):
            ReduceOnPlateau(**options)


def test_the_rate_is_shown(device: Device, capsys: pytest.CaptureFixture[str]) -> None:
    fit(tiny_model(), device, [], epochs=2, optimizer=SGD(lambda step: 0.25 / (1 + step)), verbose=True)
    header, *rows = capsys.readouterr().err.splitlines()
    assert header.split()[:4] == ["epoch", "time", "img/s", "rate"]
    assert [row.split()[4] for row in rows] == ["0.12", "0.062"]
    assert all(len(line) <= 80 for line in (header, *rows))


# -- metrics -----------------------------------------------------------------------------------------------------------


def test_metrics_are_in_the_table(device: Device, capsys: pytest.CaptureFixture[str]) -> None:
    held_out = digits(6, first=16)
    model = fit(tiny_model(), device, (), validation=held_out, metrics=["f1", highest], epochs=1, verbose=True)
    header, row = capsys.readouterr().err.splitlines()[-2:]
    columns = dict(zip(re.split(r"  +", header.strip()), re.split(r"  +", row.strip()), strict=True))
    assert columns["val. f1"] == f"{model.history['validation_f1'][0]:.4f}"
    assert columns["val. highest"] == f"{model.history['validation_highest'][0]:.4f}"
    held_out = data(8)
    settings: dict[str, Any] = {"loss": {"mask": CrossEntropy(), "value": "mse"}, "metrics": {"value": "mae"}}
    history = two_ends().fit(*held_out, validation=held_out, batch_size=8, device=device, **settings)
    header, row = capsys.readouterr().err.splitlines()[-2:]
    assert (header.split()[-1], row.split()[-1]) == ("value_mae", f"{history['validation_value_mae'][0]:.4f}")


def highest(labels: Any, scores: Any) -> float:
    return float(scores.max())


def test_metrics_of_the_validation_data(device: Device) -> None:
    held_out = digits(6, first=16)
    asked: list[Any] = ["f1", highest]
    model = fit(tiny_model(), device, [EarlyStopping("validation_f1", patience=9)], validation=held_out, metrics=asked)
    names = ["validation_loss", "validation_accuracy", "validation_top_5", "validation_f1", "validation_highest"]
    assert list(model.history)[-5:] == names
    stopped = model.evaluate(*held_out, metrics=asked)
    assert stopped["f1"] == pytest.approx(max(model.history["validation_f1"]))
    assert list(stopped) == ["loss", "accuracy", "top_5", "f1", "highest"]
    scores = model.predict_proba(held_out[0])
    assert stopped["highest"] == pytest.approx(scores.max(), rel=1e-6)
    np.testing.assert_allclose(scores.sum(axis=1), 1, rtol=1e-6)
    report = model.report(*held_out)
    assert report.accuracy == pytest.approx(stopped["accuracy"])
    assert report.class_names == model.class_names
    assert (scores.argmax(axis=1) == held_out[1]).sum() == np.trace(report.matrix)
    with pytest.raises(
        OptionError,
        match=r"fit: metrics are .* validation data that are no stream\. Received validation=None\. "
        r"Hint: validation=0\.1 holds a tenth out\.$",
    ):
        fit(tiny_model(), device, [], metrics=["f1"])


def test_probabilities_of_other_losses(device: Device) -> None:
    model = Sequential([layers.Input(3), layers.Dense(2)])
    x = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
    outputs = model.predict(x, device=device)
    powers = np.exp(outputs)
    np.testing.assert_allclose(model.predict_proba(x), powers / powers.sum(axis=1, keepdims=True), rtol=1e-5)
    model.loss = bn.losses.BinaryCrossEntropy()
    np.testing.assert_allclose(model.predict_proba(x), 1 / (1 + np.exp(-outputs)), rtol=1e-5)
    model.loss = bn.losses.Huber()
    with pytest.raises(
        OptionError, match=r"predict_proba: the loss of the model must take logits\. .*Hint: predict gives"
    ):
        model.predict_proba(x)


def test_probabilities_of_several_outputs(device: Device) -> None:
    model, (x, _) = two_ends(), data(5)
    rule = r"predict_proba: a model with several outputs must know the loss of each\. Received "
    received = r"outputs=\['mask', 'value'\], loss=None\. Hint: fit it, or set model\.loss = \{output: loss\}\. predict"
    with pytest.raises(OptionError, match=rule + received):
        model.predict_proba(x, device=device)
    model.loss = {"value": bn.losses.BinaryCrossEntropy(), "mask": bn.losses.CrossEntropy()}
    outputs, found = model.predict(x, device=device), model.predict_proba(x, device=device)
    powers = np.exp(outputs["mask"].astype(np.float64))
    np.testing.assert_allclose(found["mask"], powers / powers.sum(axis=1, keepdims=True), rtol=1e-5)
    np.testing.assert_allclose(found["value"], 1 / (1 + np.exp(-outputs["value"].astype(np.float64))), rtol=1e-5)


# -- TensorBoard -------------------------------------------------------------------------------------------------------


def test_tensorboard(device: Device, tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    from tensorboardX.proto.event_pb2 import Event

    folder = tmp_path / "logs"
    options: dict[str, Any] = {"epochs": 3, "validation": digits(4), "optimizer": SGD(0.05)}
    model = fit(tiny_model(), device, [TensorBoard(folder)], **options)
    (path,) = folder.iterdir()
    data, found = path.read_bytes(), {}
    while data:
        # A record: length, its checksum, an event, its checksum.
        length = int.from_bytes(data[:8], "little")
        event = Event.FromString(data[12 : 12 + length])
        found |= {(value.tag, event.step): value.simple_value for value in event.summary.value}
        data = data[16 + length :]
    for epoch in range(3):
        assert found["loss/training", epoch + 1] == pytest.approx(model.history["loss"][epoch])
        assert found["accuracy/validation", epoch + 1] == pytest.approx(model.history["validation_accuracy"][epoch])
        assert found["learning_rate/training", epoch + 1] == pytest.approx(0.05)
    assert len(found) == 3 * 7


def test_without_tensorboardx(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    message = r'TensorBoard: logging needs tensorboardX\. .*Hint: pip install "blobnet\[tensorboard\]"'
    with pytest.raises(OptionError, match=message):
        TensorBoard(tmp_path)


# -- CSV ---------------------------------------------------------------------------------------------------------------


def test_csv_log(device: Device, tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    model = fit(tiny_model(), device, [CSVLog(path)], epochs=3, validation=digits(4))
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == ["1", "2", "3"]
    names = ["loss", "accuracy", "top_5", "validation_loss", "validation_accuracy", "validation_top_5"]
    assert list(rows[0]) == ["epoch", *names]
    for name in names:
        assert [float(row[name]) for row in rows] == model.history[name]
    fit(model, device, [CSVLog(path)], epochs=4, resume=True, validation=digits(4))
    assert len(path.read_text(encoding="utf-8").splitlines()) == 5


def test_csv_log_that_cannot_be_written_is_refused_before_the_first_epoch(device: Device, tmp_path: Path) -> None:
    calls = Calls()
    with pytest.raises(FileError, match=r"no/log\.csv: the folder of the file must exist\. Received"):
        fit(tiny_model(), device, [calls, CSVLog(tmp_path / "no" / "log.csv")])
    assert calls.seen == ["begin"]


# -- checkpoints -------------------------------------------------------------------------------------------------------


class Files(Callback):
    """The epoch in a checkpoint, after every epoch; it must come behind the checkpoint."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.epochs: list[int | None] = []

    def epoch_end(self, progress: Progress) -> None:
        state = bn.load(self.path).training_state if self.path.exists() else None
        self.epochs.append(state.epoch if state else None)


@pytest.mark.parametrize(("every", "seen"), [(1, [1, 2, 3, 4, 5]), (2, [None, 2, 2, 4, 5]), (9, [None] * 4 + [5])])
def test_checkpoint_every_so_many_epochs_and_at_the_end(
    device: Device, tmp_path: Path, every: int, seen: list[int | None]
) -> None:
    path = tmp_path / "model.h5"
    files = Files(path)
    model = fit(tiny_model(), device, [Checkpoint(path, every), files], epochs=5)
    assert files.epochs == seen
    loaded = bn.load(path)
    assert same_weights(loaded, model)
    assert loaded.history == model.history
    assert loaded.class_names == model.class_names == tuple("0123456789")
    assert loaded.loss == model.loss
    assert [item.name for item in tmp_path.iterdir()] == ["model.h5"]


@pytest.mark.parametrize("checkpoint_first", [True, False])
def test_checkpoint_when_a_training_stops_early(device: Device, tmp_path: Path, checkpoint_first: bool) -> None:
    path = tmp_path / "model.h5"
    script, stopping = Script("loss", [1.0, 2.0, 3.0, 4.0]), EarlyStopping("loss", patience=2)
    checkpoint = Checkpoint(path, every=2)
    callbacks = [checkpoint, script, stopping] if checkpoint_first else [script, stopping, checkpoint]
    fit(tiny_model(), device, callbacks, epochs=9)
    loaded = bn.load(path)
    assert loaded.training_state is not None
    assert loaded.training_state.epoch == 3
    # What can be resumed: the last weights, not the best.
    assert np.array_equal(loaded.weights["logits/weight"], script.weights[2]["logits/weight"])


def test_checkpoint_that_cannot_be_written_is_refused_before_the_first_epoch(device: Device, tmp_path: Path) -> None:
    calls = Calls()
    with pytest.raises(FileError, match=r"the folder of the file must exist"):
        fit(tiny_model(), device, [calls, Checkpoint(tmp_path / "no" / "model.h5")])
    assert calls.seen == ["begin"]
    with pytest.raises(OptionError, match=r"Checkpoint: every must be an int of at least 1\. Received every=0"):
        Checkpoint(tmp_path / "model.h5", every=0)


def test_checkpoint_on_a_full_disk_is_refused_before_the_first_epoch(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    monkeypatch.setattr(shutil, "disk_usage", lambda path: _Usage())
    calls = Calls()
    with pytest.raises(FileError, match=r"the disk must have room for the file\..*free=1000 B"):
        fit(tiny_model(), device, [calls, Checkpoint(tmp_path / "model.h5")])
    assert calls.seen == ["begin"]
    assert list(tmp_path.iterdir()) == []


class _Usage:
    free = 1000


def test_an_interrupt_in_the_middle_of_an_epoch_leaves_the_last_checkpoint(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, calls = tmp_path / "model.h5", Calls()
    wanted = fit(tiny_model(), device, [], epochs=2)
    model = tiny_model()
    update = TrainingStep.update

    def interrupted(self: TrainingStep, learning_rate: float) -> None:
        if self.number == 5:  # the second step of the third epoch
            raise KeyboardInterrupt
        update(self, learning_rate)

    with monkeypatch.context() as patch:
        patch.setattr(TrainingStep, "update", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fit(model, device, [Checkpoint(path), calls], epochs=5)
    assert calls.seen == ["begin", "epoch 1/5", "epoch 2/5"]
    assert same_weights(bn.load(path), wanted)
    # The model is what its last full epoch made of it, and the device can be used as before.
    assert same_weights(model, wanted)
    fit(model, device, [], epochs=3, resume=True)
    assert same_weights(model, fit(tiny_model(), device, [], epochs=3))


# -- NaN ---------------------------------------------------------------------------------------------------------------


def test_a_learning_rate_that_is_far_too_high(device: Device) -> None:
    model = tiny_model()
    before = model.weights
    rule = r"training: the loss must stay finite\. Received epoch=1, step=1, first_layer="
    with pytest.raises(TrainingError, match=rule) as caught:
        fit(model, device, [], optimizer=SGD(1e30))
    assert str(caught.value).endswith("Hint: use a smaller learning rate, or clip the gradients (clip_norm).")
    first = re.search(r"first_layer=(\w+)", str(caught.value))
    assert first is not None
    assert first[1] in [vertex.name for vertex in model.graph.vertices]
    assert all(np.array_equal(values, before[name]) for name, values in model.weights.items())
    fit(model, device, [])
    assert np.isfinite(model.history["loss"]).all()


@pytest.mark.parametrize("name", ["conv1/weight", "conv2/weight", "norm2/scale", "logits/bias"])
def test_the_error_names_the_layer_whose_weights_are_broken(device: Device, name: str) -> None:
    model = tiny_model()
    whole = model.weights[name]
    broken = whole.copy()
    broken.reshape(-1)[1] = math.nan
    model._weights = {**model._weights, name: broken}
    layer = name.split("/")[0]
    message = rf"epoch=1, step=0, first_layer={layer}, whose {name} are not finite themselves\. Hint"
    with pytest.raises(TrainingError, match=message):
        fit(model, device, [])
    model.set_weights({name: whole})
    fit(model, device, [])


def test_the_first_layer_is_found_in_memory_that_is_reused(device: Device) -> None:
    # Inference-like chains reuse memory: a buffer that gets a new geometry still holds the NaN of a later layer.
    stack: list[layers.Layer] = [layers.Input(1, 8, 8, name="input")]
    for number, units in enumerate((3, 5, 4), start=1):
        stack.append(layers.Conv2D(units, 3, 2, 1, activation="silu", name=f"conv{number}"))
    model = Sequential([*stack, layers.Dense(10, name="logits")])
    bias = np.zeros(4, np.float32)
    bias[2] = math.inf
    model._weights = {**model._weights, "conv3/bias": bias}
    with pytest.raises(TrainingError, match=r"first_layer=conv3, whose conv3/bias are not finite themselves\."):
        fit(model, device, [])


def test_layers_with_split_sums_are_named_too(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    tuning = replace(device.tuning, model=GENERIC["gpu"], choices=TunedChoices())
    monkeypatch.setattr(Device, "tuning", tuning)
    stack = [layers.Input(1, 8, 8), layers.Conv2D(64, 3, name="conv"), layers.Flatten(), layers.Dense(64, name="head")]
    model = Sequential(stack)
    plan = make_plan(model.graph, 8, loss=CrossEntropy(), training=True, tuning=tuning)
    split = [call for phase, call in plan.calls if phase == "forward" and "split" in call.kernel]
    names = {vertex.index: vertex.name for vertex in model.graph.vertices}
    assert {names[call.vertex] for call in split} >= {"head"}
    for phase, call in ((phase, one) for phase, launch in plan.calls for one in launch.each):
        if phase != "loss" and call.kernel != "blob/zero_halo":
            assert call.label.startswith(f"{names[call.vertex]} ")
            assert call.direction.startswith(phase)
    bias = np.zeros(64, np.float32)
    bias[2] = math.inf
    model._weights = {**model._weights, "head/bias": bias}
    with pytest.raises(TrainingError, match=r"first_layer=head, whose head/bias are not finite themselves\."):
        fit(model, device, [])


@pytest.mark.filterwarnings("ignore:x. samples should be normalised:blobnet.errors.BlobnetWarning")
def test_the_first_layer_is_that_of_the_batch_that_broke_the_loss(device: Device) -> None:
    # The next batch is on the device by then.
    x, y = digits(16)
    first = np.random.default_rng([0, 0]).permutation(len(x))[:8]
    x[first[3]] = 3e38
    model = Sequential([layers.Input(1, 8, 8, name="input"), layers.Conv2D(4, 3, name="conv"), layers.Dense(10)])
    model.set_weights({"conv/weight": np.full((4, 1, 3, 3), 1.0, np.float32)})
    with pytest.raises(TrainingError, match=r"epoch=1, step=0, first_layer=conv\."):
        model.fit(x, y, epochs=1, batch_size=8, device=device, verbose=False)


def test_a_loss_that_is_too_large_by_itself(device: Device) -> None:
    model = Sequential([layers.Input(1, 8, 8, name="input"), layers.Dense(10, name="logits")])
    model.set_weights({"logits/bias": np.linspace(-3e38, 3e38, 10)})
    with pytest.raises(TrainingError, match=r"first_layer=the loss itself\."):
        fit(model, device, [])


@pytest.mark.filterwarnings("ignore:x. samples should be normalised:blobnet.errors.BlobnetWarning")
def test_weights_that_an_epochs_last_step_broke_are_not_kept(device: Device, tmp_path: Path) -> None:
    model = Sequential([layers.Input(1, 8, 8, name="input"), layers.Dense(10, name="logits")])
    before, path = model.weights, tmp_path / "model.h5"
    x, y = digits(8)
    settings: dict[str, Any] = {"optimizer": SGD(3e38), "callbacks": [Checkpoint(path)], "device": device}
    with pytest.raises(
        TrainingError, match=r"the weights must stay finite\. Received epoch=1, broken=\['logits/"
    ) as caught:
        model.fit(100 * x, y, batch_size=8, verbose=False, **settings)
    assert str(caught.value).startswith("training: ")
    assert all(np.array_equal(values, before[name]) for name, values in model.weights.items())
    assert not path.exists()


def test_samples_that_hold_nan_never_get_so_far(device: Device) -> None:
    x, y = digits(16)
    x[7, 0, 2, 3] = math.nan
    with pytest.raises(DataError, match=r"x: x must hold finite float32 values\. Received index=\(7, 0, 2, 3\)"):
        tiny_model().fit(x, y, device=device, verbose=False)


def test_callbacks_see_the_model_of_their_own_epoch(device: Device) -> None:
    model, x, y = tiny_model(), *digits(24)

    class Looking(Callback):
        epochs = 0

        def epoch_end(self, progress: Progress) -> None:
            self.epochs += 1
            trained = progress.trainer.weights()
            assert all(np.array_equal(values, trained[name]) for name, values in model.weights.items())
            assert model.history == progress.history
            assert model.evaluate(x, y)["loss"] != model.history["loss"][-1]
            assert model.training_state is not None
            assert model.training_state.epoch == self.epochs == len(model.history["loss"])

    looking = Looking()
    fit(model, device, [looking], epochs=3)
    assert looking.epochs == 3


WRITERS = {"Checkpoint": Checkpoint, "SaveBest": lambda path: SaveBest(path, monitor="loss"), "CSVLog": CSVLog}


@pytest.mark.parametrize("first", WRITERS)
@pytest.mark.parametrize("second", WRITERS)
def test_no_two_callbacks_write_one_file(device: Device, tmp_path: Path, first: str, second: str) -> None:
    (tmp_path / "a").symlink_to(tmp_path)
    model, path = tiny_model(), tmp_path / "model.h5"
    callbacks = [WRITERS[first](path), WRITERS[second](tmp_path / "a" / "model.h5")]
    rule = r"a/model\.h5: another training, or callback, of this process writes this file\. Hint: write another file\.$"
    with pytest.raises(FileError, match=rule):
        fit(model, device, callbacks)
    # What began has let go of it.
    fit(model, device, callbacks[1:])
    assert sorted(item.name for item in tmp_path.iterdir()) == ["a", "model.h5"]


def test_a_file_is_held_while_a_training_runs_however_that_ends(device: Device, tmp_path: Path) -> None:
    path = tmp_path / "model.h5"

    class Other(Callback):
        def epoch_end(self, progress: Progress) -> None:
            assert (tmp_path / ".model.h5.lock").read_text() == f"{os.getpid()}\n"
            with pytest.raises(FileError, match="another training, or callback, of this process writes this file"):
                fit(tiny_model(), device, Checkpoint(path))
            raise RuntimeError("the end")

    checkpoint = Checkpoint(path)
    with pytest.raises(RuntimeError, match="the end"):
        fit(tiny_model(), device, [checkpoint, Other()])
    with pytest.raises(OptionError, match="monitor must be one of"):
        fit(tiny_model(), device, [checkpoint, EarlyStopping(monitor="nothing")])
    for _ in range(2):
        fit(tiny_model(), device, checkpoint)
    assert [item.name for item in tmp_path.iterdir()] == ["model.h5"]


def test_another_process_is_kept_out(device: Device, tmp_path: Path) -> None:
    path = tmp_path / "model.h5"
    held = (
        "import sys; from blobnet.files.atomic import held\nwith held(sys.argv[1]): print(flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", held, str(path)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        with pytest.raises(FileError, match=rf"writing this file\. Hint: wait for the end of process {child.pid}, or"):
            fit(tiny_model(), device, Checkpoint(path))
        child.communicate()
    fit(tiny_model(), device, Checkpoint(path))


class Failing(Callback):
    """Raises an error at the end of a step."""

    def __init__(self, step: int, error: BaseException) -> None:
        self.step, self.error = step, error

    def step_end(self, progress: Progress) -> None:
        if progress.trainer.step.number == self.step:
            raise self.error


@pytest.mark.parametrize(
    ("step", "every_steps", "state"),
    [
        (1, None, "There is no checkpoint yet."),
        (3, None, "The last checkpoint is {path} (epoch 1)."),
        (4, 3, "The last checkpoint is {path} (in epoch 2, after step 3)."),
    ],
)
def test_errors_name_the_last_checkpoint(
    device: Device, tmp_path: Path, step: int, every_steps: int | None, state: str
) -> None:
    path = tmp_path / "a.h5"
    for error in (ValueError("mine"), KeyboardInterrupt(), DataError("x", "it must be there")):
        path.unlink(missing_ok=True)
        said = str(error).rstrip(".")
        with pytest.raises(type(error)) as caught:
            fit(tiny_model(), device, [Checkpoint(path, every_steps=every_steps), Failing(step, error)])
        wanted = state.format(path=path)
        if isinstance(error, DataError):
            assert str(caught.value) == f"{said}. {wanted}"
        elif sys.version_info >= (3, 11):
            assert caught.value.__notes__ == [wanted]
        if "The last" in state:
            saved = bn.load(path).training_state
            assert saved is not None
            assert (saved.epoch, saved.step) == (1, every_steps or 2)


def test_errors_of_data_name_the_last_checkpoint(device: Device, tmp_path: Path) -> None:
    """Those of a user's own, which he raises while batches are read; and of none before the first step."""
    x, y = digits(16)

    class Stream:
        passes = 0

        def __iter__(self) -> Any:
            self.passes += 1
            for first in (0, 8):
                if self.passes == 2 and first:
                    raise OSError("the disk is gone")
                yield x[first : first + 8], y[first : first + 8]

    path = tmp_path / "a.h5"
    settings: dict[str, Any] = {"epochs": 3, "device": device, "verbose": False, "callbacks": Checkpoint(path)}
    with pytest.raises(OSError, match="the disk is gone") as caught:
        tiny_model().fit(Stream(), **settings)
    if sys.version_info >= (3, 11):
        assert caught.value.__notes__ == [f"The last checkpoint is {path} (epoch 1)."]
    with pytest.raises(DataError) as refused:
        tiny_model().fit(x, y[:7], **settings)
    assert "checkpoint" not in str(refused.value)
