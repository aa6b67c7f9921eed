"""Training step by step: the same steps as ``fit`` and PyTorch, gradients that are read and changed, two networks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import blobnet as bn
from blobnet import layers, optimizers, schedules
from blobnet.device.device import Device
from blobnet.errors import BlobnetError, TrainingError
from tests.tiny import digits, tiny_model


def small(seed: int = 0) -> bn.Model:
    return bn.Sequential(
        [layers.Input(3), layers.Dense(4, activation="tanh", name="one"), layers.Dense(2, name="two")], seed=seed
    )


def batch(count: int = 5, seed: int = 0) -> tuple[Any, Any]:
    random = np.random.default_rng(seed)
    return random.standard_normal((count, 3), np.float32), random.integers(0, 2, count)


def test_the_same_steps_as_fit(device: Device) -> None:
    """Bit by bit, with dropout, batch norms, averages and a short last batch."""
    batches = [digits(count, first) for count, first in ((16, 0), (16, 16), (7, 32))]
    options: dict[str, Any] = {"optimizer": optimizers.AdamW(1e-2, weight_decay=0.1), "average": 0.9, "seed": 3}
    one, two = tiny_model(), tiny_model()
    one.fit(batches, batch_size=16, device=device, verbose=False, **options)
    step = two.trainer(device=device, **options)
    for x, y in batches:
        step.train(x, y)
        step.update()
    assert step.number == 3
    for name, values in one.weights.items():
        np.testing.assert_array_equal(two.weights[name], values, err_msg=name)
    x, y = digits(20)
    assert two.evaluate(x, y, device=device) == one.evaluate(x, y, device=device)


def test_a_gan_against_pytorch(device: Device) -> None:
    """The generator, with a batch norm, learns from the delta of the discriminator's input."""
    torch = pytest.importorskip("torch")
    generator = bn.Sequential(
        [
            layers.Input(5),
            layers.Dense(12, bias=False, name="one"),
            layers.BatchNorm(name="norm"),
            layers.Activation("relu"),
            layers.Dense(7, name="two"),
        ],
        seed=1,
    )
    discriminator = bn.Sequential(
        [layers.Input(7), layers.Dense(9, activation="leaky_relu", name="one"), layers.Dense(1, name="two")], seed=2
    )
    discriminator.set_normalization(0.2, 1.5)  # Which the delta of the input goes through.
    nn = torch.nn
    theirs = nn.Sequential(nn.Linear(5, 12, bias=False), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 7)).double()
    critic = nn.Sequential(nn.Linear(7, 9), nn.LeakyReLU(0.01), nn.Linear(9, 1)).double()
    pairs = [(generator, "one", theirs[0]), (generator, "two", theirs[3])]
    pairs += [(discriminator, "one", critic[0]), (discriminator, "two", critic[2])]
    for model, name, layer in pairs:
        for kind, values in layer.named_parameters():
            values.data = torch.tensor(model.weights[f"{name}/{kind}"]).double()
    adam = optimizers.Adam(1e-2, beta1=0.5)
    makes = generator.trainer(optimizer=adam, device=device)
    judges = discriminator.trainer(
        optimizer=adam, loss="binary_cross_entropy", input_delta=True, device=device, debug=True
    )
    of_makes, of_judges = (torch.optim.Adam(each.parameters(), 1e-2, betas=(0.5, 0.999)) for each in (theirs, critic))
    loss, random = nn.BCEWithLogitsLoss(), np.random.default_rng(0)
    for number in range(6):
        count = (16, 11, 7)[number % 3]
        real, noise = (random.standard_normal((count, units)).astype(np.float32) for units in (7, 5))
        ones, zeros = np.ones((count, 1)), np.zeros((count, 1))

        made = makes.forward(noise)
        judges.train(real, ones)
        found = [judges.loss]
        judges.train(made, zeros, add=True)
        found.append(judges.loss)
        judges.update()
        judges.train(made, ones)
        found.append(judges.loss)
        makes.backward(delta=judges.input_delta)
        makes.update()

        own = theirs(torch.tensor(noise).double())
        of_judges.zero_grad()
        parts = [
            loss(critic((x - 0.2) / 1.5), torch.tensor(y))
            for x, y in ((torch.tensor(real).double(), ones), (own.detach(), zeros))
        ]
        sum(parts).backward()
        of_judges.step()
        of_makes.zero_grad()
        last = loss(critic((own - 0.2) / 1.5), torch.tensor(ones))
        last.backward()
        of_makes.step()
        wanted = [parts[0].item(), sum(parts).item() / 2, last.item()]
        np.testing.assert_allclose(found, wanted, rtol=1e-5)
        np.testing.assert_allclose(made, own.detach().numpy(), rtol=1e-4, atol=1e-5)
        for model, name, layer in pairs:
            for kind, values in layer.named_parameters():
                np.testing.assert_allclose(
                    model.weights[f"{name}/{kind}"], values.detach().numpy(), rtol=1e-4, atol=2e-6, err_msg=name
                )
        np.testing.assert_allclose(generator.weights["norm/running_mean"], theirs[1].running_mean, rtol=1e-4, atol=1e-6)


