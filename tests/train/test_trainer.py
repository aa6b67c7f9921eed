"""Whole trainings: their numbers, their repeatability, resuming, and what they refuse."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import pickle
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blobnet as bn
from blobnet import layers, models, optimizers, schedules
from blobnet.callbacks import Callback, Checkpoint, CSVLog
from blobnet.data.samples import sources_for
from blobnet.device.device import Device
from blobnet.device.memory import Memory
from blobnet.errors import BlobnetWarning, DataError, DeviceError, OptionError, PlanError, ShapeError, TrainingError
from blobnet.examination.reference import losses as reference_losses
from blobnet.execution import executor
from blobnet.execution.executor import IN_PARTS
from blobnet.execution.inference import Evaluator
from blobnet.execution.loader import IndexedReader
from blobnet.losses import BinaryCrossEntropy, CrossEntropy, MeanSquaredError
from blobnet.memory.blob import FloatArray
from blobnet.model import Model, Sequential
from blobnet.network.parameters import parameter_table
from blobnet.optimizers import LAMB, SGD, Adam, Lion, Muon, Optimizer, RMSprop
from blobnet.optimizers.base import MAX_PARTIALS
from blobnet.planning import Plan, make_plan
from blobnet.training import kept, trainer
from blobnet.training.settings import TrainingSettings
from blobnet.training.trainer import Progress
from blobnet.training.training_step import TrainingStep
from tests.reference import counts
from tests.reference.compare import assert_close
from tests.tiny import digits, tiny_model
from tests.torch_graphs import Network, loss_sums

GOLDEN = Path(__file__).parent / "golden" / "tiny_convnet.json"
ROOT = Path(__file__).parents[2]


def fit(model: Model, device: Device, count: int = 22, **options: Any) -> Model:
    """Trains on a few digits, quietly, with a last batch that is short."""
    settings: dict[str, Any] = {"epochs": 2, "batch_size": 8, "optimizer": Adam(1e-2), "verbose": False}
    model.fit(*digits(count), device=device, **(settings | options))
    return model


def bits(model: Model) -> dict[str, bytes]:
    return {name: values.tobytes() for name, values in model.weights.items()}


# -- numbers -----------------------------------------------------------------------------------------------------------


def test_lenet5_learns_eight_images_by_heart(device: Device) -> None:
    from blobnet.models.lenet5 import lenet5

    x, y = digits(8)
    model = lenet5((1, 8, 8), 10)
    history = model.fit(x, y, epochs=59, batch_size=8, optimizer=Adam(3e-3), device=device, verbose=False)
    assert model.evaluate(x, y)["accuracy"] == 1.0
    assert history["loss"][-1] < 0.1 * history["loss"][0]


def golden_steps(device: Device) -> list[float]:
    """The losses of ten steps of the tiny network, on ten batches of eight digits."""
    model = tiny_model(seed=1)
    given: dict[str, Any] = {"optimizer": SGD(0.05, momentum=0.9), "batch_size": 8, "seed": 2}
    training = TrainingStep(device, model.graph, model.weights, TrainingSettings(loss=CrossEntropy(), **given))
    losses = []
    for step in range(10):
        x, y = digits(8, first=8 * step)
        training.reset_totals()
        training.load_batch(x, y.astype(np.int32))
        training.compute_gradients(8)
        losses.append(float(training.totals()[0]) / 8)
        training.update(0.05)
    return losses


def torch_steps(
    optimizer_of: Any,
    batches: list[tuple[FloatArray, Any]],
    model: Model,
    seed: int,
    sam: float | None = None,
    *,
    adaptive: bool = False,
) -> Any:
    """(losses, weights) of training ``model`` on ``batches`` in PyTorch, float64, with blobnet's masks of dropout.

    With ``sam`` in the two steps of the implementation that is published (github.com/davda54/sam), with the norms'
    statistics off in the second one, as its authors advise.
    """
    import torch

    network = Network(model.graph, model.weights)
    optimizer = optimizer_of([network.tensors[name] for name in network.trained])
    losses = []
    for step, (x, y) in enumerate(batches):
        optimizer.zero_grad()
        value, weight = loss_sums(CrossEntropy(), network.output(x, training=True, seed=seed, step=step), y)
        loss = value / weight
        loss.backward()
        if sam is not None:
            trained = [network.tensors[name] for name in network.trained]
            old = {name: values.detach().clone() for name, values in network.tensors.items()}
            with torch.no_grad():
                slopes = [(values.abs() if adaptive else 1.0) * values.grad for values in trained]
                scale = sam / (torch.norm(torch.stack([slope.norm(p=2) for slope in slopes]), p=2) + 1e-12)
                for values in trained:
                    values.add_((torch.pow(values, 2) if adaptive else 1.0) * values.grad * scale)
            optimizer.zero_grad()
            value, weight = loss_sums(CrossEntropy(), network.output(x, training=True, seed=seed, step=step), y)
            (value / weight).backward()
            with torch.no_grad():
                for name, values in network.tensors.items():
                    values.copy_(old[name])
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, {name: values.detach().numpy() for name, values in network.tensors.items()}


def test_golden_losses(device: Device) -> None:
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    found = golden_steps(device)
    assert_close(np.array(found), np.array(golden["losses"]), relative=1e-4, absolute=0.0, what="losses")


def test_golden_losses_are_those_of_pytorch() -> None:
    torch = pytest.importorskip("torch")
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    batches = [digits(8, first=8 * step) for step in range(10)]
    losses, _ = torch_steps(
        lambda values: torch.optim.SGD(values, lr=0.05, momentum=0.9), batches, tiny_model(seed=1), seed=2
    )
    assert_close(np.array(losses), np.array(golden["losses"]), relative=1e-7, absolute=0.0, what="losses")


@pytest.mark.parametrize("kind", ["SGD", "Adam", "SGD, sam", "Adam, sam_adaptive"])
def test_epochs_with_a_short_last_batch_against_pytorch(device: Device, kind: str) -> None:
    torch = pytest.importorskip("torch")
    seed, count, size = 5, 22, 8
    x, y = digits(count)
    batches = []
    for epoch in range(2):
        order = np.random.default_rng([seed, epoch]).permutation(count)
        batches += [(x[order[first : first + size]], y[order[first : first + size]]) for first in range(0, count, size)]
    assert [len(batch[0]) for batch in batches] == [8, 8, 6, 8, 8, 6]
    is_sgd, sam = kind.startswith("SGD"), {"SGD, sam": 0.3, "Adam, sam_adaptive": 2.0}.get(kind)
    more: dict[str, Any] = {"sam": sam, "sam_adaptive": "adaptive" in kind}
    optimizer: Optimizer = SGD(0.05, momentum=0.9, nesterov=True, **more) if is_sgd else Adam(1e-2, **more)

    def torch_optimizer(values: Any) -> Any:
        if is_sgd:
            return torch.optim.SGD(values, lr=0.05, momentum=0.9, nesterov=True)
        return torch.optim.Adam(values, lr=1e-2)

    losses, weights = torch_steps(torch_optimizer, batches, tiny_model(), seed, sam, adaptive="adaptive" in kind)
    model = fit(tiny_model(), device, count, optimizer=optimizer, seed=seed)
    sizes = np.array([len(batch[0]) for batch in batches])
    means = (np.array(losses) * sizes).reshape(2, -1).sum(axis=1) / count
    assert_close(np.array(model.history["loss"]), means, relative=1e-4, absolute=0.0, what="loss")
    for name, values in model.weights.items():
        # Adam divides by the gradient's size: where it is nearly 0, its rounding is a large part of the step.
        absolute = 2e-5 if is_sgd else 2e-4
        assert_close(values, weights[name], relative=1e-3, absolute=absolute, what=name)


def test_a_batch_larger_than_the_data_is_one_short_batch(device: Device) -> None:
    small, large = (fit(tiny_model(), device, 5, batch_size=size, optimizer=SGD(0.05)) for size in (5, 64))
    # Plans of other batch sizes may take other kernels, which round otherwise.
    for name, values in large.weights.items():
        assert_close(values, small.weights[name], relative=1e-4, absolute=1e-5, what=name)
    assert_close(np.array(large.history["loss"]), np.array(small.history["loss"]), relative=1e-5, absolute=0.0, what="")


def test_evaluate_is_what_numpy_makes_of_predict(device: Device) -> None:
    model = fit(tiny_model(), device)
    x, y = digits(30, first=100)
    found = model.evaluate(x, y, batch_size=7)
    logits = model.predict(x, batch_size=11)
    assert logits.shape == (30, 10)
    assert logits.dtype == np.float32
    wanted = {
        "loss": reference_losses.cross_entropy(logits, y)[0],
        "accuracy": counts.accuracy_count(logits, y) / 30,
        "top_5": counts.top5_count(logits, y) / 30,
    }
    assert found == pytest.approx(wanted, rel=1e-5)
    assert wanted["accuracy"] == (logits.argmax(axis=1) == y).mean()


def test_predict_does_not_depend_on_the_batches(device: Device) -> None:
    model = fit(tiny_model(), device)
    x, _ = digits(13)
    whole = model.predict(x)
    for batch_size in (1, 5, 13, 100):
        assert np.array_equal(model.predict(x, batch_size=batch_size), whole), batch_size
    assert np.array_equal(np.concatenate([model.predict(x[place : place + 1]) for place in range(13)]), whole)


def test_regression_with_targets(device: Device) -> None:
    random = np.random.default_rng(0)
    x = random.standard_normal((40, 3)).astype(np.float32)
    y = (x @ np.array([[1.0, -2.0], [0.5, 0.0], [0.0, 3.0]])).astype(np.float32)
    model = Sequential([layers.Input(3), layers.Dense(2)])
    history = model.fit(
        x, y, epochs=60, batch_size=16, optimizer=Adam(0.1), loss=MeanSquaredError(), device=device, verbose=False
    )
    assert list(history) == ["loss"]
    assert model.evaluate(x, y) == pytest.approx({"loss": float(((model.predict(x) - y) ** 2).mean())}, rel=1e-4)
    assert model.evaluate(x, y)["loss"] < 1e-2


# -- repeatability -----------------------------------------------------------------------------------------------------


def test_same_seed_same_bits_and_bytes_other_seed_others(device: Device, tmp_path: Path) -> None:
    files = []
    for place, seed in enumerate((3, 3, 4)):
        model = fit(tiny_model(), device, seed=seed, validation=digits(9, first=200))
        model.save(tmp_path / f"{place}.h5")
        files.append((bits(model), (tmp_path / f"{place}.h5").read_bytes(), model.history))
    assert files[0] == files[1]
    assert all(files[0][part] != files[2][part] for part in range(3))


def test_another_context_on_the_same_device_gives_the_same_bits(device: Device) -> None:
    assert bits(fit(tiny_model(), device)) == bits(fit(tiny_model(), Device(device.info)))


def test_predicting_meanwhile_changes_nothing(device: Device) -> None:
    x, y = digits(9, first=300)

    class Predicting(Callback):
        def epoch_end(self, progress: Progress) -> None:
            other = tiny_model()
            other.set_weights(progress.trainer.weights())
            evaluator = Evaluator.of(device, other.graph, progress.trainer.step.parameters, 4)
            assert np.array_equal(
                *evaluator.predict(IndexedReader(sources_for(evaluator.plan.request.graph, x, "x")), len(x)),
                other.predict(x, device=device),
            )
            other.evaluate(x, y)

    alone = fit(tiny_model(), device, epochs=3)
    assert bits(fit(tiny_model(), device, epochs=3, callbacks=[Predicting()])) == bits(alone)
    validated = fit(tiny_model(), device, epochs=3, validation=(x, y))
    assert bits(validated) == bits(alone)
    assert validated.history["validation_loss"][-1] == pytest.approx(alone.evaluate(x, y)["loss"], rel=1e-6)


def test_debug_mode_changes_nothing(device: Device) -> None:
    assert bits(fit(tiny_model(), device, debug=True)) == bits(fit(tiny_model(), device))


# fashion_cnn has no other layers, and takes half a minute to build.
@pytest.mark.parametrize("name", ["lenet5", "resnet8"])
def test_shipped_models_keep_the_promise(device: Device, name: str) -> None:
    make = getattr(models, name)
    fit(make((1, 8, 8), 10), device, 5, epochs=1, batch_size=3, debug=True)


# -- resuming ----------------------------------------------------------------------------------------------------------

OPTIMIZERS = {
    "SGD": SGD(schedules.Cosine(0.05, 1.0), momentum=0.9, weight_decay=1e-3),
    "Adam": Adam(1e-2, clip_norm=1.0),
    "RMSprop": RMSprop(schedules.Step(1e-2, 2), momentum=0.5),
    "Lion": Lion(1e-3, clip_value=0.1),
    "LAMB": LAMB(1e-2, decays="all"),
    "Muon": Muon(layer_decay=0.7, lookahead=4),
    "SAM": SGD(schedules.Cosine(0.05, 1.0), momentum=0.9, sam=0.1),
}


class Interrupt(Callback):
    """Ctrl-C after an epoch; it must come behind the checkpoint."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def epoch_end(self, progress: Progress) -> None:
        if progress.trainer.epoch == self.epoch:
            raise KeyboardInterrupt


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_resumed_training_is_uninterrupted_training(device: Device, tmp_path: Path, kind: str) -> None:
    optimizer, part, whole = OPTIMIZERS[kind], tmp_path / "part.h5", tmp_path / "whole.h5"
    options: dict[str, Any] = {"epochs": 4, "seed": 11, "validation": digits(9, first=200)}
    wanted = fit(tiny_model(), device, optimizer=optimizer, callbacks=[Checkpoint(whole)], **options)
    with pytest.raises(KeyboardInterrupt):
        fit(tiny_model(), device, optimizer=optimizer, callbacks=[Checkpoint(part), Interrupt(2)], **options)
    loaded = bn.load(part)
    assert loaded.training_state is not None
    assert (loaded.training_state.epoch, loaded.training_state.step) == (2, 6)
    assert len(loaded.history["loss"]) == 2
    # Without an optimizer and a loss: those of the file.
    found = fit(loaded, device, optimizer=None, resume=True, callbacks=[Checkpoint(part)], **options)
    assert bits(found) == bits(wanted)
    assert found.history == wanted.history
    assert part.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize("from_file", [False, True])
