"""Trainings whose samples change at random."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blobnet import layers, loader
from blobnet.augment import (
    Augmentation,
    Brightness,
    Erasing,
    Flip,
    RandomAffine,
    RandomCrop,
    RandomResizedCrop,
    Saturation,
    rows_for,
)
from blobnet.blob import FloatArray, Shape
from blobnet.device import Device
from blobnet.errors import OptionError, TrainingError
from blobnet.model import Model, Sequential, load
from blobnet.optimizers import SGD
from tests.tiny import digits, tiny_model

COUNT, SEED = 37, 5
#: One that moves whole cells, whose results NumPy has without an error.
MOVES: list[Augmentation] = [RandomCrop(2), Flip(horizontal=True, vertical=True)]
ALL: list[Augmentation] = [*MOVES, RandomAffine(20, 0.1, (0.8, 1.2)), Brightness(0.4), Erasing()]


def trained(model: Model, device: Device, x: Any, y: Any, **settings: Any) -> bytes:
    """The bits of all weights after a short training."""
    given = {"epochs": 1, "batch_size": 8, "optimizer": SGD(0.05, momentum=0.9), "verbose": False, "seed": SEED}
    model.fit(x, y, device=device, **(given | settings))
    return b"".join(values.tobytes() for values in model.weights.values())


def moved(x: FloatArray, epoch: int) -> FloatArray:
    """What MOVES make of samples in an epoch; the mean is 0."""
    rows = rows_for(MOVES, Shape(1, 8, 8), SEED, epoch, np.arange(len(x))).astype(int)
    result = np.zeros_like(x)
    for n, y, column in np.ndindex(len(x), 8, 8):
        from_y, from_x = rows[n, :6].reshape(2, 3) @ [y, column, 1]
        if 0 <= from_y < 8 and 0 <= from_x < 8:
            result[n, :, y, column] = x[n, :, from_y, from_x]
    return result


def test_the_samples_of_every_batch_are_changed_as_their_numbers_say(device: Device) -> None:
    x, y = digits(COUNT)
    seen = trained(tiny_model(), device, x, y, augment=MOVES)
    assert seen == trained(tiny_model(), device, moved(x, 0), y)
    assert seen != trained(tiny_model(), device, moved(x, 1), y)
    assert seen != trained(tiny_model(), device, x, y)


def test_validation_and_evaluation_see_samples_as_they_are(device: Device) -> None:
    x, y = digits(COUNT)
    model = tiny_model()
    trained(model, device, x, y, augment="crop, flip", validation=(x, y))
    measured = model.evaluate(x, y, batch_size=8, device=device)
    assert model.history["validation_loss"] == [measured["loss"]]


def test_the_same_bits_however_samples_come(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = digits(COUNT)
    wanted = trained(tiny_model(), device, x, y, augment=ALL, epochs=2)
    assert trained(tiny_model(), device, x, y, augment=ALL, epochs=2) == wanted
    monkeypatch.setattr(loader, "_SHARE_OF_MEMORY", {device.kind: 0})
    assert trained(tiny_model(), device, x, y, augment=ALL, epochs=2, debug=True) == wanted
    assert trained(tiny_model(), device, x, y, augment=ALL, epochs=2, accumulate=2) != wanted
    assert trained(tiny_model(), device, x, y, augment=ALL[:-1], epochs=2) != wanted


def test_a_stream_is_numbered_as_it_comes(device: Device) -> None:
    x, y = digits(COUNT)
    changed = moved(x, 0)
    streams = [
        [(part[first : first + 8], y[first : first + 8]) for first in range(0, COUNT, 8)] for part in (x, changed)
    ]
    seen = trained(tiny_model(), device, streams[0], None, augment=MOVES)
    assert seen == trained(tiny_model(), device, streams[1], None)


def test_resuming_goes_on_with_the_same_changes(device: Device, tmp_path: Path) -> None:
    x, y = digits(COUNT)
    wanted = trained(tiny_model(), device, x, y, augment=ALL, epochs=3)
    interrupted = tiny_model()
    trained(interrupted, device, x, y, augment=ALL, epochs=1)
    interrupted.save(tmp_path / "model.h5")
    for augment in (None, ALL):
        model = load(tmp_path / "model.h5")
        assert trained(model, device, x, y, augment=augment, epochs=3, resume=True) == wanted
    message = (
        "resume: the augmentation must be that of the interrupted training.*saved=augment=.*RandomCrop.*now=augment="
    )
    for other in (MOVES, []):
        with pytest.raises(OptionError, match=message):
            trained(load(tmp_path / "model.h5"), device, x, y, augment=other, epochs=3, resume=True)


def test_a_file_without_augmentation_goes_on_without(device: Device) -> None:
    x, y = digits(COUNT)
    model = tiny_model()
    trained(model, device, x, y)
    assert model.training_state is not None
    del model.training_state.settings["augment"]
    with pytest.raises(OptionError, match="saved=augment=nothing"):
        trained(model, device, x, y, augment=MOVES, epochs=2, resume=True)
    assert trained(model, device, x, y, epochs=2, resume=True) == trained(tiny_model(), device, x, y, epochs=2)


def test_what_does_not_fit_the_model_is_refused(device: Device) -> None:
    x, y = digits(COUNT)
    with pytest.raises(OptionError, match="Saturation: the model's input must have three units"):
        trained(tiny_model(), device, x, y, augment=[Saturation()])
    with pytest.raises(OptionError, match="augment: it must be a list of augmentations"):
        trained(tiny_model(), device, x, y, augment=3)
    flat = Sequential([layers.Input(64), layers.Dense(10)])
    with pytest.raises(OptionError, match="RandomCrop: the model's input must have a width"):
        trained(flat, device, x.reshape(COUNT, 64), y, augment="crop")
    each = Sequential([layers.Input(1, 8, 8), layers.Conv2D(2, 1)])
    labels = (x[:, 0] > 0.5).astype(np.int32)
    for one in (*MOVES, RandomResizedCrop(), RandomAffine()):
        message = (
            rf"{type(one).__name__}\(.*: labels for each position do not move along with samples.*output=.*colours"
        )
        with pytest.raises(OptionError, match=message):
            trained(each, device, x, labels, augment=one)
    trained(each, device, x, labels, augment=[Brightness(), Erasing()])


def test_a_loss_that_is_not_finite_names_its_layer_with_the_rows_of_its_batch(device: Device) -> None:
    x, y = digits(COUNT)
    gains = rows_for([Brightness(1.0)], Shape(1, 8, 8), SEED, 0, np.arange(COUNT))[:, 10]
    assert gains.max() > 1.5
    x[gains.argmax(), 0, 3, 3] = 3e38
    with pytest.raises(TrainingError, match=r"the loss must stay finite.*first_layer=input\."):
        trained(tiny_model(), device, x, y, augment=[Brightness(1.0)])
