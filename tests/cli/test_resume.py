"""``blobnet train --resume``: bit-identical to a training that was never interrupted."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import blobnet as bn
from blobnet.callbacks.base import Callback
from blobnet.command_line.train import _OutputFile
from blobnet.errors import DataError
from blobnet.files import atomic
from blobnet.training.training_step import TrainingStep

TRAIN = [sys.executable, "-m", "blobnet", "train"]


def test_a_resumed_training_gives_the_same_bytes(run, net) -> None:
    arguments = ["train", net, "--dataset", "digits", "--optimizer", "sgd", "--momentum", 0.9, "--clip-norm", 1]
    arguments += ["--schedule", "constant"]
    assert run(*arguments, "--epochs", 3, "--output", "whole.h5", "--csv", "whole.csv").status == 0
    assert run(*arguments, "--epochs", 1, "--output", "parts.h5").status == 0
    for epochs in (2, 3):
        result = run(*arguments, "--epochs", epochs, "--output", "parts.h5", "--resume", "--csv", "parts.csv")
        assert result.status == 0, result.err
        assert result.err.splitlines()[-1].split()[0] == f"{epochs}/{epochs}"
    assert Path("parts.h5").read_bytes() == Path("whole.h5").read_bytes()
    assert Path("parts.csv").read_bytes() == Path("whole.csv").read_bytes()


@pytest.mark.parametrize("epochs", [1, 2])
def test_nothing_is_left_to_do(run, trained, epochs) -> None:
    before = trained.read_bytes()
    arguments = ["--batch-size", 64, "--learning-rate", 0.005, "--epochs", epochs]
    result = run("train", "lenet5", "--dataset", "digits", "--output", trained, "--resume", *arguments)
    assert (result.status, result.err) == (0, "")
    pattern = (
        r"nothing to do: \S+ is trained for 2 epochs, training accuracy 0\.\d{4} \(loss .*\); --epochs says how many.*"
    )
    assert re.fullmatch(pattern, result.out.strip())
    assert trained.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--optimizer", "sgd"], "resume: the optimizer must be that of the interrupted training. "
                                 "Received saved=Adam, now=SGD."),
        (["--weight-decay", 0.1], "resume: the optimizer must be that of the interrupted training. "
                                  "Received saved=weight_decay=0.0, now=weight_decay=0.1. Hint: give what was given "
                                  "then; without resume (on the command line --init-from FILE) training goes on from "
                                  "the same weights with a new optimizer."),
        (["--batch-size", 32], "resume: the batch size must be that of the interrupted training. Received saved=64, "
                               "now=32."),
        (["--shards", 2], "resume: the number of shards must be that of the interrupted training. Received saved=1, "
                          "now=2."),
        (["--seed", 1], "resume: the seed must be that of the interrupted training. Received saved=0, now=1."),
        (["--label-smoothing", 0.1], "resume: the loss must be that of the interrupted training. Received "
                                     "saved=CrossEntropy(ignore=None, label_smoothing=0.0), "
                                     "now=CrossEntropy(ignore=None, label_smoothing=0.1). Hint: give what was given"),
        (["--dataset", "other.npz"], "--resume: the data must be those of the training in {file}, but their mean "
                                     "differs. Received saved=[4.8"),
        (["--dataset", "wide.npz"], "--resume: the model must be that in {file}. Received saved=input (width=8), "
                                    "now=input (width=12). Hint: --overwrite starts anew"),
    ],
)  # fmt: skip
def test_another_training_is_refused(run, trained, arguments, message) -> None:
    x, y = np.ones((20, 1, 8, 8), np.float32), np.arange(20) % 10
    np.savez("other.npz", x=x, y=y)
    np.savez("wide.npz", x=np.ones((20, 1, 8, 12), np.float32), y=y)
    before = trained.read_bytes()
    defaults = ["--batch-size", 64, "--epochs", 3, "--output", trained, "--resume"]
    result = run("train", "lenet5", "--dataset", "digits", *defaults, *arguments)
    assert (result.status, result.out) == (1, "")
    assert f"error: {message.format(file=trained)}" in result.err
    assert trained.read_bytes() == before


def test_another_model_is_refused(run, trained, net) -> None:
    arguments = ["--epochs", 3, "--output", trained, "--resume", "--dataset", "digits"]
    message = f"error: --resume: the model must be that in {trained}. Received saved="
    result = run("train", "fashion_cnn", *arguments)
    layers = "conv1 (filters=6, kernel_size=5, bias=True), now=conv1 (filters=32, kernel_size=3, bias=False)."
    assert result.err.startswith(f"{message}{layers} Hint: ")
    assert run("train", net, *arguments).err.startswith(f"{message}input (Input), now=input_1 (Input). Hint: ")


def test_a_file_without_a_training_is_refused(run, net) -> None:
    bn.Sequential([bn.layers.Input(1, 8, 8), bn.layers.Flatten(), bn.layers.Dense(10)]).save("plain.h5")
    result = run("train", net, "--dataset", "digits", "--output", "plain.h5", "--resume")
    assert result.err == (
        "error: plain.h5: to go on from, the file must be one that blobnet train wrote. Hint: blobnet inspect shows "
        "what it holds.\n"
    )


def test_ctrl_c_leaves_a_checkpoint_to_resume_from(run, net, tmp_path) -> None:
    arguments = [net, "--dataset", "digits", "--batch-size", "32", "--schedule", "constant"]
    process = subprocess.Popen(
        [*TRAIN, *arguments, "--epochs", "5000", "--output", "stopped.h5"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not (tmp_path / "stopped.h5").exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err
    place = r"(?:in epoch (\d+), after step (\d+)|epoch (\d+))"  # Right behind an epoch there is no step.
    match = re.fullmatch(rf"interrupted; the last checkpoint is stopped\.h5 \({place}\)", err.splitlines()[-1])
    assert match, err
    state = bn.load("stopped.h5").training_state
    assert state is not None
    epochs = int(match[1]) - 1 if match[1] else int(match[3])
    assert state.epoch == epochs
    assert match[2] is None or state.step == int(match[2])
    assert run("train", *arguments, "--epochs", epochs + 1, "--output", "stopped.h5", "--resume").status == 0
    assert run("train", *arguments, "--epochs", epochs + 1, "--output", "whole.h5").status == 0
    assert Path("stopped.h5").read_bytes() == Path("whole.h5").read_bytes()


def test_what_is_not_given_is_as_it_was(run, net) -> None:
    given = ["--batch-size", 32, "--accumulate", 2, "--shards", 2, "--sync-batch-norm", "--seed", 3, "--average", 0.9]
    given += ["--schedule", "constant", "--augment", "crop=1", "--freeze", "*/bias", "--label-smoothing", 0.1]
    arguments = ["train", net, "--dataset", "digits", "--label-smoothing", 0.1]
    assert run(*arguments, *given, "--epochs", 2, "--output", "whole.h5").status == 0
    assert run(*arguments, *given, "--epochs", 1, "--output", "parts.h5").status == 0
    result = run(*arguments, "--epochs", 2, "--output", "parts.h5", "--resume")
    assert result.status == 0, result.err
    assert Path("parts.h5").read_bytes() == Path("whole.h5").read_bytes()


def test_a_finished_training_goes_on(run, trained) -> None:
    """With the optimizer of the file, its schedule spread over all epochs: as good as before, and better in the end."""
    Path("more.h5").write_bytes(trained.read_bytes())
    before = bn.load("more.h5").history
    arguments = ["train", "lenet5", "--dataset", "digits", "--output", "more.h5", "--resume"]
    result = run(*arguments, "--epochs", 4)
    assert result.status == 0, result.err
    assert "note: the learning rate is spread over 4 epochs in place of 2: it goes on at 0.0025\nepoch" in result.err
    history = bn.load("more.h5").history
    assert history["loss"][:2] == before["loss"]
    assert history["accuracy"][2] > before["accuracy"][1] - 0.02
    assert history["accuracy"][3] > before["accuracy"][1]
    # What is not said is as in the file: there is nothing left of 4 epochs.
    result = run(*arguments)
    assert result.out.startswith("nothing to do: more.h5 is trained for 4 epochs")
    result = run(*arguments, "--epochs", 5, "--schedule", "constant", "--learning-rate", 0.0005)
    assert "rate is another one than in the interrupted training: it goes on at 0.0005\nepoch" in result.err
    # And the hint of what is refused: the same weights, the last layer's too, with another optimizer.
    result = run(*arguments[:3], "digits", "--init-from", "more.h5", "--optimizer", "sgd", "--epochs", 1)
    assert result.status == 0, result.err
    assert "\ninit    weights of more.h5; new: nothing\n" in result.err
    tuned = bn.load("lenet5.h5")
    assert tuned.history["accuracy"][0] > history["accuracy"][1]


@pytest.mark.parametrize("step", [2, 5])
def test_ctrl_c_in_the_first_epoch_keeps_it(run, net, monkeypatch, step) -> None:
    arguments = ["train", net, *WITHIN]
    assert run(*arguments, "--output", "whole.h5").status == 0
    original = TrainingStep.update

    def update(training: TrainingStep, rate: float) -> None:
        original(training, rate)
        if training.number == step:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(TrainingStep, "update", update)
    result = run(*arguments, "--output", "parts.h5")
    assert result.status == 130
    said = f"interrupted; the last checkpoint is parts.h5 (in epoch 1, after step {step})"
    assert result.err.splitlines()[-1] == said
    monkeypatch.setattr(TrainingStep, "update", original)
    assert run(*arguments, "--output", "parts.h5", "--resume").status == 0
    assert Path("parts.h5").read_bytes() == Path("whole.h5").read_bytes()


def test_ctrl_c_before_the_first_step_has_ended(run, net, trained, monkeypatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    arguments = ["train", net, "--dataset", "digits", "--output", "a.h5", "--overwrite"]
    monkeypatch.setattr("blobnet.training.training_step.TrainingStep.update", interrupt)
    result = run(*arguments)
    assert result.status == 130
    assert result.err.splitlines()[-1] == "interrupted; there is no checkpoint yet"
    Path("a.h5").write_bytes(trained.read_bytes())
    assert run(*arguments).err.splitlines()[-1] == "interrupted; there is no checkpoint yet, a.h5 is as it was"
    assert Path("a.h5").read_bytes() == trained.read_bytes()


@pytest.mark.parametrize("moment", ["_check_target", "_flush_folder"])
def test_ctrl_c_while_a_file_is_written_waits_for_it(run, net, monkeypatch, moment) -> None:
    original, calls = getattr(atomic, moment), []

    def interrupt(*arguments: object) -> None:
        original(*arguments)
        calls.append(moment)
        if len(calls) == 5:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(atomic, moment, interrupt)
    result = run("train", net, "--dataset", "digits", "--epochs", 20)
    epoch = bn.load("net.h5").training_state.epoch
    assert result.status == 130
    assert 0 < epoch < 20
    assert result.err.splitlines()[-1] == f"interrupted; the last checkpoint is net.h5 (epoch {epoch})"
    assert sorted(path.name for path in Path().iterdir() if path.is_file()) == ["net.h5", "net.py"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_that_python_loses_is_still_heard(run, net, monkeypatch) -> None:
    """An exception in the callback of a weak reference goes nowhere."""
    original = TrainingStep.update

    def update(step: TrainingStep, rate: float) -> None:
        original(step, rate)
        if step.number == 30:  # in the second epoch
            with contextlib.suppress(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGINT)  # The first one waits for the end of the step.

    monkeypatch.setattr(TrainingStep, "update", update)
    result = run("train", net, "--dataset", "digits", "--epochs", 20)
    assert result.err.splitlines()[-1] == "interrupted; the last checkpoint is net.h5 (in epoch 2, after step 30)"


def test_ctrl_c_after_the_last_epoch_is_still_heard(run, net, monkeypatch) -> None:
    """No step's end comes that it could wait for; a sweep would go on with its next trial."""

    def interrupt(self: Callback, progress: object) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(_OutputFile, "end", interrupt)
    result = run("train", net, "--dataset", "digits", "--epochs", 2)
    assert result.status == 130
    assert result.err.splitlines()[-1] == "interrupted; the last checkpoint is net.h5 (epoch 2)"


