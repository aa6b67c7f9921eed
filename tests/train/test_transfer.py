"""Transfer: frozen parameters, rates by pattern, trunks and new heads."""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blobnet as bn
from blobnet import layers
from blobnet.device.device import Device
from blobnet.errors import DataError, OptionError, ShapeError
from blobnet.losses import CrossEntropy
from blobnet.memory.blob import FloatArray, Shape
from blobnet.model import Model, Sequential
from blobnet.network.patterns import frozen_parameters
from blobnet.optimizers import SGD, Adam
from blobnet.training.settings import TrainingSettings
from blobnet.training.training_step import TrainingStep
from tests.networks import run
from tests.reference.compare import assert_close
from tests.small_graphs import KNOWN_GRAPHS
from tests.tiny import digits, tiny_model
from tests.torch_graphs import torch_gradients
from tests.train.test_plans import SEED, assert_gradients, batch_of, model_of


def norms(seed: int = 0) -> Model:
    """Residual, with norms in front of sums and activations that keep their input and their output."""
    images = layers.Input(2, 7, 6, name="input")()
    node = layers.Conv2D(5, 3, padding=1, bias=False, name="conv1")(images)
    node = layers.Activation("silu", name="silu1")(layers.BatchNorm(name="norm1")(node))
    branch = layers.BatchNorm(name="norm2")(layers.Conv2D(5, 3, padding=1, bias=False, name="conv2")(node))
    node = layers.Activation("relu", name="relu2")(branch + node)
    node = layers.MaxPool2D(2, name="pool")(node)
    node = layers.Activation("tanh", name="tanh3")(
        layers.BatchNorm(name="norm3")(layers.Conv2D(4, 2, name="conv3")(node))
    )
    node = layers.GlobalAveragePool(name="average")(node)
    model = model_of(Model(images, layers.Dense(3, name="head")(node)).graph)
    if seed:
        model.initialize(seed)
    return model


def arrays(weights: dict[str, FloatArray]) -> dict[str, bytes]:
    return {name: values.tobytes() for name, values in weights.items()}


# -- gradients ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "freeze",
    [["conv1", "norm1"], ["norm*"], ["conv*", "norm*"], ["conv2", "head"], ["norm?/scale"], ["*/bias", "*/shift"]],
    ids=" ".join,
)
def test_gradients_against_pytorch(device: Device, freeze: list[str]) -> None:
    """requires_grad=False, and eval mode for norms of which nothing is trained."""
    pytest.importorskip("torch")
    model = norms()
    x, labels = batch_of(model.graph, CrossEntropy())
    frozen = frozen_parameters(model.graph, freeze)
    assert frozen
    found = model.gradients(x, labels, freeze=freeze, seed=SEED, device=device, debug=True)
    _, wanted = torch_gradients(model.graph, model.weights, x, labels, CrossEntropy(), SEED, frozen=frozen)
    assert set(found) == set(wanted) == {*model.graph.trainable, "input"} - frozen
    assert_gradients(found, wanted, str(freeze))


@pytest.mark.parametrize(
    ("name", "freeze"),
    [("plain", ["conv2d_1", "batchnorm_1"]), ("residual", ["conv2d_[12]", "batchnorm_2"]), ("vectors", ["dense_1"])],
)
def test_gradients_of_known_graphs_against_pytorch(device: Device, name: str, freeze: list[str]) -> None:
    pytest.importorskip("torch")
    model = model_of(KNOWN_GRAPHS[name]())
    x, labels = batch_of(model.graph, CrossEntropy())
    frozen = frozen_parameters(model.graph, freeze)
    found = model.gradients(x, labels, freeze=freeze, seed=SEED, device=device)
    _, wanted = torch_gradients(model.graph, model.weights, x, labels, CrossEntropy(), SEED, frozen=frozen)
    assert_gradients(found, wanted, name)


