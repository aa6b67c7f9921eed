"""Finding a learning rate."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blobnet as bn
from blobnet import layers
from blobnet.command_line import lr_find, main
from blobnet.device.device import Device
from blobnet.errors import DataError, OptionError, TrainingError
from blobnet.optimizers import SGD
from blobnet.training import rate_finder

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((90, 6)).astype(np.float32)
Y = (X @ RANDOM.standard_normal((6, 1))).astype(np.float32)


def line() -> bn.Model:
    return bn.Sequential([layers.Input(6), layers.Dense(1)], seed=3)


def published_valley(rates: list[float], losses: list[float]) -> float:
    """fastai's, loop by loop (fastai/callback/schedule.py, ``valley``)."""
    begin, end = len(losses) // 10, len(losses) - 5
    rates, losses = rates[begin:end], losses[begin:end]
    n, max_start, max_end = len(losses), 0, 0
    lds = [1] * n
    for i in range(1, n):
        for j in range(i):
            if losses[i] < losses[j] and lds[i] < lds[j] + 1:
                lds[i] = lds[j] + 1
            if lds[max_end] < lds[i]:
                max_end = i
                max_start = max_end - lds[max_end]
    sections = (max_end - max_start) / 3
    return rates[max_start + int(sections) + int(sections / 2)]


@pytest.mark.parametrize("seed", range(6))
def test_the_suggestion_is_fastais(seed: int) -> None:
    random = np.random.default_rng(seed)
    rates = np.geomspace(1e-7, 10, 100).tolist()
    falling = 2.3 - np.arange(100) / (40 + 10 * seed) + 4.0 * (np.arange(100) > 90)
    losses = (falling + 0.02 * seed * random.standard_normal(100)).tolist()
    assert rate_finder._valley(rates, losses) == published_valley(rates, losses)


def test_losses_that_never_fall_suggest_nothing() -> None:
    rates, rising = np.geomspace(1e-7, 10, 100).tolist(), np.linspace(1, 2, 100).tolist()
    with pytest.raises(TrainingError, match=r"^find_learning_rate: the loss must fall before it explodes"):
        rate_finder._valley(rates, rising)
    rising[50] = 0.5  # One dip is no valley.
    with pytest.raises(TrainingError, match="the loss must fall"):
        rate_finder._valley(rates, rising)


def test_lists_are_arrays(device: Device) -> None:
    settings: dict[str, Any] = {"optimizer": SGD(), "loss": "mse", "device": device, "steps": 20, "last": 1e-2}
    found, wanted = (bn.find_learning_rate(line(), x, y, **settings) for x, y in ((X.tolist(), Y.tolist()), (X, Y)))
    np.testing.assert_array_equal(found.losses, wanted.losses)


def test_the_losses_are_those_of_gradient_descent(device: Device) -> None:
    """Against float64: the mean squared error of a line, at each rate, until it explodes; the model stays as it was."""
    model = line()
    model.fit(X, Y, loss="mse", device=device, verbose=False)
    before, state = model.weights, model.training_state
    found = bn.find_learning_rate(
        model, X, Y, first=1e-4, steps=60, batch_size=90, optimizer=SGD(), loss="mse", device=device
    )
    after = model.weights
    assert all(after[name].tobytes() == values.tobytes() for name, values in before.items())
    assert model.training_state == state
    weight, bias = before["dense_1/weight"].astype(float), before["dense_1/bias"].astype(float)
    x = (X - before["input_1/mean"]) / before["input_1/deviation"]
    mean, wanted = 0.0, []
    rates = np.geomspace(1e-4, 10, 60)
    for number, rate in enumerate(rates[: len(found.losses)]):
        error = x @ weight.T + bias - Y
        mean = 0.98 * mean + 0.02 * float((error**2).mean())
        wanted.append(mean / (1 - 0.98 ** (number + 1)))
        weight = weight - rate * 2 * error.T @ x / len(x)
        bias = bias - rate * 2 * error.mean(axis=0)
    falling = int(found.losses.argmin()) + 1  # Behind it, rounding explodes as well.
    np.testing.assert_allclose(found.losses[:falling], wanted[:falling], rtol=1e-4)
    assert falling > 40
    np.testing.assert_allclose(found.rates, rates[: len(found.rates)], rtol=1e-12)
    assert len(found.rates) < 60
    assert found.losses[-1] > 4 * found.losses.min()
    assert 1e-3 < found.suggestion < 2 / np.linalg.eigvalsh(2 * x.T @ x / len(x)).max()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"steps": 5}, OptionError, r"^find_learning_rate: steps must be at least 16\. Received steps=5\.$"),
        ({"first": 0}, OptionError, "^find_learning_rate: first must be a finite number above 0"),
        ({"first": 1.0, "last": 0.5}, OptionError, r"^find_learning_rate: last must be a finite number above 1"),
        (
            {"first": 1e3, "last": 1e6},
            TrainingError,
            r"the loss must fall before it explodes.*Hint: begin with a smaller",
        ),
        ({"y": Y[:3]}, DataError, r"^find_learning_rate: there must be a label for each sample\. Received samples=90"),
    ],
)
def test_what_is_refused(device: Device, options: dict[str, Any], error: type[Exception], message: str) -> None:
    given: dict[str, Any] = {"y": Y, "optimizer": SGD(), "loss": "mse", "device": device, **options}
    with pytest.raises(error, match=message):
        bn.find_learning_rate(line(), X, **given)


def test_the_command(device: Device, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "rates.png"
    arguments = ["lr-find", "lenet5", "--dataset", "digits", "--steps", "60", "--plot", str(picture)]
    assert main.main([*arguments, "--device", device.info.address]) == 0
    said = capsys.readouterr().out
    rate = float(said.rsplit("--learning-rate ", 1)[1])
    assert 1e-5 < rate < 0.3
    assert not math.isnan(rate)
    assert picture.read_bytes()[:4] == b"\x89PNG"


def test_classes_are_numbered_as_the_files(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By their names, as evaluate has them."""
    model = bn.Sequential([layers.Input(1, 8, 8), layers.Flatten(), layers.Dense(10)])
    model.class_names = tuple("9876543210")
    model.save(tmp_path / "turned.h5")
    seen, found = list[Any](), rate_finder.RateSearch(np.array([1e-3, 1.0]), np.array([1.0, 2.0]), 1e-2)
    monkeypatch.setattr(lr_find, "find_learning_rate", lambda model, x, y, **_: seen.append(y) or found)
    arguments = ["lr-find", str(tmp_path / "turned.h5"), "--dataset", "digits", "--device", device.info.address]
    assert main.main(arguments) == 0
    np.testing.assert_array_equal(seen[0], 9 - bn.datasets.load("digits").train.y)