def test_a_training_in_the_background_takes_no_ctrl_c(run, net) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert run("train", net, "--dataset", "digits", "--epochs", 1).status == 0
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_ctrl_c_while_data_are_loaded_names_the_checkpoint(run, trained, monkeypatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("blobnet.datasets.load", interrupt)
    result = run("train", "lenet5", "--dataset", "digits", "--output", trained, "--resume")
    assert result.status == 130
    assert result.err == f"interrupted; the last checkpoint is {trained} (epoch 2)\n"


WITHIN = ["--dataset", "digits", "--batch-size", 32, "--epochs", 2, "--optimizer", "sgd", "--augment", "crop=1"]


def test_a_training_goes_on_in_the_middle_of_an_epoch(run, net, monkeypatch) -> None:
    arguments = ["train", net, *WITHIN]
    assert run(*arguments, "--output", "whole.h5").status == 0
    original = TrainingStep.update

    def update(step: TrainingStep, rate: float) -> None:
        original(step, rate)
        if step.number == 63:  # in the second epoch, of 45 steps
            raise KeyboardInterrupt

    monkeypatch.setattr(TrainingStep, "update", update)
    result = run(*arguments, "--output", "parts.h5", "--checkpoint-steps", 20)
    assert result.status == 130
    assert result.err.splitlines()[-1] == ("interrupted; the last checkpoint is parts.h5 (in epoch 2, after step 60)")
    assert "resumable   yes, in epoch 2 (step 60), with SGD(" in run("inspect", "parts.h5").out
    monkeypatch.setattr(TrainingStep, "update", original)
    result = run(*arguments, "--output", "parts.h5", "--resume", "--checkpoint-steps", 1000)
    assert (result.status, result.err.splitlines()[-1].split()[0]) == (0, "2/2")
    assert Path("parts.h5").read_bytes() == Path("whole.h5").read_bytes()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["Ctrl-C", "SIGTERM"])
