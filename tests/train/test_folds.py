"""Cross-validation: the parts of scikit-learn, and the trainings that ``fit`` does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blobnet as bn
from blobnet import layers
from blobnet.device.device import Device
from blobnet.errors import BlobnetWarning, DataError, OptionError
from blobnet.training.folds import fold_numbers
from tests.tiny import digits

SETTINGS: dict[str, Any] = {"epochs": 2, "batch_size": 16, "optimizer": "adam", "verbose": False}


def small_model() -> bn.Model:
    return bn.Sequential([layers.Input(1, 8, 8), layers.Flatten(), layers.Dense(10)])


@pytest.mark.parametrize("seed", [None, 0, 7])
def test_folds_have_their_share_of_each_class(seed: int | None) -> None:
    classes = np.random.default_rng(1).choice([7, 0, 3, 9], 103, p=[0.5, 0.3, 0.1, 0.1])
    numbers = fold_numbers(103, 4, seed, classes)
    for kind in np.unique(classes):
        counts = np.bincount(numbers[classes == kind], minlength=4)
        assert counts.max() - counts.min() <= 1
    sizes = np.bincount(numbers)
    assert sizes.max() - sizes.min() <= 1
    assert np.array_equal(np.bincount(fold_numbers(10, 3, seed)), [4, 3, 3])


@pytest.mark.parametrize("seed", [None, 0, 7])
def test_folds_are_those_of_scikit_learn(seed: int | None) -> None:
    selection = pytest.importorskip("sklearn.model_selection")
    options: dict[str, Any] = {"shuffle": seed is not None, "random_state": seed}
    random = np.random.default_rng(1)
    for count, folds in ((103, 4), (29, 2), (64, 5)):
        classes = random.choice([7, 0, 3], count, p=[0.5, 0.3, 0.2])
        for kind, given in (("StratifiedKFold", classes), ("KFold", None)):
            found = fold_numbers(count, folds, seed, given)
            parts = getattr(selection, kind)(folds, **options).split(np.zeros(count), classes)
            for number, (_, rows) in enumerate(parts):
                assert np.array_equal(np.flatnonzero(found == number), rows), kind


def test_each_fold_is_a_training_of_its_own(device: Device) -> None:
    x, y = digits(60)
    model = small_model()
    before = model.weights
    found = bn.cross_validate(model, x, y, folds=3, seed=5, metrics=["f1"], device=device, **SETTINGS)
    assert len(found.models) == 3
    for number, (own, measured) in enumerate(zip(found.models, found.measured, strict=True)):
        is_held = found.numbers == number
        alone = small_model()
        alone.fit(x[~is_held], y[~is_held], seed=5, device=device, **SETTINGS)
        for name, values in alone.weights.items():
            np.testing.assert_array_equal(own.weights[name], values)
        wanted = alone.evaluate(x[is_held], y[is_held], metrics=["f1"], device=device)
        assert measured == pytest.approx(wanted, rel=1e-6)
        assert model.weights.keys() == before.keys()
    assert all(np.array_equal(values, before[name]) for name, values in model.weights.items())
    assert model.history == {}
    accuracies = [own["accuracy"] for own in found.measured]
    assert found.mean["accuracy"] == pytest.approx(sum(accuracies) / 3)
    assert found.deviation["accuracy"] == pytest.approx(np.std(accuracies, ddof=1))
    lines = str(found).splitlines()
    assert lines[0].startswith("fold 1     loss ")
    assert f"accuracy {np.mean(accuracies):.4f}" in lines[3]
    assert [line.split()[0] for line in lines] == ["fold", "fold", "fold", "mean", "deviation"]


def test_targets_and_several_inputs(device: Device) -> None:
    one, two = layers.Input(3, name="one")(), layers.Input(4, name="two")()
    output = layers.Dense(2, name="out")(layers.Concat()([one, two]))
    model = bn.Model({"one": one, "two": two}, output)
    random = np.random.default_rng(0)
    x = {"one": random.normal(size=(20, 3)), "two": random.normal(size=(20, 4))}
    y = random.normal(size=(20, 2))
    found = bn.cross_validate(model, x, y, folds=4, loss="mse", device=device, **SETTINGS)
    assert np.array_equal(np.bincount(found.numbers), [5, 5, 5, 5])
    assert set(found.mean) == {"loss"}


def test_tensors_and_labels_of_several_outputs(device: Device) -> None:
    torch = pytest.importorskip("torch")
    x, y = digits(40)
    found = bn.cross_validate(small_model(), x, y, folds=2, device=device, **SETTINGS)
    again = bn.cross_validate(small_model(), torch.tensor(x), torch.tensor(y), folds=2, device=device, **SETTINGS)
    assert again.measured == found.measured
    assert np.array_equal(again.numbers, found.numbers)
    image = layers.Input(1, 8, 8)()
    flat = layers.Flatten()(image)
    model = bn.Model(image, {"digit": layers.Dense(10)(flat), "size": layers.Dense(1)(flat)})
    settings = {**SETTINGS, "loss": {"digit": "cross_entropy", "size": "mse"}}
    sizes = x.mean(axis=(1, 2, 3))
    named = bn.cross_validate(model, x, {"digit": y, "size": sizes}, folds=2, device=device, **settings)
    listed = bn.cross_validate(model, x, [torch.tensor(y), list(sizes)], folds=2, device=device, **settings)
    assert listed.measured == named.measured


def test_what_does_not_fit_is_said(device: Device) -> None:
    x, y = digits(20)
    given: list[tuple[dict[str, Any], str]] = [
        ({"folds": 1}, "folds must be at least 2, and at most the samples"),
        ({"folds": 21}, r"Received folds=21, samples=20"),
        ({"seed": 2**32}, r"seed must be an int from 0 to below 2\^32, or None"),
        ({"validation": 0.1}, "validation is for fit alone"),
    ]
    for options, text in given:
        with pytest.raises(OptionError, match=f"cross_validate: .*{text}|{text}"):
            bn.cross_validate(small_model(), x, y, device=device, **options)
    with pytest.raises(DataError, match=r"same number of samples\. Received x_shape=\(20, 1, 8, 8\), y_shape=\(19,\)"):
        bn.cross_validate(small_model(), x, y[:19], device=device)
    with pytest.warns(BlobnetWarning, match="each fold should have samples of all classes"):
        fold_numbers(20, 5, 0, y)