def test_resume_needs_nothing_again(device: Device, tmp_path: Path, from_file: bool) -> None:
    """What is not given is as it was, each of the settings."""
    x, y = digits(48)
    path = tmp_path / "part.h5"
    settings: dict[str, Any] = {"batch_size": 8, "accumulate": 2, "shards": 2, "sync_batch_norm": True, "seed": 5}
    settings |= {"loss": CrossEntropy(0.1), "loss_weights": 2.0, "average": 0.9, "freeze": "conv1/bias", "epochs": 3}
    settings |= {"augment": "crop=1, flip", "class_weights": {3: 2.0}}
    settings |= {"optimizer": SGD(schedules.Cosine(0.02), momentum=0.9)}
    more: dict[str, Any] = {"device": device, "verbose": False}
    wanted, part = tiny_model(), tiny_model()
    wanted.fit(x, y, **settings, **more)
    with pytest.raises(KeyboardInterrupt):
        part.fit(x, y, callbacks=[Checkpoint(path), Interrupt(1)], **settings, **more)
    found = bn.load(path) if from_file else part
    found.fit(x, y, resume=True, **more)
    assert bits(found) == bits(wanted)
    assert found.history == wanted.history
    assert found.training_state is not None
    assert wanted.training_state is not None
    assert found.training_state.settings == wanted.training_state.settings


