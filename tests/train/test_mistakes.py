"""The worst mistakes, against a loop over all samples in float64."""

from __future__ import annotations

import csv
import math

import numpy as np
import pytest

from blobnet import layers, losses
from blobnet.device.device import Device
from blobnet.errors import ShapeError
from blobnet.inspection import mistakes
from blobnet.inspection.mistakes import worst_mistakes
from blobnet.model import Sequential

NAMES = ("ant", "bee", "cat", "dog", "elk")


def data(count: int = 41) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(7)
    return random.normal(size=(count, 2, 3, 4)).astype(np.float32), random.integers(0, 5, count)


def softmax(outputs: np.ndarray) -> np.ndarray:
    powers = np.exp(outputs.astype(np.float64))
    return powers / powers.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("at_once", [1 << 24, 1])
@pytest.mark.parametrize("count", [4, 400])
def test_classes(device: Device, monkeypatch: pytest.MonkeyPatch, count, at_once) -> None:
    monkeypatch.setattr(mistakes, "_OUTPUTS_AT_ONCE", at_once)  # All samples, or a batch at a time.
    x, y = data()
    model = Sequential([layers.Input(2, 3, 4), layers.Flatten(), layers.Dense(5)], class_names=NAMES, seed=2)
    model.set_normalization([0.5, -1.0], [2.0, 3.0])
    files = [f"{number}.png" for number in range(41)]
    found = worst_mistakes(model, x, y, count=count, batch_size=8, files=files, device=device)
    scores = softmax(model.predict(x, device=device))
    wrong = [(-math.log(scores[n, y[n]]), n) for n in range(41) if scores[n].argmax() != y[n]]
    wanted = sorted(wrong, reverse=True)[:count]
    assert (found.samples, found.wrong) == (41, len(wrong))
    assert [item.number for item in found.worst] == [number for _, number in wanted]
    np.testing.assert_allclose([item.error for item in found.worst], [error for error, _ in wanted], rtol=1e-5)
    for item in found.worst:
        said = int(scores[item.number].argmax())
        assert (item.truth, item.said) == (NAMES[y[item.number]], NAMES[said])
        assert item.share == pytest.approx(scores[item.number, said], rel=1e-6)
        assert item.file == f"{item.number}.png"
    normalised = (x - [[[0.5]], [[-1.0]]]) / [[[2.0]], [[3.0]]]
    np.testing.assert_allclose(found.values, normalised[[number for _, number in wanted]], atol=1e-6)


def test_no_mistakes(device: Device) -> None:
    x = np.eye(3, dtype=np.float32).reshape(3, 3, 1, 1)
    model = Sequential([layers.Input(3, 1, 1), layers.Flatten(), layers.Dense(3, name="dense")])
    model.set_weights({"dense/weight": 30 * np.eye(3), "dense/bias": np.zeros(3)})
    found = worst_mistakes(model, x, np.arange(3), device=device)
    assert (found.samples, found.wrong, found.worst) == (3, 0, ())
    assert found.values.shape == (0, 3, 1, 1)
    surely = worst_mistakes(model, x, np.array([0, 0, 2]), device=device)
    (item,) = surely.worst
    assert (item.number, item.truth, item.said) == (1, "0", "1")
    assert mistakes.percent(item.share) == "99 %"


def test_a_class_for_each_position(device: Device) -> None:
    x, _ = data(9)
    y = np.random.default_rng(1).integers(0, 3, (9, 3, 4))
    y[4] = 7
    y[5, :2] = 7
    model = Sequential([layers.Input(2, 3, 4), layers.Conv2D(3, 1)])
    loss = losses.CrossEntropy(ignore=7)
    found = worst_mistakes(model, x, y, loss=loss, batch_size=4, device=device)
    scores = softmax(model.predict(x, device=device))
    said, errors, parts = scores.argmax(axis=1), {}, {}
    for n in range(9):
        cells = [(row, column) for row, column in np.ndindex(3, 4) if y[n, row, column] != 7]
        missed = [cell for cell in cells if said[n][cell] != y[n][cell]]
        if missed:
            errors[n] = -np.mean([math.log(scores[n, y[n][cell]][cell]) for cell in cells])
            parts[n] = len(missed) / len(cells)
    assert 4 not in errors
    assert [item.number for item in found.worst] == sorted(errors, key=lambda n: -errors[n])
    assert found.wrong == len(errors)
    for item in found.worst:
        assert item.error == pytest.approx(errors[item.number], rel=1e-5)
        assert item.share == pytest.approx(parts[item.number], rel=1e-12)
        assert item.masks is not None
        counts = y[item.number] != 7
        np.testing.assert_array_equal(item.masks, np.where(counts, [y[item.number], said[item.number]], losses.IGNORED))
        pairs = list(zip(y[item.number].ravel(), said[item.number].ravel(), strict=True))
        often = {pair: pairs.count(pair) for pair in pairs if pair[0] not in (7, pair[1])}
        assert often[int(item.truth), int(item.said)] == max(often.values())


