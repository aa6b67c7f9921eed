"""Files in the middle of an epoch: training goes on from them as if it had never stopped, to the last bit."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blobnet.callbacks import Callback, Checkpoint, EarlyStopping
from blobnet.device.device import Device
from blobnet.errors import DataError, OptionError, TrainingError
from blobnet.files.checkpoint import inspect
from blobnet.model import Model, load
from blobnet.optimizers import SGD, Adam
from blobnet.schedules import Cosine
from blobnet.training.trainer import Progress
from tests.tiny import digits, share_of_memory, tiny_model

COUNT = 45
X, Y = digits(COUNT)


class StopError(Exception):
    """What ends a training."""


class StopAt(Callback):
    """Ends a training behind a step, as a crash would; counts the steps that it saw."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.seen: list[int] = []

    def step_end(self, progress: Progress) -> None:
        self.seen.append(progress.trainer.step.number)
        if progress.trainer.step.number == self.step:
            raise StopError


class Indexed:
    """Samples by their numbers, from an object of a user's own."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        return X[rows]


def batches() -> list[tuple[np.ndarray, np.ndarray]]:
    """A stream; one of its batches is larger than those of training."""
    places = [0, 8, 11, 30, 38, COUNT]
    return [(X[a:b], Y[a:b]) for a, b in pairwise(places)]


def fit(model: Model, device: Device, x: Any = X, y: Any = Y, **settings: Any) -> Model:
    given: dict[str, Any] = {"epochs": 3, "batch_size": 8, "optimizer": SGD(0.05, momentum=0.9), "seed": 7}
    model.fit(x, y, device=device, verbose=False, **(given | settings))
    return model


def everything(model: Model) -> tuple[Any, ...]:
    """The bits of what a training leaves."""
    state = model.training_state
    assert state is not None
    weights, slots = ({name: values.tobytes() for name, values in found.items()} for found in
                      (model.weights, state.optimizer_state))  # fmt: skip
    return weights, slots, repr(model.history), state.epoch, state.step, state.place


def interrupted(device: Device, path: Path, every: int, stop: int, *data: Any, **settings: Any) -> Model:
    """What the file holds of a training that ended behind a step."""
    callbacks = [Checkpoint(path, every_steps=every), StopAt(stop)]
    with pytest.raises(StopError):
        fit(tiny_model(), device, *data, callbacks=callbacks, **settings)
    return load(path)


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "adam and a cosine": {"optimizer": Adam(Cosine(0.01, warmup_epochs=0.5))},
    "sums of batches": {"accumulate": 2},
    "averages": {"average": 0.9, "optimizer": Adam(0.01)},
    "weights": {"sample_weights": np.linspace(0.1, 2, COUNT), "class_weights": "balanced"},
    "augmentation": {"augment": "crop=2, flip, brightness=0.3, mixup, cutmix"},
    "a teacher": {"teacher": tiny_model(5), "augment": "crop=2, mixup"},
    "validation": {"validation": (X[:9], Y[:9]), "metrics": ["f1"]},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", ["array", "object", "stream"])
def test_the_same_bits_as_without_an_interruption(device: Device, tmp_path: Path, case: str, kind: str) -> None:
    settings = dict(CASES[case])
    data = {"array": (X, Y), "object": (Indexed(), Y), "stream": (batches(), None)}[kind]
    if kind == "stream":
        settings |= {"sample_weights": None, "class_weights": None}
        settings["optimizer"] = SGD(0.05, momentum=0.9)  # A stream of unequal batches has no steps to plan with.
    whole = fit(tiny_model(), device, *data, **settings)
    # In the second epoch, of six batches or of a stream's seven, and of half as many sums of two.
    every, stop = (5, 5) if case == "sums of batches" else (8, 10)
    path = tmp_path / "model.h5"
    model = interrupted(device, path, every, stop, *data, **settings)
    state = model.training_state
    assert state is not None
    assert (state.epoch, state.step) == (1, every)
    steps = -(-(7 if kind == "stream" else 6) // settings.get("accumulate", 1))
    assert state.place["batches"] == (every - steps) * settings.get("accumulate", 1)
    assert model.history["loss"] == whole.history["loss"][:1]
    assert everything(fit(model, device, *data, resume=True, **settings)) == everything(whole)


def test_every_step_is_a_place_to_go_on_from(device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = everything(fit(tiny_model(), device, epochs=2, augment="flip"))
    share_of_memory(monkeypatch, 0)
    steps = -(-COUNT // 8)
    for step in range(1, 2 * steps):
        model = interrupted(device, tmp_path / "model.h5", 1, step, augment="flip", epochs=2)
        stop = StopAt(-1)
        assert everything(fit(model, device, epochs=2, resume=True, callbacks=[stop])) == whole
        assert stop.seen == list(range(step + 1, 2 * steps + 1))


def test_files_do_not_change_a_training(device: Device, tmp_path: Path) -> None:
    whole = fit(tiny_model(), device)
    files = fit(tiny_model(), device, callbacks=[Checkpoint(tmp_path / "model.h5", every_steps=1)])
    assert everything(files) == everything(whole)
    assert everything(load(tmp_path / "model.h5")) == everything(whole)


def test_a_file_says_where_it_is(device: Device, tmp_path: Path) -> None:
    model = interrupted(device, tmp_path / "model.h5", 4, 5)
    assert "resumable   yes, in epoch 1 (step 4), with SGD(" in inspect(tmp_path / "model.h5")
    assert model.history == {}
    assert 0 < model.evaluate(X, Y, device=device)["loss"] < 10
    trained = model.weights["logits/weight"]
    assert not np.array_equal(trained, tiny_model().weights["logits/weight"])


def test_a_generator_is_run_through_to_where_training_was(device: Device, tmp_path: Path) -> None:
    whole = everything(fit(tiny_model(), device, iter(batches()), None, epochs=1))
    model = interrupted(device, tmp_path / "model.h5", 3, 4, iter(batches()), None, epochs=1)
    assert everything(fit(model, device, iter(batches()), None, epochs=1, resume=True)) == whole
    rest = iter(batches()[4:])
    message = r"x: the stream must give the batches again that were done before.*done=3, received=1.*start it anew"
    with pytest.raises(DataError, match=message):
        fit(load(tmp_path / "model.h5"), device, rest, None, epochs=1, resume=True)


def test_what_must_not_change_in_the_middle_of_an_epoch(device: Device, tmp_path: Path) -> None:
    path = tmp_path / "model.h5"
    interrupted(device, path, 3, 4)
    with pytest.raises(OptionError, match=r"data must come as before.*now=a stream"):
        fit(load(path), device, batches(), None, resume=True)
    with pytest.raises(OptionError, match="the samples must be that of the interrupted training"):
        fit(load(path), device, X[:40], Y[:40], resume=True)
    best = EarlyStopping("loss")
    model = fit(tiny_model(), device, epochs=1)
    model = interrupted(device, path, 8, 9)
    with pytest.raises(OptionError, match="cannot restore that epoch's weights"):
        fit(model, device, resume=True, callbacks=[best])
    interrupted(device, path, 3, 4, batches(), None)
    with pytest.raises(OptionError, match=r"data must come as before.*now=45 samples"):
        fit(load(path), device, resume=True)


@pytest.mark.parametrize("wrong", [{"batches": 0}, {"totals": [1.0]}, {"totals": "many"}, {"samples": None}])
def test_a_place_that_cannot_be(device: Device, tmp_path: Path, wrong: dict[str, Any]) -> None:
    model = interrupted(device, tmp_path / "model.h5", 3, 4)
    state = model.training_state
    assert state is not None
    model.training_state = replace(state, place=state.place | wrong)
    with pytest.raises(OptionError, match="resume: the state must say how many batches of its epoch are done"):
        fit(model, device, resume=True)


def test_a_training_that_has_come_apart_keeps_the_file_before(device: Device, tmp_path: Path) -> None:
    path = tmp_path / "model.h5"
    wrong = X.copy()
    order = np.random.default_rng([7, 0]).permutation(COUNT)
    wrong[order[25]] = 3e38  # in the fourth batch
    with pytest.raises(TrainingError, match=r"the loss must stay finite.*epoch=1, step=3"):
        fit(tiny_model(), device, wrong, Y, callbacks=[Checkpoint(path, every_steps=1)])
    state = load(path).training_state
    assert state is not None
    assert (state.step, state.place["batches"]) == (3, 3)
    with pytest.raises(TrainingError, match=r"the loss must stay finite.*epoch=1, step=3"):
        fit(load(path), device, wrong, Y, resume=True)
