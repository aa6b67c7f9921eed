"""The speedrun: whitened filters, the network and its views against PyTorch, and the command."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blobnet as bn
from blobnet.command_line import main, speedrun
from blobnet.device.device import Device
from blobnet.models.airbench import FROZEN, whiten
from tests.bench.torch_twin import Twin

SMALL: dict[str, Any] = {"widths": (6, 10, 12)}


def pictures(count: int, *, units: int = 2) -> Any:
    """Pictures whose cells depend on each other, and whose units do."""
    values = np.random.default_rng(0).normal(size=(count, units, 13, 15))
    values[..., 1:] += 0.8 * values[..., :-1]
    values[:, 1:] += 0.5 * values[:, :1]
    return np.clip(128 + 40 * values, 0, 255).astype(np.uint8)


def small_model(x: Any) -> bn.Model:
    model = bn.models.airbench(x.shape[1:], 5, **SMALL)
    model.set_normalization(x.mean((0, 2, 3)), x.std((0, 2, 3)))
    whiten(model, x)
    return model


def test_the_first_filters_take_correlations_out() -> None:
    torch = pytest.importorskip("torch")
    x = pictures(400)
    weights = small_model(x).weights
    normalized = (x - x.mean((0, 2, 3), keepdims=True)) / x.std((0, 2, 3), keepdims=True)
    filters = torch.tensor(weights["whiten/weight"].astype(float))
    assert filters.shape == (16, 2, 2, 2)
    assert not weights["whiten/bias"].any()
    np.testing.assert_array_equal(filters[8:], -filters[:8])
    answers = torch.nn.functional.conv2d(torch.tensor(normalized), filters[:8]).numpy()
    rows = answers.transpose(0, 2, 3, 1).reshape(-1, 8)
    moments = rows.T @ rows / len(rows)
    # Of a value v the filters leave v / (v + 5e-4).
    np.testing.assert_allclose(moments, np.diag(np.diag(moments)), atol=1e-4)
    assert np.all((np.diag(moments) > 0.97) & (np.diag(moments) <= 1))


def test_the_network_is_the_published_one(device: Device) -> None:
    """Its sizes and order, written again in PyTorch; the 3x3 filters begin as they do there."""
    torch = pytest.importorskip("torch")
    nn = torch.nn
    x = pictures(7)
    model = small_model(x)
    widths, inputs, parts = SMALL["widths"], 16, [nn.Conv2d(2, 16, 2), nn.GELU()]
    for units in widths:
        first, second = (nn.Conv2d(own, units, 3, padding="same", bias=False) for own in (inputs, units))
        norms = [nn.BatchNorm2d(units, eps=1e-12, momentum=0.4) for _ in range(2)]
        parts += [first, nn.MaxPool2d(2), norms[0], nn.GELU(), second, norms[1], nn.GELU()]
        for convolution in (first, second):
            nn.init.dirac_(convolution.weight.data[: convolution.weight.size(1)])
        inputs = units
    network = nn.Sequential(*parts, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 5, bias=False))
    given = model.weights
    own = {name: torch.tensor(values) for name, values in given.items() if not name.startswith("input/")}
    kinds = "weight", "bias", "scale", "shift", "running_mean", "running_variance"
    values = [values for name, values in own.items() if name.rpartition("/")[2] in kinds]
    theirs = [array for name, array in network.state_dict().items() if not name.endswith("tracked")]
    for mine, their in zip(values, theirs, strict=True):
        assert mine.shape == their.shape
        if their.ndim == 4 and their.shape[2] == 3:
            count = min(their.shape[:2])
            assert torch.equal(mine[:count], their[:count])
        their.copy_(mine)
    network.double().eval()
    normalized = (x.astype(float) - x.mean((0, 2, 3), keepdims=True)) / x.std((0, 2, 3), keepdims=True)
    with torch.no_grad():
        wanted = network(torch.tensor(normalized)).numpy()
    np.testing.assert_allclose(model.predict(x, device=device), wanted, rtol=1e-3, atol=1e-3)


def test_only_filters_of_patches_and_scales_are_frozen() -> None:
    model = small_model(pictures(3))
    frozen = speedrun.frozen_names(model)
    assert frozen == {
        "whiten/weight",
        *(f"group{number}_norm{place}/scale" for number in (1, 2, 3) for place in (1, 2)),
    }
    assert FROZEN


def test_views_are_those_of_the_paper() -> None:
    """Mirrored, and by a cell to both sides; logits are means, of which those that are moved have a half."""
    torch = pytest.importorskip("torch")
    pad = torch.nn.functional.pad
    x = pictures(5).astype(np.float32)
    weights = np.random.default_rng(1).normal(size=(2 * 13 * 15, 4))

    def predict(own: Any) -> Any:
        return np.sin(own.reshape(len(own), -1) @ weights)

    def mirrored(own: Any) -> Any:
        return 0.5 * predict(own.numpy()) + 0.5 * predict(own.flip(-1).numpy())

    whole, padded = torch.tensor(x), pad(torch.tensor(x), (1, 1, 1, 1), "reflect")
    moved = [mirrored(padded[:, :, place : place + 13, place : place + 15]) for place in (0, 2)]
    wanted = 0.5 * mirrored(whole) + 0.5 * np.mean(moved, axis=0)
    np.testing.assert_allclose(speedrun.of_views(predict, x), wanted, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("against", [False, True])
def test_the_command_prints_the_mean_of_its_seeds(
    device: Device, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, against: bool
) -> None:
    if against:
        pytest.importorskip("torch")
    y = np.arange(120) % 3
    x = pictures(120, units=1)
    x[np.arange(120), 0, 4 * y] = 255  # A bright row tells the class.
    x[np.arange(120), 0, :, 2] = 0
    np.savez(tmp_path / "rows.npz", x=x[:90], y=y[:90], x_test=x[90:], y_test=y[90:])
    monkeypatch.setattr(speedrun, "SMALL", SMALL)
    monkeypatch.setattr(speedrun, "BATCH_SIZE", 10)
    arguments = ["speedrun", "--dataset", str(tmp_path / "rows.npz"), "--epochs", "4", "--seeds", "2"]
    arguments += ["--device", device.info.address, *(["--against", "torch"] if against else [])]
    assert main.main(arguments) == 0
    out = capsys.readouterr().out
    for name in ("blobnet", "torch") if against else ("",):
        accuracies = [float(found) for found in re.findall(rf"^{name} ?seed \d: accuracy (\S+) in", out, re.MULTILINE)]
        assert len(accuracies) == 2
        assert min(accuracies) > 0.8  # By chance a third.
        mean = re.search(rf"{name or 'blobnet'}: mean accuracy (\S+), deviation (\S+), median time", out)
        assert mean is not None
        assert float(mean[1]) == pytest.approx(np.mean(accuracies), abs=1e-4)
        assert float(mean[2]) == pytest.approx(np.std(accuracies, ddof=1), abs=1e-4)


def test_the_large_network_erases_rectangles(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = str(tmp_path / "rows.npz")
    np.savez(data, x=pictures(9), y=np.arange(9) % 3, x_test=pictures(3), y_test=np.arange(3))
    seen: list[dict[str, Any]] = []
    monkeypatch.setattr(bn.Model, "fit", lambda self, x, y, **settings: seen.append(settings | {"self": self}))
    monkeypatch.setattr(bn.Model, "predict", lambda self, x, **settings: np.zeros((len(x), 3), np.float32))
    assert main.main(["speedrun", "--dataset", data, "--large", "--seeds", "1"]) == 0
    (settings,) = seen
    assert settings["epochs"] == 60
    assert settings["augment"][2] == bn.augment.Erasing(0.5, (0.02, 0.33))
    assert settings["self"].weights["group3_conv2/weight"].shape == (512, 512, 3, 3)
    capsys.readouterr()
    assert main.main(["speedrun", "--dataset", data, "--large", "--against", "torch"]) == 1
    rule = "--against torch: PyTorch's network trains without erased rectangles, --large with them"
    assert f"{rule}. Hint: leave out --large or --against." in capsys.readouterr().err


def test_the_command_takes_pictures_with_classes_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "numbers.npz", x=np.zeros((9, 4), np.float32), y=np.arange(9) % 3)
    assert main.main(["speedrun", "--dataset", str(tmp_path / "numbers.npz")]) == 1
    rule = "speedrun: there must be pictures of one size, with a class each, and a test split"
    assert rule in capsys.readouterr().err


def test_the_twin_begins_with_the_same_answers(device: Device) -> None:
    torch = pytest.importorskip("torch")
    x = pictures(4)
    model = small_model(x)
    with torch.no_grad():
        found = Twin(model).module.eval()(torch.tensor(x).float()).numpy()
    np.testing.assert_allclose(found, model.predict(x, device=device), rtol=1e-4, atol=1e-4)