def gradients_of_a_step(device: Device, model: Model, frozen: Any, x: FloatArray, labels: Any) -> dict[str, FloatArray]:
    """Without dL/d input, as a training computes them."""
    given: dict[str, Any] = {"optimizer": SGD(), "batch_size": len(x), "freeze": frozenset(frozen), "seed": SEED}
    step = TrainingStep(device, model.graph, model.weights, TrainingSettings(loss=CrossEntropy(), **given))
    step.load_batch(x, np.asarray(labels, np.int32))
    step.compute_gradients(len(x))
    return step.gradients()


def test_gradients_above_what_is_frozen_keep_their_bits(device: Device) -> None:
    """Where no norm's statistics change with it, what is trained does not notice what is frozen."""
    model = tiny_model(3)
    x, labels = digits(16)
    whole = gradients_of_a_step(device, model, (), x, labels)
    for freeze in (["conv1"], ["conv2"], ["conv1/weight", "conv2", "logits/bias"]):
        frozen = frozen_parameters(model.graph, freeze)
        found = gradients_of_a_step(device, model, frozen, x, labels)
        assert set(found) == set(whole) - frozen
        assert arrays(found) == {name: values.tobytes() for name, values in whole.items() if name in found}, freeze


# -- training ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("freeze", [["conv1", "conv2", "norm2"], ["norm2"], ["norm2/scale"]], ids=" ".join)
def test_frozen_parameters_and_their_statistics_keep_their_bits(device: Device, freeze: list[str]) -> None:
    model = tiny_model()
    x, labels = digits(48)
    before = model.weights
    frozen = frozen_parameters(model.graph, freeze)
    optimizer = Adam(1e-2, weight_decay=0.1, clip_norm=1.0)
    model.fit(x, labels, epochs=2, batch_size=16, optimizer=optimizer, freeze=freeze, device=device, verbose=False)
    kept = {name for name, values in model.weights.items() if values.tobytes() == before[name].tobytes()}
    stored = {"input/mean", "input/deviation"}
    # A norm of which something is trained goes on measuring.
    stored |= {f"norm2/running_{name}" for name in ("mean", "variance")} if "norm2/shift" in frozen else set()
    assert kept == frozen | stored


def test_a_frozen_trunk_trains_as_a_head_on_its_outputs(device: Device) -> None:
    """Fine-tuning a head is the same as training it alone on what predict says of the layer below it."""
    model = norms()
    x, labels = batch_of(model.graph, CrossEntropy(), 24)
    features = model.outputs_of("average").predict(x, device=device)
    rows = layers.Input(4, name="rows")()
    head = Model(rows, layers.Dense(3, name="head")(rows))
    head.set_weights({name: model.weights[name] for name in ("head/weight", "head/bias")})
    settings: dict[str, Any] = {"epochs": 3, "batch_size": 8, "device": device, "verbose": False, "seed": 4}
    head.fit(features, labels, optimizer=SGD(0.1, momentum=0.9), **settings)
    freeze = model.layers_until("average")
    assert freeze == ["conv1", "norm1", "conv2", "norm2", "conv3", "norm3"]
    model.fit(x, labels, optimizer=SGD(0.1, momentum=0.9), freeze=freeze, **settings)
    for name in ("head/weight", "head/bias"):
        wanted = head.weights[name]
        assert_close(model.weights[name], wanted, relative=1e-5, absolute=1e-6, what=name)


def test_validation_while_frozen_is_that_of_the_model(device: Device) -> None:
    """The evaluator shares parameters that lie in another order than without freezing."""
    model = tiny_model()
    x, labels = digits(48)
    held_out = digits(20, 100)
    history = model.fit(
        x, labels, epochs=2, batch_size=16, validation=held_out, freeze="conv1", device=device, verbose=False
    )
    measured = model.evaluate(*held_out, device=device)
    assert measured["loss"] == pytest.approx(history["validation_loss"][-1], rel=1e-5)


@pytest.mark.parametrize("make", [lambda rates: SGD(0.1, momentum=0.9, weight_decay=0.01, rates=rates),
                                  lambda rates: Adam(0.01, weight_decay=0.01, rates=rates)])  # fmt: skip
