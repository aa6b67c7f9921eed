"""Trainings whose samples change at random."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from blobnet import layers
from blobnet.augment import (
    Augmentation,
    Brightness,
    CutMix,
    Erasing,
    Flip,
    Mixup,
    RandomAffine,
    RandomCrop,
    RandomResizedCrop,
    Saturation,
)
from blobnet.augment.epoch_rows import rows_for
from blobnet.augment.words import augmentations_of
from blobnet.device.device import Device
from blobnet.errors import OptionError, TrainingError
from blobnet.inspection.network_inputs import sample_sheet
from blobnet.losses import CrossEntropy, Dice, MeanSquaredError
from blobnet.losses.base import IGNORED
from blobnet.memory.blob import FloatArray, Shape
from blobnet.model import Model, Sequential, load
from blobnet.optimizers import SGD
from tests.tiny import digits, share_of_memory, tiny_model

COUNT, SEED = 37, 5
#: One that moves whole cells, whose results NumPy has without an error.
MOVES: list[Augmentation] = [RandomCrop(2), Flip(horizontal=True, vertical=True)]
ALL: list[Augmentation] = [*MOVES, RandomAffine(20, 0.1, (0.8, 1.2)), Brightness(0.4), Mixup(), CutMix(), Erasing()]


def trained(model: Model, device: Device, x: Any, y: Any, **settings: Any) -> bytes:
    """The bits of all weights after a short training."""
    given = {"epochs": 1, "batch_size": 8, "optimizer": SGD(0.05, momentum=0.9), "verbose": False, "seed": SEED}
    model.fit(x, y, device=device, **(given | settings))
    return b"".join(values.tobytes() for values in model.weights.values())


def moved(x: FloatArray, epoch: int, outside: float = 0) -> FloatArray:
    """What MOVES make of samples in an epoch; the mean is 0."""
    rows = rows_for(MOVES, Shape(1, 8, 8), SEED, epoch, np.arange(len(x))).astype(int)
    result = np.full_like(x, outside)
    for n, y, column in np.ndindex(len(x), 8, 8):
        from_y, from_x = rows[n, :6].reshape(2, 3) @ [y, column, 1]
        if 0 <= from_y < 8 and 0 <= from_x < 8:
            result[n, ..., y, column] = x[n, ..., from_y, from_x]
    return result


def test_the_samples_of_every_batch_are_changed_as_their_numbers_say(device: Device) -> None:
    x, y = digits(COUNT)
    seen = trained(tiny_model(), device, x, y, augment=MOVES)
    assert seen == trained(tiny_model(), device, moved(x, 0), y)
    assert seen != trained(tiny_model(), device, moved(x, 1), y)
    assert seen != trained(tiny_model(), device, x, y)


def test_samples_and_labels_are_mixed_by_their_rows(device: Device) -> None:
    """A step from a mixed batch, against PyTorch on the mixture of samples and of one-hot labels."""
    torch = pytest.importorskip("torch")
    x, y = digits(COUNT)
    mixtures = [Mixup(1), CutMix()]
    order = np.random.default_rng([SEED, 0]).permutation(COUNT)
    rows = rows_for(mixtures, Shape(1, 8, 8), SEED, 0, order).astype(np.float64)
    seen, targets = x[order].astype(np.float64), np.eye(10)[y[order]]
    for n, (top, left, bottom, right, part) in enumerate(rows[:, 14:].tolist()):
        cells = np.s_[:, int(top) : int(bottom), int(left) : int(right)]
        other = x[order[(n + 1) % COUNT]]
        seen[n][cells] += part * (other[cells] - seen[n][cells])
        share = part * (bottom - top) * (right - left) / 64
        targets[n] += share * (np.eye(10)[y[order[(n + 1) % COUNT]]] - targets[n])
    model = Sequential([layers.Input(1, 8, 8), layers.Flatten(), layers.Dense(10, name="logits")])
    weight, bias = (torch.tensor(model.weights[f"logits/{name}"].astype(np.float64)) for name in ("weight", "bias"))
    weight.requires_grad_(), bias.requires_grad_()
    logits = torch.nn.functional.linear(torch.tensor(seen.reshape(COUNT, 64)), weight, bias)
    loss = torch.nn.functional.cross_entropy(logits, torch.tensor(targets))
    loss.backward()
    trained(model, device, x, y, augment=mixtures, batch_size=COUNT, optimizer=SGD(0.5))
    assert model.history["loss"] == [pytest.approx(loss.item(), rel=1e-5)]
    for name, value in (("weight", weight), ("bias", bias)):
        wanted = (value - 0.5 * value.grad).detach().numpy()
        np.testing.assert_allclose(model.weights[f"logits/{name}"], wanted, rtol=1e-4, atol=1e-6)


POLICIES = ["trivialaugment", "crop=1, randaugment=3", "augmix, flip"]


def bytes_of(x: FloatArray) -> npt.NDArray[np.uint8]:
    """Samples from 0 to 1 as pictures of bytes."""
    return (x * 255).astype(np.uint8)


def byte_model() -> Model:
    model = tiny_model()
    model.set_normalization([0], [128])
    return model


@pytest.mark.parametrize("augment", POLICIES)
def test_policies_change_what_enters(device: Device, augment: str) -> None:
    x, y = digits(COUNT)
    x = bytes_of(x)
    seen = trained(byte_model(), device, x, y, augment=augment)
    settings: dict[str, Any] = {"normalization": ([0], [128]), "count": COUNT, "seed": SEED, "device": device}
    sheet = sample_sheet(x, y, augment=augment, **settings)
    changed = np.empty(x.shape, np.float32)
    changed[sheet.numbers] = 128 * sheet.values
    assert seen == trained(byte_model(), device, changed, y)
    assert seen != trained(byte_model(), device, x, y)


@pytest.mark.parametrize("augment", POLICIES)
def test_policies_go_on_where_a_training_was_resumed(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, augment: str
) -> None:
    x, y = digits(COUNT)
    x = bytes_of(x)
    wanted = trained(byte_model(), device, x, y, augment=augment, epochs=2)
    interrupted = byte_model()
    trained(interrupted, device, x, y, augment=augment, epochs=1)
    interrupted.save(tmp_path / "model.h5")
    share_of_memory(monkeypatch, 0)
    assert trained(load(tmp_path / "model.h5"), device, x, y, epochs=2, resume=True, debug=True) == wanted


@pytest.mark.parametrize("augment", ["trivialaugment", "randaugment"])
def test_masks_move_with_policies(device: Device, augment: str) -> None:
    """The mask is the picture itself: a position whose label moved otherwise would see another value."""
    masks = np.random.default_rng(0).integers(1, 9, (60, 8, 8)).astype(np.uint8)
    sheet = sample_sheet(masks[:, None], masks, augment=augment, normalization=([0], [1]), count=60, device=device)
    rows = rows_for(augmentations_of(augment), Shape(1, 8, 8), 0, 0, sheet.numbers)
    is_still, is_shifted = np.all(rows[:, 19::8] == 0, axis=1), np.all(rows[:, :6] == np.rint(rows[:, :6]), axis=1)
    kept = sheet.labels == IGNORED
    for n in np.flatnonzero(is_still & is_shifted):
        np.testing.assert_array_equal(sheet.values[n, 0], np.where(kept[n], 0, sheet.labels[n]))
    assert np.any(is_still & is_shifted & kept.any(axis=(1, 2)))
    assert kept.any()


def test_what_policies_cannot_change_is_refused(device: Device) -> None:
    x, y = digits(COUNT)
    message = (
        r"augment: policies of augmentation change pictures of uint8: whole numbers from 0 to 255\. "
        r"Received input=input, type=float32\. Hint: give x as uint8; the input layer normalises it"
    )
    with pytest.raises(OptionError, match=message):
        trained(tiny_model(), device, x, y, augment="trivialaugment")
    with pytest.raises(OptionError, match=r"AugMix\(.*cannot follow.*Hint: TrivialAugment and RandAugment move them"):
        trained(segmenting(), device, x.astype(np.uint8), (x[:, 0] > 0.5).astype(int), augment="augmix")


def segmenting() -> Model:
    model = Sequential([layers.Input(1, 8, 8), layers.Conv2D(3, 3, padding=1, name="logits")])
    generator = np.random.default_rng(0)
    model.set_weights(
        {name: generator.uniform(-1, 1, old.shape) for name, old in model.weights.items() if "logits" in name}
    )
    return model


@pytest.mark.parametrize("settings", [{}, {"accumulate": 2}, {"class_weights": [1, 2, 5]}], ids=str)
@pytest.mark.parametrize("ignore", [None, 2])
def test_labels_of_positions_move_along(device: Device, ignore: int | None, settings: dict[str, Any]) -> None:
    """What comes from outside a sample takes no part, as if a label to ignore were there."""
    x, _ = digits(COUNT)
    labels = np.random.default_rng(4).integers(0, 3, (COUNT, 8, 8))
    seen = trained(segmenting(), device, x, labels, augment=MOVES, loss=CrossEntropy(ignore=ignore), **settings)
    label = 99 if ignore is None else ignore
    wanted = trained(
        segmenting(), device, moved(x, 0), moved(labels, 0, label), loss=CrossEntropy(ignore=label), **settings
    )
    assert seen == wanted


def test_targets_of_positions_move_along(device: Device) -> None:
    x, _ = digits(COUNT)
    targets = np.random.default_rng(4).standard_normal((COUNT, 3, 8, 8)).astype(np.float32)
    settings = {"loss": MeanSquaredError()}
    seen = trained(segmenting(), device, x, targets, augment=MOVES, **settings)
    assert seen == trained(segmenting(), device, moved(x, 0), moved(targets, 0), **settings)


def test_masks_are_pasted_and_mixed(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bits however masks come; and those of masks and samples that NumPy has pasted."""
    x, _ = digits(COUNT)
    labels = np.random.default_rng(4).integers(0, 3, (COUNT, 8, 8))
    order = np.random.default_rng([SEED, 0]).permutation(COUNT)
    rows = rows_for([CutMix()], Shape(1, 8, 8), SEED, 0, order).astype(int)
    pasted, masks = x.copy(), labels.copy()
    for first in range(0, COUNT, 8):
        batch = order[first : first + 8]
        for n, (top, left, bottom, right, _) in zip(batch, rows[first : first + 8, 14:].tolist(), strict=True):
            other = np.roll(batch, -1)[batch == n][0]
            pasted[n, :, top:bottom, left:right] = x[other, :, top:bottom, left:right]
            masks[n, top:bottom, left:right] = labels[other, top:bottom, left:right]
    assert trained(segmenting(), device, x, labels, augment="cutmix") == trained(segmenting(), device, pasted, masks)
    settings: dict[str, Any] = {"augment": ALL, "epochs": 2}
    wanted = trained(segmenting(), device, x, labels, **settings)
    assert wanted != trained(segmenting(), device, x, labels, augment=ALL[:-2], epochs=2)
    share_of_memory(monkeypatch, 0)
    assert trained(segmenting(), device, x, labels, **settings) == wanted


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
    share_of_memory(monkeypatch, 0)
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
        "resume: the augmentation must be that of the interrupted training.*saved=RandomCrop\\(padding=2\\), Flip.*now="
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
    with pytest.raises(OptionError, match="saved=nothing, now=RandomCrop"):
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
    half = Sequential([layers.Input(1, 8, 8), layers.Conv2D(2, 1), layers.MaxPool2D(2)])
    labels = (x[:, 0, ::2, ::2] > 0.5).astype(np.int32)
    for one in (*MOVES, RandomResizedCrop(), RandomAffine(), CutMix()):
        message = (
            rf"{type(one).__name__}\(.*: labels for each position move along only where they have the height and width "
            r"of samples\. Received input=\(1, 8, 8\), output=\(2, 4, 4\)\. Hint: leave this one out; colours"
        )
        with pytest.raises(OptionError, match=message):
            trained(half, device, x, labels, augment=one)
    trained(half, device, x, labels, augment=[Brightness(), Erasing(), Mixup()])
    each, labels = segmenting(), (x[:, 0] > 0.5).astype(np.int32)
    trained(each, device, x, labels, augment="cutmix", loss=Dice())
    message = r"Mixup\(.*: the loss must take the labels of two samples, each with a share\. .*loss=Dice.*CrossEntropy"
    with pytest.raises(OptionError, match=message):
        trained(each, device, x, labels, augment="mixup", loss=Dice())


def test_a_loss_that_is_not_finite_names_its_layer_with_the_rows_of_its_batch(device: Device) -> None:
    x, y = digits(COUNT)
    gains = rows_for([Brightness(1.0)], Shape(1, 8, 8), SEED, 0, np.arange(COUNT))[:, 10]
    assert gains.max() > 1.5
    x[gains.argmax(), 0, 3, 3] = 3e38
    with pytest.raises(TrainingError, match=r"the loss must stay finite.*first_layer=input\."):
        trained(tiny_model(), device, x, y, augment=[Brightness(1.0)])