def test_resume_in_memory_and_nothing_left_to_do(device: Device) -> None:
    wanted = fit(tiny_model(), device, epochs=3)
    model = fit(tiny_model(), device, epochs=1)
    fit(model, device, epochs=3, resume=True)
    assert bits(model) == bits(wanted)
    assert model.history == wanted.history
    fit(model, device, epochs=3, resume=True)
    assert bits(model) == bits(wanted)
    assert model.history == wanted.history


def test_a_history_keeps_its_columns_when_validation_comes_and_goes(device: Device, tmp_path: Path) -> None:
    model = fit(tiny_model(), device, epochs=1)
    log = CSVLog(tmp_path / "log.csv")
    fit(model, device, epochs=2, resume=True, validation=digits(5, first=50), callbacks=[log])
    fit(model, device, epochs=3, resume=True, callbacks=[log])
    losses = model.history["validation_loss"]
    assert [math.isnan(value) for value in losses] == [True, False, True]
    assert {len(values) for values in model.history.values()} == {3}
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 4


_CHILD = """
    import sys
    from blobnet.callbacks import Checkpoint
    from blobnet.device.device import Device
    from blobnet.optimizers import SGD
    from tests.tiny import digits, tiny_model

    class Slow(Checkpoint):
        def epoch_end(self, progress):
            super().epoch_end(progress)
            print(progress.trainer.epoch, flush=True)

    x, y = digits(22)
    tiny_model().fit(x, y, epochs=2000, batch_size=8, optimizer=SGD(0.02, momentum=0.9), seed=7, verbose=False,
                     device=Device(sys.argv[2]) if len(sys.argv) > 2 else None, callbacks=[Slow(sys.argv[1])])
"""