def test_rates_by_pattern_against_pytorch(device: Device, make: Any) -> None:
    """Factors are PyTorch's parameter groups."""
    torch = pytest.importorskip("torch")
    model = norms()
    x, labels = batch_of(model.graph, CrossEntropy(), 6)
    rates = {"head/*": 1.0, "norm*": 0.5, "*": 0.1}
    optimizer = make(rates)
    frozen = frozen_parameters(model.graph, "conv1")
    given: dict[str, Any] = {"optimizer": optimizer, "batch_size": 6, "freeze": frozen, "seed": SEED}
    step = TrainingStep(device, model.graph, model.weights, TrainingSettings(loss=CrossEntropy(), **given))
    tensors = {name: torch.tensor(model.weights[name], dtype=torch.float64) for name in model.graph.trainable}
    groups = []
    for name in (name for name in model.graph.trainable if name not in frozen):
        factor = 1.0 if name.startswith("head") else 0.5 if name.startswith("norm") else 0.1
        decay = 0.01 if model.graph.named_parameters[name].decayed else 0.0
        groups.append({"params": [tensors[name]], "lr": optimizer.learning_rate * factor, "weight_decay": decay})
    kind = torch.optim.SGD if isinstance(optimizer, SGD) else torch.optim.Adam
    oracle = kind(groups, **({"momentum": 0.9} if isinstance(optimizer, SGD) else {}))
    for _ in range(3):
        step.load_batch(x, np.asarray(labels, np.int32))
        step.compute_gradients(6)
        for name, values in step.gradients().items():
            tensors[name].grad = torch.tensor(values, dtype=torch.float64)
        step.update(optimizer.learning_rate)
        oracle.step()
    weights = step.parameters.read()
    assert len(step.parameters.table.groups) == 3
    for name in model.graph.trainable:
        assert_close(weights[name], tensors[name].numpy(), relative=1e-5, absolute=1e-6, what=name)
    assert np.array_equal(weights["conv1/weight"], model.weights["conv1/weight"])


# -- going on ----------------------------------------------------------------------------------------------------------