def test_a_signal_waits_for_the_step_and_its_file(run, net, monkeypatch, number, status) -> None:
    arguments = ["train", net, *WITHIN]
    assert run(*arguments, "--output", "whole.h5").status == 0
    original = TrainingStep.compute_gradients

    def compute(step: TrainingStep, batch: object) -> None:
        original(step, batch)
        if step.number == 52:
            signal.raise_signal(number)

    monkeypatch.setattr(TrainingStep, "compute_gradients", compute)
    result = run(*arguments, "--output", "parts.h5", "--checkpoint-steps", 1000)
    assert result.status == status
    assert result.err.splitlines()[-1] == ("interrupted; the last checkpoint is parts.h5 (in epoch 2, after step 53)")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    monkeypatch.setattr(TrainingStep, "compute_gradients", original)
    assert run(*arguments, "--output", "parts.h5", "--resume").status == 0
    assert Path("parts.h5").read_bytes() == Path("whole.h5").read_bytes()


def test_a_second_ctrl_c_waits_for_nothing(run, net, monkeypatch) -> None:
    original = TrainingStep.compute_gradients

    def compute(step: TrainingStep, batch: object) -> None:
        original(step, batch)
        if step.number == 52:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(TrainingStep, "compute_gradients", compute)
    result = run("train", net, *WITHIN, "--checkpoint-steps", 50)
    assert result.err.splitlines()[-1] == "interrupted; the last checkpoint is net.h5 (in epoch 2, after step 50)"