def test_a_killed_training_can_be_resumed(device: Device, tmp_path: Path) -> None:
    path = tmp_path / "model.h5"
    address = f"{device.info.platform_index}:{device.info.device_index}"
    command = [sys.executable, "-c", textwrap.dedent(_CHILD), str(path), address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as child:
        assert child.stdout is not None
        epochs = [int(child.stdout.readline()) for _ in range(3)]
        assert epochs == [1, 2, 3]
        time.sleep(0.05)  # somewhere in an epoch, or in the middle of writing
        child.send_signal(signal.SIGKILL)
    model = bn.load(path)
    assert model.training_state is not None
    reached = model.training_state.epoch
    assert reached >= 3
    optimizer = SGD(0.02, momentum=0.9)
    wanted = fit(tiny_model(), device, epochs=reached + 2, optimizer=optimizer, seed=7)
    found = fit(model, device, epochs=reached + 2, optimizer=None, resume=True, seed=7)
    assert bits(found) == bits(wanted)
    assert found.history == wanted.history
    # What the killed process left behind goes with the next file.
    model.save(path)
    assert [item.name for item in tmp_path.iterdir()] == ["model.h5"]


def test_resume_refuses_another_training(device: Device, tmp_path: Path) -> None:
    path = tmp_path / "model.h5"
    fit(tiny_model(), device, callbacks=[Checkpoint(path)])
    for options, rule in (
        ({"optimizer": SGD(0.1)}, r"resume: the optimizer must be that of the interrupted training\..*Adam.*SGD"),
        (
            {"optimizer": Adam(0.5, beta1=0.8)},
            r"resume: the optimizer must be that of the interrupted training\. Received saved=beta1=0.9, now=beta1=0.8",
        ),
        ({"batch_size": 9}, r"resume: the batch size must be that of the interrupted training\..*8.*9"),
        ({"seed": 1}, r"resume: the seed must be that of the interrupted training\. Received saved=0, now=1"),
        ({"loss": CrossEntropy(0.1)}, r"resume: the loss must be that of the interrupted training\..*0\.0.*0\.1"),
    ):
        model = bn.load(path)
        with pytest.raises(OptionError, match=rule):
            fit(model, device, resume=True, epochs=3, **options)
        assert bits(model) == bits(bn.load(path))
    fit(model, device, resume=True, epochs=3)
    assert bits(model) != bits(bn.load(path))


@pytest.mark.parametrize(
    ("planned", "optimizer", "note"),
    [
        (2, SGD(schedules.Cosine(0.02)), "is spread over 4 epochs in place of 2: it goes on at 0.009"),
        (4, SGD(0.003), "is another one than in the interrupted training: it goes on at 0.003"),
        (
            2,
            SGD(schedules.Cosine(0.01)),
            "is another one than in the interrupted training and is spread over 4 epochs in place of 2: it goes on at "
            "0.0045",
        ),
        (4, SGD(schedules.Cosine(0.02)), None),
    ],
)
def test_a_resumed_training_may_be_longer_and_learn_at_another_rate(
    device: Device, capsys: pytest.CaptureFixture[str], planned: int, optimizer: SGD, note: str | None
) -> None:
    """From what two epochs left, whatever they were planned for, the steps are those of a training of four."""

    class Stop(Callback):
        def epoch_end(self, progress: Progress) -> None:
            if progress.trainer.epoch == 2:
                progress.stop = "enough"

    settings: dict[str, Any] = {"batch_size": 4, "device": device}
    x, y = digits(16)
    model = tiny_model()
    model.fit(x, y, epochs=planned, optimizer=SGD(schedules.Cosine(0.02)), callbacks=Stop(), **settings)
    assert model.training_state is not None
    rates: list[float] = []

    class Rates(Callback):
        def step_end(self, progress: Progress) -> None:
            rates.append(progress.trainer.learning_rate)

    before = model.weights
    capsys.readouterr()
    model.fit(x, y, epochs=4, optimizer=optimizer, resume=True, callbacks=Rates(), **settings)
    assert rates == [optimizer.schedule.value(step, 4, 4) for step in range(8, 16)]
    assert any(not np.array_equal(model.weights[name], values) for name, values in before.items())
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note: ")]
    assert said == ([f"note: the learning rate {note}"] if note else [])


def test_resume_needs_a_state(device: Device, tmp_path: Path) -> None:
    rule = r"fit: resume needs a model loaded from a checkpoint\. Received resume=True\. Hint: load a file that"
    with pytest.raises(OptionError, match=rule):
        fit(tiny_model(), device, resume=True)
    tiny_model().save(tmp_path / "model.h5")
    with pytest.raises(OptionError, match=rule):
        fit(bn.load(tmp_path / "model.h5"), device, resume=True)
    model = fit(tiny_model(), device)
    model.initialize(1)
    with pytest.raises(OptionError, match=rule):
        fit(model, device, resume=True)


# -- memory ------------------------------------------------------------------------------------------------------------


def tiny_memory(device: Device, memory: int, allocation: int | None = None) -> Device:
    """The same device, as if it had little memory."""
    info = dataclasses.replace(device.info, memory=memory, largest_allocation=allocation or memory)
    return Device(info)


def training_plan(model: Model, batch_size: int, device: Device) -> Plan:
    return make_plan(model.graph, batch_size, loss=CrossEntropy(), training=True, tuning=device.tuning)


def needed(model: Model, batch_size: int, optimizer: Optimizer, device: Device) -> int:
    plan = training_plan(model, batch_size, device)
    return plan.bytes() + 4 * (sum(optimizer.memory(plan.request.parameters).values()) + MAX_PARTIALS)


def test_a_plan_larger_than_the_device_is_refused_before_anything_happens(device: Device, tmp_path: Path) -> None:
    model, optimizer = tiny_model(), Adam(1e-2)
    small = tiny_memory(device, needed(model, 37, optimizer, device))
    before = bits(model)
    callbacks = [Checkpoint(tmp_path / "model.h5"), CSVLog(tmp_path / "log.csv")]
    rule = r"all buffers must fit the device's memory\. Received batch_size=38, needed="
    with pytest.raises(PlanError, match=rule) as caught:
        fit(model, small, 40, batch_size=38, optimizer=optimizer, callbacks=callbacks)
    message = str(caught.value)
    assert message.startswith(f"plan for {device.info.name}: ")
    assert message.endswith(f"Hint: the largest batch that fits is 37. {IN_PARTS}")
    assert " MiB" in message
    assert list(tmp_path.iterdir()) == []
    assert bits(model) == before
    fit(model, small, 40, batch_size=37, optimizer=optimizer, callbacks=callbacks)
    assert (tmp_path / "model.h5").exists()


def test_the_largest_buffer_counts_too(device: Device) -> None:
    model = tiny_model()
    allocation = training_plan(model, 10, device).largest_allocation()
    small = tiny_memory(device, 1 << 40, allocation)
    with pytest.raises(PlanError, match=r"Hint: the largest batch that fits is 10\."):
        fit(model, small, 40, batch_size=11)


def test_a_device_on_which_nothing_fits(device: Device) -> None:
    model = tiny_model()
    with pytest.raises(PlanError, match=r"Hint: not even a batch of 1 fits\.$"):
        fit(model, tiny_memory(device, 1000))
    with pytest.raises(PlanError, match=r"Received batch_size=4, needed=.*Hint: not even a batch of 1 fits\.$"):
        model.predict(digits(2)[0], device=tiny_memory(device, 1000))


# -- bad input ---------------------------------------------------------------------------------------------------------

X, Y = digits(22)


def with_value(array: Any, value: float) -> Any:
    """A copy whose sample 3 begins with ``value``."""
    changed = array.astype(np.float32)
    changed.reshape(len(array), -1)[3, 0] = value
    return changed


TARGETS = np.zeros((22, 10), np.float32)
#: (what is given instead of what is right, the error, how its message begins)
BAD_FIT: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "shape": (
        {"x": X[:, :, :7]},
        DataError,
        r"x: each sample must have the shape of the model's input\. Received sample=\(1, 7, 8\), input=\(1, 8, 8\)",
    ),
    "axes": ({"x": X[:, 0]}, DataError, r"x: each sample must have the shape of the model's input"),
    "list": ({"x": X.tolist()}, DataError, r"x: x must be a numpy array\. Received type=list"),
    "no samples": ({"x": X[:0], "y": Y[:0]}, DataError, r"x: x must hold at least one sample"),
    "NaN": (
        {"x": with_value(X, math.nan)},
        DataError,
        r"x: x must hold finite float32 values\. Received index=\(3, 0, 0, 0\), value=nan",
    ),
    "infinity": ({"x": with_value(X, math.inf)}, DataError, r"x: x must hold finite float32 values"),
    "complex": ({"x": X.astype(complex)}, DataError, r"x: x must hold real numbers\. Received dtype=complex128"),
    "label 10": (
        {"y": with_value(Y, 10).astype(int)},
        DataError,
        r"y: class numbers must be below 10\. Received sample=3, label=10",
    ),
    "label -1": (
        {"y": with_value(Y, -1).astype(int)},
        DataError,
        r"y: class numbers must not be negative\. Received sample=3, label=-1",
    ),
    "fraction": (
        {"y": with_value(Y, 0.5)},
        DataError,
        r"y: class numbers must be whole numbers\. Received sample=3, label=0\.5",
    ),
    "text": ({"y": Y.astype(str)}, DataError, r"y: y must hold real numbers\. Received dtype=<U"),
    "labels short": (
        {"y": Y[:-1]},
        DataError,
        r"y: x and y must hold the same number of samples\. Received x_shape=\(22, 1, 8, 8\), y_shape=\(21,\)",
    ),
    "two hot": (
        {"y": np.eye(10, dtype=int)[Y] | np.eye(10, dtype=int)[3]},
        DataError,
        r"y: class numbers must have the shape \(samples,\)\. .*argmax",
    ),
    "validation": (
        {"validation": (X, Y[:-1])},
        DataError,
        r"validation y: x and y must hold the same number of samples",
    ),
    "validation NaN": ({"validation": (with_value(X, math.nan), Y)}, DataError, r"validation x: x must hold finite"),
    "targets": (
        {"loss": MeanSquaredError()},
        DataError,
        r"y: each target must have the shape of the model's output\. Received target=\(\), output=\(10\)",
    ),
    "targets transposed": (
        {"loss": MeanSquaredError(), "y": TARGETS.reshape(22, 5, 2)},
        DataError,
        r"y: each target must have the shape of the model's output\. Received target=\(5, 2\), output=\(10\)",
    ),
    "targets list": ({"loss": MeanSquaredError(), "y": [0.5] * 22}, DataError, r"y: each target must have the shape"),
    "targets NaN": (
        {"loss": MeanSquaredError(), "y": with_value(TARGETS, math.nan)},
        DataError,
        r"y: y must hold finite float32 values",
    ),
    "targets beyond 1": (
        {"loss": BinaryCrossEntropy(), "y": with_value(TARGETS, 1.5)},
        DataError,
        r"y: targets of BinaryCrossEntropy must be from 0 to 1\. Received smallest=0\.0, largest=1\.5",
    ),
    "epochs 0": ({"epochs": 0}, OptionError, r"fit: epochs must be an int of at least 1\. Received epochs=0"),
    "epochs 1.5": ({"epochs": 1.5}, OptionError, r"fit: epochs must be an int of at least 1\. Received epochs=1\.5"),
    "batch size 0": (
        {"batch_size": 0},
        OptionError,
        r"fit: batch_size must be an int of at least 1\. Received batch_size=0",
    ),
    "seed": ({"seed": -1}, OptionError, r"fit: seed must be an int from 0 to below 2\^63\. Received seed=-1"),
}