def test_a_frozen_training_resumes_bit_for_bit(device: Device, tmp_path: Path) -> None:
    x, labels = digits(40)
    settings: dict[str, Any] = {"batch_size": 16, "device": device, "verbose": False}
    freeze, optimizer = ["conv1"], Adam(0.01, rates={"logits": 1.0, "*": 0.1})
    whole = tiny_model()
    whole.fit(x, labels, epochs=3, optimizer=optimizer, freeze=freeze, **settings)
    first = tiny_model()
    first.fit(x, labels, epochs=2, optimizer=optimizer, freeze=freeze, **settings)
    state = first.training_state
    assert state is not None
    trained = [name for name in first.graph.trainable if not name.startswith("conv1")]
    sizes = [-(-first.graph.named_parameters[name].elements // 16) * 16 for name in trained]
    assert {slot: values.size for slot, values in state.optimizer_state.items()} == {
        "first_moment": sum(sizes),
        "second_moment": sum(sizes),
    }
    first.save(tmp_path / "first.h5")
    second = bn.load(tmp_path / "first.h5")
    # What was frozen is in the file; to say it again is allowed.
    second.fit(x, labels, epochs=3, resume=True, freeze=freeze, **settings)
    assert arrays(second.weights) == arrays(whole.weights)
    third = bn.load(tmp_path / "first.h5")
    third.fit(x, labels, epochs=3, resume=True, **settings)
    assert arrays(third.weights) == arrays(whole.weights)


def test_another_frozen_set_needs_a_training_of_its_own(device: Device) -> None:
    model = tiny_model()
    x, labels = digits(32)
    settings: dict[str, Any] = {"batch_size": 16, "device": device, "verbose": False}
    model.fit(x, labels, epochs=1, freeze=["conv*"], **settings)
    before = model.weights
    message = (
        "resume: the set of frozen parameters must be that of the interrupted training. Received "
        "saved=conv1/bias, conv1/weight, conv2/weight, now=nothing. Hint: give what was given then; without resume "
        "(on the command line --init-from FILE) training goes on from the same weights with a new optimizer."
    )
    with pytest.raises(OptionError, match=re.escape(message)):
        model.fit(x, labels, epochs=2, freeze=[], resume=True, **settings)
    assert arrays(model.weights) == arrays(before)
    history = model.fit(x, labels, epochs=1, **settings)
    assert len(history["loss"]) == 1
    assert model.weights["conv1/weight"].tobytes() != before["conv1/weight"].tobytes()
    assert model.training_state is not None
    assert model.training_state.settings["frozen"] == []


def test_a_state_that_does_not_fit_the_model(device: Device) -> None:
    """A file may say anything."""
    model = tiny_model()
    x, labels = digits(16)
    settings: dict[str, Any] = {"batch_size": 16, "device": device, "verbose": False}
    model.fit(x, labels, freeze="conv1", **settings)
    state = model.training_state
    assert state is not None
    for frozen in ("conv1", 3, ["conv1/weight", 4], ["other/weight"], list(model.graph.trainable)):
        broken = dataclasses.replace(state, settings={**state.settings, "frozen": frozen})
        model.training_state = broken
        with pytest.raises(OptionError, match=r"resume: what the interrupted training froze must be parameters"):
            model.fit(x, labels, epochs=2, resume=True, **settings)
    model.training_state = dataclasses.replace(state, settings={**state.settings, "frozen": []})
    with pytest.raises(OptionError, match=r"resume: the optimizer's state must be that of the parameters .* trained"):
        model.fit(x, labels, epochs=2, resume=True, **settings)
    # A file from before anything could be frozen says nothing about it.
    whole = tiny_model()
    whole.fit(x, labels, **settings)
    state = whole.training_state
    assert state is not None
    old = {name: value for name, value in state.settings.items() if name != "frozen"}
    whole.training_state = dataclasses.replace(state, settings=old)
    whole.fit(x, labels, epochs=2, resume=True, **settings)


@pytest.mark.parametrize(
    ("freeze", "message"),
    [
        ("*", r"freeze: something must be left to train, .* Received freeze=\*, parameters=7"),
        ("conv3", r"freeze: every pattern must stand for parameters .*pattern='conv3'. Hint: did you mean 'conv"),
        ("relu2", r"freeze: every pattern must stand for parameters .*Hint: relu2 has none."),
    ],
)
def test_what_cannot_be_frozen(device: Device, freeze: str, message: str) -> None:
    model = tiny_model()
    x, labels = digits(8)
    for act in (lambda: model.fit(x, labels, freeze=freeze, device=device, verbose=False),
                lambda: model.gradients(x, labels, freeze=freeze, device=device),
                lambda: model.plan(8, freeze=freeze)):  # fmt: skip
        with pytest.raises(OptionError, match=message):
            act()
    with pytest.raises(OptionError, match=r"rates: every pattern must stand for .*pattern='conv9'"):
        model.fit(x, labels, optimizer=SGD(rates={"conv9": 2.0}), device=device, verbose=False)
    # The model and the device are as usable as before.
    model.fit(x, labels, freeze="conv1", device=device, verbose=False)


def test_a_plan_tells_what_freezing_saves() -> None:
    model = tiny_model()
    sizes = [model.plan(64, freeze=freeze).bytes() for freeze in ([], ["conv1"], ["conv*", "norm2"])]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == 3


# -- trunks and heads --------------------------------------------------------------------------------------------------


def test_outputs_of_every_layer_against_numpy(device: Device) -> None:
    model = norms()
    x, _ = batch_of(model.graph, CrossEntropy())
    for name in ("norm1", "silu1", "relu2", "average", "head"):
        inner = model.outputs_of(name)
        assert inner.graph.output.name == name
        assert {name: inner.weights[name].tobytes() for name in inner.weights}.items() <= arrays(model.weights).items()
        wanted = run(inner.graph, model.weights, x, training=False)
        found = inner.predict(x, device=device)
        assert_close(found, wanted.reshape(found.shape), relative=1e-5, absolute=1e-5, what=name)


def test_a_new_head_on_a_model_from_a_file(device: Device, tmp_path: Path) -> None:
    trained = tiny_model()
    x, labels = digits(32)
    trained.fit(x, labels, batch_size=16, device=device, verbose=False)
    trained.save(tmp_path / "trained.h5")
    inputs, features, early = bn.load(tmp_path / "trained.h5").trunk("flatten", "relu2")
    pooled = layers.GlobalAveragePool(name="pooled")(early)
    joined = layers.Concat(name="joined")([features, pooled])
    model = bn.Model(inputs, layers.Dense(3, name="head")(joined), class_names=["a", "b", "c"], seed=5)
    for name, values in trained.weights.items():
        if not name.startswith("logits"):
            assert np.array_equal(model.weights[name], values), name
    assert model.layers_until("joined") == ["conv1", "conv2", "norm2"]
    before = model.weights
    model.fit(x, labels % 3, batch_size=16, freeze=model.layers_until("joined"), device=device, verbose=False)
    changed = {name for name, values in model.weights.items() if values.tobytes() != before[name].tobytes()}
    assert changed == {"head/weight", "head/bias"}
    # The weights that the file's model has are its own.
    assert arrays(trained.weights)["conv1/weight"] == model.weights["conv1/weight"].tobytes()
    model.save(tmp_path / "new.h5")
    again = bn.load(tmp_path / "new.h5")
    assert arrays(again.weights) == arrays(model.weights)


def test_with_classes_gives_a_new_last_layer() -> None:
    model = norms()
    other = model.with_classes(7, [str(number) for number in range(7)], seed=2)
    assert other.graph.output.shape.units == 7
    assert other.class_names == tuple("0123456")
    assert [vertex.name for vertex in other.graph.vertices] == [vertex.name for vertex in model.graph.vertices]
    same = [name for name in model.weights if not name.startswith("head")]
    assert all(np.array_equal(model.weights[name], other.weights[name]) for name in same)
    assert other.weights["head/weight"].shape == (7, 4)
    assert not np.array_equal(other.weights["head/weight"], model.with_classes(7, seed=3).weights["head/weight"])
    # An output behind the last weights goes along.
    images = layers.Input(2, 4, 4)()
    pooled = layers.GlobalAveragePool()(layers.Conv2D(3, 3, name="last", activation="relu")(images))
    assert Model(images, pooled).with_classes(5).graph.output.shape.units == 5


@pytest.mark.parametrize("function", ["softmax", "sigmoid"])
def test_with_classes_leaves_probabilities_to_the_loss(function: str) -> None:
    images = layers.Input(2, 4, 4)()
    logits = layers.Dense(3, name="head")(layers.GlobalAveragePool()(images))
    other = Model(images, layers.Activation(function)(logits)).with_classes(5)
    assert (other.graph.output.name, other.graph.output.shape.units) == ("head", 5)


@pytest.mark.parametrize("size", [(4,), (5, 7), (3, 6, 2)], ids=str)
def test_with_classes_of_another_size_keeps_what_is_done_to_samples(device: Device, size: tuple[int, ...]) -> None:
    """On any number of axes; the numbers are those of the same layers with that size from the start."""
    random, kind = np.random.default_rng(3), (layers.Conv1D, layers.Conv2D, layers.Conv3D)[len(size) - 1]

    def network(sides: tuple[int, ...]) -> Model:
        node = layers.Input.of(Shape(2, *sides), name="samples")()
        features = layers.GlobalAveragePool()(kind(3, 3, padding=1, name="filters")(node))
        return Model(node, layers.Dense(4, name="head")(features))

    model = network((4,) * len(size))
    model.set_normalization([3, 40], [0.5, 7])
    other = model.with_classes(5, size=size, seed=1)
    assert other.graph.input.shape == Shape(2, *size)
    np.testing.assert_array_equal(other.weights["samples/mean"], [3, 40])
    np.testing.assert_array_equal(other.weights["samples/deviation"], [0.5, 7])
    x = random.normal([[3], [40]], [[1], [9]], (4, 2, math.prod(size))).reshape(4, 2, *size).astype(np.float32)
    wanted = network(size).with_classes(5)
    wanted.set_weights({**other.weights, "samples/mean": [0, 0], "samples/deviation": [1, 1]})
    normalized = (x - np.reshape([3, 40], (2, *[1] * len(size)))) / np.reshape([0.5, 7], (2, *[1] * len(size)))
    found = other.predict(x, device=device)
    np.testing.assert_allclose(
        found, wanted.predict(normalized.astype(np.float32), device=device), rtol=1e-5, atol=1e-5
    )


def test_take_weights_by_the_names_of_layers() -> None:
    source, model = norms(), norms(seed=9).with_classes(5)
    model.set_normalization([1, 2], [3, 4])
    assert model.take_weights(source) == ["head"]
    for name, values in model.weights.items():
        expected = name.startswith(("conv", "norm"))
        assert (values.shape == source.weights[name].shape and np.array_equal(values, source.weights[name])) == expected
    assert norms(seed=3).take_weights(source) == []


def test_what_cannot_be_transferred(device: Device) -> None:
    model = norms()
    near = r"Received layer=avarage. Hint: did you mean 'average'"
    for act, subject in (
        (model.trunk, "trunk"),
        (model.outputs_of, "outputs_of"),
        (model.layers_until, "layers_until"),
    ):
        with pytest.raises(OptionError, match=rf"{subject}: it must name a layer of the model. {near}"):
            act("avarage")
    with pytest.raises(OptionError, match=r"with_classes: classes must be an int of at least 1"):
        model.with_classes(0)
    normed = Sequential([layers.Input(4, name="in"), layers.Dense(3, name="dense"), layers.BatchNorm(name="last")])
    message = r"last \(BatchNorm\): the number of its outputs must be one that can be chosen. Received outputs=5."
    with pytest.raises(OptionError, match=message):
        normed.with_classes(5)
    flat = Sequential([layers.Input(2, 4, 4), layers.Conv2D(3, 3, name="conv"), layers.Flatten()])
    with pytest.raises(ShapeError, match=r"with_classes: the model's outputs must be those .*layer=conv.*classes=5"):
        flat.with_classes(5)
    with pytest.raises(OptionError, match=r"with_classes: the model must have a layer with weights"):
        Sequential([layers.Input(2, 4, 4), layers.Flatten()]).with_classes(5)
    with pytest.raises(OptionError, match=r"take_weights: the models must have layers with weights of the same names"):
        flat.take_weights(model)
    images = layers.Input(3, 7, 6, name="input")()
    wide = layers.Conv2D(5, 3, padding=1, bias=False, name="conv1")(images)
    other = Model(images, layers.Dense(3, name="head")(wide))
    message = r"weights of conv1: a layer before the last one must have the same parameters in both models. Received .*"
    with pytest.raises(ShapeError, match=message + r"wanted=.*\(5, 3, 3, 3\).*given=.*\(5, 2, 3, 3\)"):
        other.take_weights(model)
    x, _ = batch_of(other.graph, CrossEntropy())
    with pytest.raises(DataError, match=r"each sample must have the shape of the model's input"):
        model.outputs_of("average").predict(x, device=device)
    with pytest.raises(OptionError, match="the outputs must depend on exactly the input that is given"):
        Model(layers.Input(2, 7, 6)(), model.trunk("average")[1])
    inputs, end = model.trunk("head")
    with pytest.raises(OptionError, match="layer names must be unique"):
        Model(inputs, layers.Dense(2, name="head")(end))