def test_gradients_are_read_and_changed(device: Device) -> None:
    """Also by the other weights of a batch before, which do not stay."""
    model, (x, y) = small(), batch()
    before = model.weights
    step = model.trainer(optimizer=optimizers.SGD(0.5), freeze="one/bias", device=device)
    step.train(x, y, sample_weights=[1, 2, 3, 4, 5])
    weighed = step.gradients
    step.train(x, y)
    found, wanted = step.gradients, model.gradients(x, y, freeze="one/bias", device=device)
    del wanted["input"]
    assert set(found) == set(wanted) == {"one/weight", "two/weight", "two/bias"}
    for name, values in wanted.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-6, atol=1e-9)
        assert not np.allclose(weighed[name], values)
    step.set_gradients({"two/weight": 3 * found["two/weight"]})
    step.update(learning_rate=0.25)
    assert step.learning_rate == 0.25
    factors = {"one/weight": 1, "two/weight": 3, "two/bias": 1, "one/bias": 0}
    for name, factor in factors.items():
        moved = before[name] - 0.25 * factor * found[name] if factor else before[name]
        np.testing.assert_allclose(model.weights[name], moved, rtol=1e-6, atol=1e-7, err_msg=name)


def test_a_delta_in_place_of_a_loss(device: Device) -> None:
    """The gradients of a loss of one's own, of two outputs, from uint8 samples."""
    pixels = layers.Input(2, 4, 5, name="pixels")()
    trunk = layers.Conv2D(3, 3, padding=1, activation="relu", name="conv")(pixels)
    outputs = {"planes": layers.Conv2D(2, 1, name="planes")(trunk), "row": layers.Dense(4, name="row")(trunk)}
    model = bn.Model({"pixels": pixels}, outputs, seed=4)
    model.set_normalization(100.0, 50.0)
    random = np.random.default_rng(5)
    x = random.integers(0, 256, (3, 2, 4, 5), np.uint8)
    targets = {"planes": random.standard_normal((3, 2, 4, 5)), "row": random.standard_normal((3, 4))}
    losses = {"planes": "mse", "row": "mse"}
    step = model.trainer(loss=losses, device=device, input_delta=True, debug=True)
    values = step.forward(x)
    step.backward(delta={name: 2 * (values[name] - own) / own.size for name, own in targets.items()})
    wanted = model.gradients(x, targets, loss=losses, device=device)
    np.testing.assert_allclose(step.input_delta, wanted.pop("input"), rtol=1e-4, atol=1e-8)
    for name, found in step.gradients.items():
        np.testing.assert_allclose(found, wanted[name], rtol=1e-4, atol=1e-7, err_msg=name)