@pytest.mark.parametrize("option", [[], ["--save-best"]])
def test_sigterm_writes_a_file_where_no_steps_were_asked_for(run, net, monkeypatch, option) -> None:
    arguments = ["train", net, *WITHIN, *option]
    assert run(*arguments, "--output", "whole.h5").status == 0
    original = TrainingStep.compute_gradients

    def compute(step: TrainingStep, batch: object) -> None:
        original(step, batch)
        if step.number == 52:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(TrainingStep, "compute_gradients", compute)
    result = run(*arguments, "--output", "parts.h5")
    assert result.status == 143
    assert result.err.splitlines()[-1] == "interrupted; the last checkpoint is parts.h5 (in epoch 2, after step 53)"
    assert not Path(".parts.h5.lock").exists()
    monkeypatch.setattr(TrainingStep, "compute_gradients", original)
    assert run(*arguments, "--output", "parts.h5", "--resume").status == 0
    whole, parts = bn.load("whole.h5"), bn.load("parts.h5")
    assert parts.history == whole.history
    for name, values in whole.weights.items():
        np.testing.assert_array_equal(parts.weights[name], values)


@pytest.mark.parametrize("option", [["--save-best"], ["--early-stopping", 2]])
@pytest.mark.parametrize("averaged", [[], ["--average", 0.5]])
def test_files_of_steps_hold_the_best_epoch_too(run, net, monkeypatch, option, averaged) -> None:
    arguments = ["train", net, "--dataset", "digits", "--batch-size", 32, "--epochs", 6, "--optimizer", "sgd"]
    arguments += ["--learning-rate", 2, "--schedule", "constant", *option, *averaged]
    whole = run(*arguments, "--checkpoint-steps", 1000, "--output", "whole.h5")
    assert whole.status == 0
    losses = bn.load("whole.h5").history["validation_loss"]
    best = int(np.argmin(losses)) + 1
    assert 1 < best < len(losses), losses  # Else there is nothing to see.
    assert f"after {best} epoch" in whole.out
    # The file of the same training without files of steps is that of the best epoch.
    assert run(*arguments, "--output", "plain.h5").out == whole.out.replace("whole.h5", "plain.h5")
    plain, model = bn.load("plain.h5"), bn.load("whole.h5")
    for name, values in plain.weights.items():
        np.testing.assert_array_equal(model.weights[name], values)

    original = TrainingStep.update
    last = (len(losses) - 1) * 41 + 30  # in the last epoch, of 41 steps

    def update(step: TrainingStep, rate: float) -> None:
        original(step, rate)
        if step.number == last + 5:
            raise KeyboardInterrupt

    monkeypatch.setattr(TrainingStep, "update", update)
    result = run(*arguments, "--checkpoint-steps", last, "--output", "parts.h5")
    assert f"in epoch {len(losses)}, after step {last})" in result.err
    for name, values in bn.load("parts.h5").weights.items():
        np.testing.assert_array_equal(model.weights[name], values)
    monkeypatch.setattr(TrainingStep, "update", original)
    result = run(*arguments, "--checkpoint-steps", 1000, "--output", "parts.h5", "--resume")
    assert result.out == whole.out.replace("whole.h5", "parts.h5")
    assert Path("parts.h5").read_bytes() == Path("whole.h5").read_bytes()
    # Once more there is nothing left to do.
    again = run(*arguments, "--checkpoint-steps", 1000, "--output", "parts.h5", "--resume")
    assert again.status == 0
    assert f"validation loss {losses[best - 1]:.4f}" in again.out or f"(loss {losses[best - 1]:.4f})" in again.out
    assert Path("parts.h5").read_bytes() == Path("whole.h5").read_bytes()


def test_an_error_in_the_middle_of_a_training_names_the_last_checkpoint(run, net, monkeypatch) -> None:
    original = TrainingStep.update

    def update(step: TrainingStep, rate: float) -> None:
        original(step, rate)
        if step.number == 63:
            raise DataError("x", "the file must stay as long as it was", hint="do not write to data")

    monkeypatch.setattr(TrainingStep, "update", update)
    result = run("train", net, *WITHIN)
    assert result.status == 1
    assert result.err.splitlines()[-1] == (
        "error: x: the file must stay as long as it was. Hint: do not write to data. The last checkpoint is net.h5 "
        "(epoch 1)."
    )
