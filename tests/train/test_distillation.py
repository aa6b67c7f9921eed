"""Learning from a teacher: its answers in the loss and the gradients, and trainings that have one."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blobnet as bn
from blobnet import layers
from blobnet.augment import Flip, Mixup
from blobnet.augment.epoch_rows import partner_shares, rows_for
from blobnet.callbacks import Checkpoint
from blobnet.device.device import Device
from blobnet.errors import OptionError
from blobnet.execution.executor import Executor
from blobnet.losses import BinaryCrossEntropy, CrossEntropy, Dice, Focal, Loss
from blobnet.losses.distillation import TEACHER
from blobnet.memory.blob import Shape
from blobnet.model import Model, Sequential, load
from blobnet.optimizers import SGD, Adam
from blobnet.training.teacher import Teacher
from tests.ranks import mpiexec, needs_mpi
from tests.tiny import digits, tiny_model
from tests.torch_graphs import Network, functional, loss_sums, torch

COUNT, CLASSES, SEED = 11, 5, 3
SHAPE = Shape(2, 7, 5)
X, Y = digits(45)


def student(*, masks: bool = False, seed: int = 0) -> Model:
    end = [layers.Conv2D(CLASSES, 1)] if masks else [layers.Flatten(), layers.Dense(CLASSES)]
    start = [layers.Input(2, 7, 5), layers.Conv2D(3, 3, padding=1, activation="tanh")]
    return Sequential([*start, *end], seed=seed)


def teacher(*, masks: bool = False) -> Model:
    """With another input's name, its own normalisation, layers that behave otherwise in training, and large logits."""
    end = [layers.Conv2D(CLASSES, 3, padding=1)] if masks else [layers.Flatten(), layers.Dense(CLASSES)]
    start = [layers.Input(2, 7, 5, name="picture"), layers.Conv2D(6, 3, padding=1), layers.BatchNorm(name="norm")]
    model = Sequential([*start, layers.Activation("relu"), layers.Dropout(0.5), *end], seed=8)
    random = np.random.default_rng(8)
    model.set_normalization([0.25, -0.5], [0.5, 2])
    norms = {"norm/running_mean": random.normal(size=6), "norm/running_variance": random.uniform(0.5, 2, 6)}
    weights = {name: 3 * values for name, values in model.weights.items() if name.endswith("weight")}
    model.set_weights(weights | norms)
    return model


def samples(*, masks: bool = False) -> tuple[Any, Any]:
    random = np.random.default_rng(1)
    labels = random.integers(0, CLASSES, (COUNT, 7, 5) if masks else COUNT)
    if masks:
        labels[random.random(labels.shape) < 0.2] = 255
    return random.normal(size=(COUNT, 2, 7, 5)).astype(np.float32), labels


def test_answers_are_the_logarithms_of_soft_probabilities(device: Device) -> None:
    for masks in (False, True):
        model, (x, _) = teacher(masks=masks), samples()
        plan = Teacher.of(model).plan(device, model.graph, COUNT, 2.5)
        executor = Executor(device, plan, debug=True)
        executor.write_array("parameters", plan.request.parameters.pack(model.weights))
        executor.feed("samples", x)
        executor.prepare(1)
        for phase in ("forward", "loss"):
            executor.run(phase, COUNT)
        found = device.memory.read(executor.buffers[TEACHER], COUNT * CLASSES * (35 if masks else 1))
        logits = model.predict(x, device=device).astype(np.float64) / 2.5
        expected = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        np.testing.assert_allclose(found, expected.ravel(), rtol=1e-5, atol=1e-5)