@pytest.mark.parametrize("case", BAD_FIT)
def test_fit_refuses_bad_input_and_still_trains(device: Device, tmp_path: Path, case: str) -> None:
    options, kind, message = BAD_FIT[case]
    model = tiny_model()
    before = bits(model)
    settings = {"epochs": 1, "batch_size": 8, "x": X, "y": Y, "device": device, "verbose": False} | options
    with pytest.raises(kind, match=message):
        model.fit(**settings, callbacks=[Checkpoint(tmp_path / "model.h5")])
    assert bits(model) == before
    assert model.history == {}
    assert list(tmp_path.iterdir()) == []
    fit(model, device, epochs=1, optimizer=SGD(0.01))
    assert bits(model) != before


def test_a_loss_that_does_not_fit_the_output(device: Device) -> None:
    model = Sequential([layers.Input(1, 8, 8), layers.Conv2D(1, 3)])
    with pytest.raises(ShapeError, match=r"CrossEntropy: the model's output must be one logit for each of at least 2"):
        model.fit(X, Y, device=device, verbose=False)
    with pytest.raises(ShapeError, match=r"CrossEntropy: .*output=\(1, 6, 6\).*Hint: end the model with Dense"):
        model.evaluate(X, Y, device=device)
    model = Sequential([layers.Input(1, 8, 8), layers.Conv2D(10, 3)])
    message = r"y: class numbers must have the shape \(samples, 6, 6\)\. .*Hint: for one class a sample, end .* Dense"
    with pytest.raises(DataError, match=message):
        model.evaluate(X, Y, device=device)


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float64, np.float16, bool])
def test_any_real_type_of_samples_and_labels(device: Device, dtype: Any) -> None:
    x = (X > 0.5).astype(dtype)
    model = tiny_model()
    model.fit(x, Y.astype(np.uint8), batch_size=8, optimizer=Adam(1e-2), device=device, verbose=False)
    other = tiny_model()
    other.fit(x.astype(np.float32), Y.astype(float), batch_size=8, optimizer=Adam(1e-2), device=device, verbose=False)
    assert bits(model) == bits(other)