def test_targets(device: Device) -> None:
    x, _ = data(12)
    y = np.random.default_rng(2).normal(size=(12, 5)).astype(np.float32)
    model = Sequential([layers.Input(2, 3, 4), layers.Flatten(), layers.Dense(5)])
    found = worst_mistakes(model, x, y, count=3, loss="mse", device=device)
    outputs = model.predict(x, device=device)
    errors = np.abs(outputs.astype(np.float64) - y).mean(axis=1)
    assert [item.number for item in found.worst] == np.argsort(-errors)[:3].tolist()
    assert found.wrong is None
    first = found.worst[0]
    assert first.error == pytest.approx(errors.max(), rel=1e-6)
    assert first.truth == ", ".join(f"{value:.3g}" for value in y[first.number][:3]) + ", ..."
    assert first.said == ", ".join(f"{value:.3g}" for value in outputs[first.number][:3]) + ", ..."
    (row, *_) = csv.DictReader(found.csv().splitlines())
    for unit in range(5):
        assert float(row[f"truth {unit}"]) == pytest.approx(y[first.number, unit], rel=1e-5)
        assert float(row[f"said {unit}"]) == pytest.approx(outputs[first.number, unit], rel=1e-5)


def test_several_labels(device: Device) -> None:
    x, _ = data(30)
    has = np.random.default_rng(3).integers(0, 2, (30, 3)).astype(np.float32)
    layers_of = [layers.Input(2, 3, 4), layers.Flatten(), layers.Dense(3)]
    model = Sequential(layers_of, class_names=("cat", "dog", "red"), seed=4)
    files = [f"{number}.png" for number in range(30)]
    found = worst_mistakes(model, x, has, loss="bce", files=files, batch_size=7, device=device)
    scores = 1 / (1 + np.exp(-model.predict(x, device=device).astype(np.float64)))
    errors = -np.log(np.where(has > 0.5, scores, 1 - scores)).mean(axis=1)
    wrong = ((scores > 0.5) != (has > 0.5)).mean(axis=1)
    assert (found.samples, found.wrong) == (30, int((wrong > 0).sum()))
    assert [item.number for item in found.worst] == [n for n in np.argsort(-errors) if wrong[n]]

    def words(row: np.ndarray) -> str:
        return "|".join(name for name, value in zip(model.class_names, row, strict=True) if value > 0.5) or "(none)"

    rows = list(csv.DictReader(found.csv().splitlines()))
    for item, row in zip(found.worst, rows, strict=True):
        assert item.error == pytest.approx(errors[item.number], rel=1e-5)
        assert (item.share, item.is_part) == (pytest.approx(wrong[item.number]), True)
        assert (item.truth, item.said) == (words(has[item.number]), words(scores[item.number]))
        assert (row["file"], row["truth"], row["said"]) == (f"{item.number}.png", item.truth, item.said)
        for unit, name in enumerate(model.class_names):
            assert float(row[f"truth {name}"]) == has[item.number, unit]
            assert float(row[f"said {name}"]) == pytest.approx(scores[item.number, unit], rel=1e-4)


def test_a_table_has_all_of_them_and_samples_of_those_to_draw(device: Device) -> None:
    x, _ = data(9)
    y = np.random.default_rng(1).integers(0, 3, (9, 3, 4))
    model = Sequential([layers.Input(2, 3, 4), layers.Conv2D(3, 1)])
    every = worst_mistakes(model, x, y, batch_size=4, device=device)
    some = worst_mistakes(model, x, y, batch_size=4, drawn=2, files=["a,b.png"] * 9, device=device)
    assert [item.number for item in some.worst] == [item.number for item in every.worst]
    assert [item.masks is None for item in some.worst] == [False] * 2 + [True] * (len(some.worst) - 2)
    np.testing.assert_array_equal(some.values, every.values[:2])
    header, *rows = csv.reader(some.csv().splitlines())
    assert header == ["number", "file", "truth", "said", "share", "error"]
    for row, item in zip(rows, every.worst, strict=True):
        assert row[:4] == [str(item.number), "a,b.png", item.truth, item.said]
        np.testing.assert_allclose([float(cell) for cell in row[4:]], [item.share, item.error], rtol=1e-5)


def test_a_model_without_classes_needs_its_loss(device: Device) -> None:
    model = Sequential([layers.Input(2, 3, 4), layers.Flatten(), layers.Dense(1)])
    with pytest.raises(ShapeError, match="the model's output must be one logit for each of at least 2 classes"):
        worst_mistakes(model, *data(), device=device)


@pytest.mark.parametrize(
    ("part", "text"),
    [(0.0, "0 %"), (0.004, "<1 %"), (0.125, "12 %"), (0.996, "99 %"), (1.0, "100 %"), (math.nan, "nan %")],
)
def test_percent(part, text) -> None:
    assert mistakes.percent(part) == text