CASES: dict[str, tuple[Loss, dict[str, Any]]] = {
    "plain": (CrossEntropy(), {}),
    "smoothed": (CrossEntropy(0.1), {"temperature": 1.0, "teacher_weight": 0.7}),
    "focal": (Focal(1.5), {"temperature": 2.0}),
    "weights": (CrossEntropy(), {"class_weights": [1, 2, 0.5, 3, 1], "sample_weights": np.linspace(0.2, 2, COUNT)}),
    "mixed": (CrossEntropy(0.1), {"augment": Mixup(0.8), "class_weights": [1, 2, 0.5, 3, 1]}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_step_against_pytorch(device: Device, case: str) -> None:
    loss, settings = CASES[case]
    check_step(device, loss, settings, masks=False)


@pytest.mark.parametrize("case", ["plain", "weights"])
def test_a_step_of_masks_against_pytorch(device: Device, case: str) -> None:
    settings = {name: value for name, value in CASES[case][1].items() if name != "temperature"}
    check_step(device, CrossEntropy(0.1, ignore=255), settings, masks=True)


def check_step(device: Device, loss: Loss, settings: dict[str, Any], *, masks: bool) -> None:
    """A step along the gradients at the rate of 1 shows them; PyTorch has the same in float64."""
    if torch is None:
        pytest.skip("needs PyTorch")
    x, y = samples(masks=masks)
    model, other = student(masks=masks), teacher(masks=masks)
    network, fixed = (Network(each.graph, each.weights) for each in (model, other))
    before = model.weights
    given: dict[str, Any] = {"optimizer": SGD(1.0), "batch_size": COUNT, "seed": SEED, "loss": loss, "debug": True}
    history = model.fit(x, y, teacher=other, device=device, verbose=False, **given, **settings)

    order = np.random.default_rng([SEED, 0]).permutation(COUNT)
    x, y, shares = x[order], y[order], np.zeros(COUNT)
    if "augment" in settings:
        rows = rows_for([settings["augment"]], SHAPE, SEED, 0, order)
        shares = partner_shares(rows, SHAPE, has_positions=False).astype(np.float64)
        assert (shares > 0).any()
        x = x + shares[:, None, None, None] * (np.roll(x, -1, axis=0) - x)
    own = np.asarray(settings.get("sample_weights", np.ones(COUNT)))[order]
    classes = settings.get("class_weights")
    z, temperature = network.output(x, training=True), settings.get("temperature", 4.0)
    with torch.no_grad():
        answers = fixed.output(x, training=False) / temperature
    each = functional.kl_div(
        functional.log_softmax(z / temperature, 1),
        functional.log_softmax(answers, 1),
        reduction="none",
        log_target=True,
    ).sum(1)
    total, weight = 0.0, 0.0
    for labels, share, of_sample in ((y, 1 - shares, own), (np.roll(y, -1, axis=0), shares, np.roll(own, -1))):
        part, counted = loss_sums(loss, z, labels, share * of_sample, classes)
        of_class = np.ones(CLASSES) if classes is None else np.asarray(classes)
        of_label = np.where(labels == 255, 0, of_class[np.where(labels == 255, 0, labels)])
        weights = torch.tensor(((share * of_sample) * of_label.T).T / (35 if masks else 1))
        total = total + part + settings.get("teacher_weight", 1.0) * temperature**2 * (each * weights).sum()
        weight += counted
    value = total / weight
    value.backward()
    assert history["loss"][0] == pytest.approx(value.item(), rel=1e-5)
    for name in network.trained:
        expected = network.tensors[name].grad.numpy()
        found = before[name].astype(np.float64) - model.weights[name]
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5 * np.abs(expected).max() + 2e-6, err_msg=name)


def test_step_by_step_is_the_same(device: Device) -> None:
    (x, y), one, other = samples(), student(), student()
    one.fit(x, y, teacher=teacher(), batch_size=COUNT, optimizer=SGD(0.1), device=device, verbose=False)
    step = other.trainer(teacher=teacher(), optimizer=SGD(0.1), device=device)
    order = np.random.default_rng([0, 0]).permutation(COUNT)
    step.train(x[order], y[order])
    step.update()
    assert step.loss == one.history["loss"][0]
    for name, values in one.weights.items():
        np.testing.assert_array_equal(other.weights[name], values)


# -- whole trainings ---------------------------------------------------------------------------------------------------


def distill(model: Model, device: Device | None = None, **settings: Any) -> Model:
    given: dict[str, Any] = {"epochs": 3, "batch_size": 8, "optimizer": SGD(0.02, momentum=0.9, sam=0.05), "seed": 7}
    given |= {"teacher": tiny_model(5), "temperature": 2.0, "augment": [Flip(), Mixup(0.4)]}
    model.fit(X, Y, device=device, verbose=False, **given | settings)
    return model


def test_a_student_comes_to_say_what_its_teacher_says(device: Device) -> None:
    """Labels that are all the same say nothing of it; they weigh little."""
    model, other = Sequential([layers.Input(1, 8, 8), layers.Flatten(), layers.Dense(10)]), tiny_model(5)
    other.fit(X, Y, epochs=20, batch_size=8, device=device, verbose=False)
    settings: dict[str, Any] = {"teacher": other, "teacher_weight": 100.0, "optimizer": Adam(1e-2), "epochs": 30}
    model.fit(X, np.zeros_like(Y), batch_size=8, device=device, verbose=False, **settings)
    assert (model.predict(X, device=device).argmax(1) == other.predict(X, device=device).argmax(1)).mean() > 0.9


def test_a_teacher_stays_as_it_is_and_measures_nothing(device: Device) -> None:
    other = tiny_model(5)
    before = other.weights
    model = distill(tiny_model(), device, teacher=other, validation=(X[:9], Y[:9]))
    for name, values in other.weights.items():
        np.testing.assert_array_equal(values, before[name])
    assert model.loss == CrossEntropy()
    measured = model.evaluate(X[:9], Y[:9], device=device)["loss"]
    assert model.history["validation_loss"][-1] == pytest.approx(measured, rel=1e-6)


def test_a_resumed_training_needs_the_same_teacher(device: Device, tmp_path: Path) -> None:
    whole, parts = distill(tiny_model(), device), distill(tiny_model(), device, epochs=1)
    parts.save(tmp_path / "parts.h5")
    settings = {"epochs": 3, "device": device, "verbose": False, "resume": True}
    begun = load(tmp_path / "parts.h5")
    with pytest.raises(
        OptionError, match=r"resume: the teacher of the interrupted training must be given again, since"
    ):
        begun.fit(X, Y, **settings)
    with pytest.raises(
        OptionError, match=r"resume: the teacher must be that of the interrupted.*saved=\w{12}, now=\w{12}"
    ):
        begun.fit(X, Y, teacher=tiny_model(6), **settings)
    with pytest.raises(OptionError, match=r"resume: the temperature must be that.* Received saved=2\.0, now=3\.0"):
        begun.fit(X, Y, teacher=tiny_model(5), temperature=3.0, **settings)
    begun.fit(X, Y, teacher=tiny_model(5), **settings)
    for name, values in whole.weights.items():
        assert begun.weights[name].tobytes() == values.tobytes(), name
    assert begun.history == whole.history


#: A rank of several.
RANK = """
import sys
from tests.train.test_distillation import in_shards
in_shards(sys.argv[1])
"""


def in_shards(path: object, device: Device | None = None, **more: Any) -> Model:
    return distill(tiny_model(), device, shards=4, accumulate=2, callbacks=Checkpoint(path, every_steps=2), **more)


@needs_mpi
def test_a_teacher_does_not_depend_on_ranks(device: Device, tmp_path: Path) -> None:
    in_shards(tmp_path / "1.h5", device)
    mpiexec(2, device, "-c", RANK, tmp_path / "2.h5", check=True)
    assert (tmp_path / "2.h5").read_bytes() == (tmp_path / "1.h5").read_bytes()


def test_sums_of_batches_and_shards_are_those_of_whole_batches(device: Device) -> None:
    def trained(**more: Any) -> Model:
        model = Sequential([layers.Input(1, 8, 8), layers.Flatten(), layers.Dense(10)])
        return distill(model, device, augment=None, **more)

    whole = trained(batch_size=16)
    for more in ({"accumulate": 2}, {"batch_size": 16, "shards": 4}, {"batch_size": 16, "debug": True}):
        found = trained(**more)
        for name, values in whole.weights.items():
            np.testing.assert_allclose(found.weights[name], values, rtol=1e-4, atol=1e-6, err_msg=f"{name} {more}")


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_teacher_in_half_the_memory(device: Device, precision: str) -> None:
    settings: dict[str, Any] = {"augment": None, "optimizer": SGD(0.02), "epochs": 2}
    whole, half = (distill(tiny_model(), device, precision=kind, **settings) for kind in ("fp32", precision))
    np.testing.assert_allclose(half.history["loss"], whole.history["loss"], rtol=2e-2)
    assert half.history["loss"] != whole.history["loss"]


# -- what is refused ---------------------------------------------------------------------------------------------------


def dense(*sizes: int, activation: str | None = None, **settings: Any) -> Model:
    start, *more = sizes
    return Sequential([layers.Input(start), *(layers.Dense(each, activation=activation) for each in more)], **settings)


def several() -> Model:
    start = layers.Input(4)()
    return bn.Model(start, {"a": layers.Dense(3)(start), "b": layers.Dense(3)(start)})


def regression() -> Model:
    model = dense(4, 3)
    model.loss = bn.losses.MeanSquaredError()
    return model


@pytest.mark.parametrize(
    ("other", "settings", "message"),
    [
        (lambda: "big.h5", {}, r"teacher: it must be a model\. Received str\. Hint: bn\.load\(FILE\) gives"),
        (several, {}, r"teacher: both models must have a single output\. Received model=1, teacher=2"),
        (regression, {}, r"must tell classes apart: the loss must be CrossEntropy or Focal\. .*MeanSquaredError"),
        (
            lambda: dense(4, 3),
            {"loss": Dice()},
            r"must be CrossEntropy or Focal\. Received model=Dice, teacher=unknown",
        ),
        (lambda: dense(4, 3), {"loss": BinaryCrossEntropy()}, r"Received model=BinaryCrossEntropy, teacher=unknown"),
        (
            lambda: dense(5, 3),
            {},
            r"its input must have the shape of the model's\. Received model=\(4\), teacher=\(5\)",
        ),
        (
            lambda: dense(4, 2),
            {},
            r"its output must have the shape of the model's\. Received model=\(3\), teacher=\(2\)",
        ),
        (
            lambda: Sequential([layers.Input(4), layers.Dense(3), layers.Activation("softmax", name="end")]),
            {},
            r"teacher: it must end with logits, not probabilities\. Received layer=end\. Hint: build it without its",
        ),
        (
            lambda: dense(4, 3, class_names=["a", "c", "b"]),
            {},
            r"its classes must be those of the model, in the same order\. Received number=1, model=b, teacher=c",
        ),
        (lambda: dense(4, 3), {"temperature": 0}, r"fit: temperature must be a finite number above 0"),
        (lambda: dense(4, 3), {"teacher_weight": -1}, r"fit: teacher_weight must be a finite number above 0"),
        (lambda: None, {"temperature": 2}, r"temperature: it is for learning from a teacher\. .*--teacher FILE"),
        (lambda: None, {"teacher_weight": 2}, r"teacher_weight: it is for learning from a teacher"),
    ],
)
def test_refusals(device: Device, other: Any, settings: dict[str, Any], message: str) -> None:
    model = dense(4, 3, class_names=["a", "b", "c"])
    x, y = np.ones((3, 4), np.float32), np.arange(3)
    with pytest.raises(OptionError, match=message):
        model.fit(x, y, teacher=other(), device=device, verbose=False, **settings)


def test_a_model_is_no_teacher_of_its_own(device: Device) -> None:
    model, (x, y) = student(), samples()
    message = r"teacher: it must be another model than the one that learns, or have other weights"
    for other in (model, copy.copy(model)):
        with pytest.raises(OptionError, match=message):
            model.fit(x, y, teacher=other, device=device, verbose=False)
    anew = copy.copy(model)
    anew.initialize(4)
    anew.fit(x, y, teacher=model, device=device, verbose=False)