def test_arrays_that_are_not_contiguous(device: Device) -> None:
    x = np.asfortranarray(X[:, :, ::-1])
    model = tiny_model()
    model.fit(x, np.repeat(Y, 2)[::2], batch_size=8, device=device, verbose=False)
    other = tiny_model()
    other.fit(np.ascontiguousarray(x), Y, batch_size=8, device=device, verbose=False)
    assert bits(model) == bits(other)


def test_what_a_training_prints(device: Device, capsys: pytest.CaptureFixture[str]) -> None:
    fit(tiny_model(), device, epochs=2, verbose=False)
    assert capsys.readouterr() == ("", "")
    fit(tiny_model(), device, epochs=2, verbose=True, validation=digits(4))
    text = capsys.readouterr()
    assert text.out == ""
    assert "1/2" in text.err
    assert "2/2" in text.err
    assert max(map(len, text.err.splitlines())) <= 80


def test_optimizers_can_be_named_in_options() -> None:
    for optimizer in OPTIMIZERS.values():
        assert (
            optimizers.Optimizer.from_description(json.loads(json.dumps(optimizer.description())), "file") == optimizer
        )


# -- trainings that run, but not as they were meant --------------------------------------------------------------------


def test_losses_that_rise_are_pointed_out_once(device: Device) -> None:
    x, y = digits(96)
    model = Sequential([layers.Input(1, 8, 8), layers.Flatten(), layers.Dense(10)])
    rule = (
        "training: losses should fall; here they have risen far above that of the first step. Received epoch=1, loss="
    )
    settings: dict[str, Any] = {"epochs": 3, "batch_size": 16, "validation": (x, y), "device": device, "verbose": False}
    with pytest.warns(BlobnetWarning, match=rule) as found:
        history = model.fit(x, y, optimizer=Adam(1000.0), **settings)
    assert len(found) == 1
    assert history["validation_loss"][0] > 1000
    assert "first_step=2." in str(found[0].message)
    assert "Hint: use a smaller learning rate" in str(found[0].message)
    again = Sequential([layers.Input(1, 8, 8), layers.Flatten(), layers.Dense(10)])
    assert again.fit(x, y, optimizer=Adam(0.001), **settings)["loss"][-1] < 4