def test_the_weights_are_the_models(device: Device) -> None:
    """What is set there is trained on; two trainers of a model go on from each other, and fit from both."""
    model, (x, y) = small(), batch()
    sgd = optimizers.SGD(0.1)
    one, two = (model.trainer(optimizer=sgd, device=device) for _ in range(2))
    other = small()
    for step in (one, two, one):
        gradients = other.gradients(x, y, device=device)
        other.set_weights(
            {name: values - 0.1 * gradients[name] for name, values in other.weights.items() if name in gradients}
        )
        step.train(x, y)
        step.update()
    for name, values in other.weights.items():
        np.testing.assert_allclose(model.weights[name], values, rtol=1e-5, atol=1e-6)
    clipped = {name: np.clip(values, -0.1, 0.1) for name, values in model.weights.items() if name.endswith("weight")}
    model.set_weights(clipped)
    copied = small()
    copied.set_weights(model.weights)
    one.train(x, y)
    gradients = one.gradients
    one.update()
    wanted = clipped["two/weight"] - 0.1 * gradients["two/weight"]
    np.testing.assert_allclose(model.weights["two/weight"], wanted, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(
        gradients["two/weight"], copied.gradients(x, y, device=device)["two/weight"], rtol=1e-5, atol=1e-7
    )


def test_the_state_goes_on(device: Device, tmp_path: Any) -> None:
    (x, y), adam = batch(), optimizers.Adam(schedules.Cosine(1e-2))
    options: dict[str, Any] = {"optimizer": adam, "device": device, "steps_per_epoch": 4}
    whole, model = small(), small()
    step = whole.trainer(**options)
    for _ in range(4):
        step.train(x, y)
        step.update()
    half = model.trainer(**options)
    for _ in range(2):
        half.train(x, y)
        half.update()
    model.save(tmp_path / "model.h5")
    np.savez(tmp_path / "state.npz", **half.state())
    loaded = bn.load(tmp_path / "model.h5")
    again = loaded.trainer(**options)
    again.restore(np.load(tmp_path / "state.npz"))
    for _ in range(2):
        again.train(x, y)
        again.update()
    assert again.number == 4
    assert again.learning_rate == step.learning_rate
    for name, values in whole.weights.items():
        np.testing.assert_array_equal(loaded.weights[name], values, err_msg=name)


def test_lookahead_goes_back_to_what_was_set(device: Device) -> None:
    model, (x, y) = small(), batch()
    step = model.trainer(optimizer=optimizers.SGD(0.1, lookahead=2), device=device)

    def update() -> dict[str, Any]:
        step.train(x, y)
        gradients = step.gradients
        step.update()
        return gradients

    given = {name: model.weights[name] + 1 for name in update()}
    model.set_weights(given)
    for name, gradient in update().items():  # It goes back half of the way from there.
        wanted = given[name] - 0.5 * 0.1 * gradient
        np.testing.assert_allclose(model.weights[name], wanted, rtol=1e-5, atol=1e-6, err_msg=name)
    update()
    before, state = model.weights, step.state()
    update()
    after = model.weights
    model.set_weights(before)
    step.restore(state)  # With the parameters that it goes back to.
    update()
    for name, values in after.items():
        np.testing.assert_array_equal(model.weights[name], values, err_msg=name)


def test_dropout_differs_from_call_to_call(device: Device) -> None:
    model = bn.Sequential([layers.Input(64), layers.Dropout(0.5)])
    step = model.trainer(loss="mse", device=device)
    x = np.ones((2, 64), np.float32)
    one, two = step.forward(x), step.forward(x)
    assert set(np.unique(one)) == {0, 2}
    assert (one != two).any()


def _finite(step: Any) -> None:
    step.train(*batch())


@pytest.mark.parametrize(
    ("act", "text"),
    [
        (lambda step: step.update(), "there must be gradients since the last update"),
        (lambda step: step.gradients, "there must be gradients since the last update"),
        (lambda step: step.loss, "there must have been a batch"),
        (lambda step: step.backward([0]), "forward must come before it"),
        (lambda step: step.train(batch()[0]), "it takes either labels or the delta of the output"),
        (lambda step: step.train(batch()[0], delta=np.zeros((5, 3))), "it must have the shape of the output"),
        (lambda step: step.train(batch()[0], delta=np.full((5, 2), np.nan)), "every number must be finite"),
        (lambda step: step.train(batch()[0], [0, 1, 2, 0, 1]), "class numbers must be below 2"),
        (lambda step: step.train(np.zeros((0, 3), np.float32), []), "must hold at least one sample"),
        (lambda step: (_finite(step), step.train(*batch(6))), "no batch may be larger than the first one"),
        (
            lambda step: (_finite(step), step.train(np.zeros((5, 3), np.uint8), [0] * 5)),
            "all batches must be of the type",
        ),
        (lambda step: (_finite(step), step.set_gradients({"two/weigth": 0})), "every name must be that of a trained"),
        (lambda step: (_finite(step), step.set_gradients({"two/bias": [1.0]})), "must have the parameter's shape"),
        (
            lambda step: (_finite(step), step.set_gradients({"two/bias": [1.0, np.inf]})),
            "every gradient must be finite",
        ),
        (lambda step: (_finite(step), step.input_delta), "input_delta=True"),
        (lambda step: (_finite(step), step.update(-1.0)), "learning_rate"),
        (lambda step: step.restore({}), "the state must be one that step.state"),
        (lambda step: (step.restore({"step": 1}), _finite(step)), "the optimizer's state must be that of"),
    ],
)
def test_what_does_not_fit(device: Device, act: Callable[[Any], object], text: str) -> None:
    step = small().trainer(device=device)
    with pytest.raises(BlobnetError, match=text):
        act(step)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"learning_rate": 1.0}, "there is no such argument"),
        ({"lr": 1.0}, "learning_rate= is a number"),
        ({"batch_size": 0}, "batch_size must be an int of at least 1"),
        ({"optimizer": optimizers.SGD(schedules.Cosine(0.1))}, "a schedule that counts epochs"),
        ({"class_weights": "balanced"}, "must know all labels"),
        ({"optimizer": optimizers.SGD(sam=0.1)}, r"steps that take gradients twice \(sam\) are done in fit alone"),
        ({"loss": "nothing"}, "the loss must be one of blobnet's"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, Any], text: str) -> None:
    with pytest.raises(BlobnetError, match=text):
        small().trainer(**options)


def test_a_loss_that_is_not_finite(device: Device) -> None:
    """Nothing moves, and the next batch goes on."""
    model, (x, _) = small(), batch()
    step = model.trainer(loss="mse", optimizer=optimizers.SGD(0.1), device=device)
    before = model.weights
    step.train(x, np.full((5, 2), 1e30))
    with pytest.raises(TrainingError, match="the loss must stay finite"):
        step.update()
    for name, values in before.items():
        np.testing.assert_array_equal(model.weights[name], values)
    step.train(x, np.zeros((5, 2)))
    step.update()
    assert (model.weights["two/bias"] != before["two/bias"]).all()