@pytest.mark.parametrize("count", [1, 9])
def test_a_batch_norm_of_single_values_is_pointed_out(device: Device, count: int) -> None:
    """PyTorch refuses it; Keras makes 0 of it, as we do: then the network learns nothing of that sample."""
    model = Sequential([layers.Input(3), layers.BatchNorm(name="norm"), layers.Dense(2, name="last")])
    x, y = np.random.default_rng(count).standard_normal((count, 3)).astype(np.float32), np.arange(count) % 2
    settings: dict[str, Any] = {"epochs": 1, "batch_size": 4, "optimizer": SGD(0.1), "device": device, "verbose": False}
    rule = r"norm \(BatchNorm\): a batch norm needs several values a unit in each batch: of one alone it makes 0, .*"
    with pytest.warns(BlobnetWarning, match=rule + r"Received smallest_batch=1. Hint: choose a batch_size that"):
        model.fit(x, y, **settings)
    assert all(np.isfinite(values).all() for values in model.weights.values())
    model.fit(x, y, **settings, freeze="norm")
    if count > 1:
        model.fit(x, y, **{**settings, "batch_size": 5})


# -- what is read from the device --------------------------------------------------------------------------------------


class Transfers:
    """Counts the arrays of at least so many numbers that a device gives back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, least: int) -> None:
        self.count = 0
        read = Memory.read

        def counted(memory: Memory, buffer: Any, elements: int, *others: Any, **more: Any) -> Any:
            self.count += elements >= least
            return read(memory, buffer, elements, *others, **more)

        monkeypatch.setattr(Memory, "read", counted)


@pytest.mark.parametrize("average", [None, 0.9])
@pytest.mark.parametrize("is_large", [True, False])
def test_weights_are_read_when_somebody_asks(
    device: Device, monkeypatch: pytest.MonkeyPatch, average: float | None, is_large: bool
) -> None:
    monkeypatch.delenv("BLOBNET_CHECK", raising=False)  # With it every buffer is read.
    model, (x, y) = tiny_model(), digits(24)
    least = parameter_table(model.graph).trainable_elements
    # Of a weight and two slots of Adam's; of averages beside the weights.
    whole = 3 if average is None else 4
    settings: dict[str, Any] = {"batch_size": 8, "average": average, "verbose": False, "validation": (x, y)}
    if not is_large:
        monkeypatch.setattr(trainer.Room, "copied", lambda room, places: None)
    transfers = Transfers(monkeypatch, least)
    counts: list[int] = []

    class Counting(Callback):
        def __init__(self, act: Any) -> None:
            self.act = act

        def epoch_end(self, progress: Progress) -> None:
            counts.append(transfers.count)
            self.act(progress)

    def run(act: Any) -> list[int]:
        transfers.count = 0
        counts.clear()
        model.initialize(0)
        model.fit(x, y, epochs=4, device=device, callbacks=Counting(act), **settings)
        return [*counts, transfers.count]

    nothing = run(lambda progress: None)
    # At the end for the model; where the device has no room for copies, before every epoch.
    assert nothing == ([0, 0, 0, 0, whole] if is_large else [0, whole, 2 * whole, 3 * whole, 4 * whole])
    assert run(lambda progress: model.weights)[-1] == (4 + whole - 1 if is_large else 4 * whole)
    kept: list[dict[str, Any]] = []
    states: list[Any] = []

    def look(progress: Progress) -> None:
        if progress.trainer.epoch == 2:
            kept.append(model.weights)
            states.append(model.training_state)

    run(look)
    two = tiny_model()
    two.fit(x, y, epochs=2, device=device, **settings)
    assert {name: values.tobytes() for name, values in kept[0].items()} == bits(two)
    assert two.training_state is not None
    for slot, values in two.training_state.optimizer_state.items():
        np.testing.assert_array_equal(states[0].optimizer_state[slot], values)


def test_an_interrupt_leaves_the_last_epoch_that_nobody_has_read(device: Device) -> None:
    x, y = digits(24)
    wanted, model = tiny_model(), tiny_model()
    settings: dict[str, Any] = {"batch_size": 8, "device": device, "verbose": False}
    wanted.fit(x, y, epochs=2, **settings)

    class Late(Callback):
        def step_end(self, progress: Progress) -> None:
            if progress.trainer.step.number == 8:
                # The model keeps what the last epoch has reached.
                assert bits(copy.copy(model)) == bits(wanted)
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model.fit(x, y, epochs=4, callbacks=Late(), **settings)
    assert bits(model) == bits(wanted)
    assert model.history == wanted.history
    assert model.training_state is not None
    assert wanted.training_state is not None
    assert bits(pickle.loads(pickle.dumps(model))) == bits(wanted)
    for slot, values in wanted.training_state.optimizer_state.items():
        np.testing.assert_array_equal(model.training_state.optimizer_state[slot], values)


def test_a_device_that_gives_nothing_back_leaves_the_model_as_it_was(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = digits(24)
    model = tiny_model()
    before = bits(model)

    def fail(arrays: kept.KeptArrays) -> Any:
        raise DeviceError(device.info.name, "it must answer")

    class Late(Callback):
        def step_end(self, progress: Progress) -> None:
            if progress.trainer.step.number == 5:
                monkeypatch.setattr(kept.KeptArrays, "read", fail)
                raise DeviceError(device.info.name, "it must answer")

    message = r"^training: the device must give back the weights of the last epoch; the model has those of before\. .*"
    with pytest.raises(DeviceError, match="it must answer"), pytest.warns(BlobnetWarning, match=message + "Checkpoint"):
        model.fit(x, y, epochs=4, batch_size=8, callbacks=Late(), device=device, verbose=False)
    assert bits(model) == before
    assert model.history == {}
    assert model.training_state is None


@pytest.mark.parametrize("name", ["conv2/weight", "norm2/running_variance"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_an_epoch_leaves_must_be_finite(device: Device, name: str, value: float) -> None:
    x, y = digits(24)
    model = tiny_model()

    class Breaks(Callback):
        def step_end(self, progress: Progress) -> None:
            if progress.trainer.step.number == 6:
                step = progress.trainer.step
                weights = {own: values.copy() for own, values in progress.trainer.weights().items()}
                weights[name].reshape(-1)[-1] = value
                step.result.write(weights)

    message = rf"^training: the weights must stay finite\. Received epoch=2, broken=\['{name}'\]\. Hint: use a"
    with pytest.raises(TrainingError, match=message):
        model.fit(x, y, epochs=3, batch_size=8, callbacks=Breaks(), device=device, verbose=False)
    # What is finite is not refused, though its square is not.
    model, value = tiny_model(), 3e38
    model.fit(x, y, epochs=2, batch_size=8, callbacks=Breaks(), device=device, verbose=False)
    assert model.weights[name].reshape(-1)[-1] == np.float32(value)


@pytest.mark.parametrize("more", [{}, {"shards": 2, "sync_batch_norm": True}, {"fit_memory": True, "average": 0.9}])
def test_a_graph_is_planned_once_for_training_and_once_to_validate(
    device: Device, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    planned: list[tuple[bool, int]] = []
    plan = executor._plan_for

    def counted(device: Device, request: Any, *others: Any) -> Plan:
        planned.append((request.training, request.batch_size))
        return plan(device, request, *others)

    monkeypatch.setattr(executor, "_plan_for", counted)
    monkeypatch.setattr(executor, "_MADE", type(executor._MADE)())  # What others have planned in this process.
    fit(tiny_model(), device, epochs=3, validation=digits(9, first=50), **more)
    # With batch norms over all shards, a step computes these at once.
    assert planned == [(True, 8), (False, 8 // more.get("shards", 1))]
