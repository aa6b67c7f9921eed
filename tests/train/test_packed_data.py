"""Training on pictures in larger files: the order, resuming in the middle of an epoch, and the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blobnet as bn
from blobnet.callbacks import Callback, Checkpoint
from blobnet.datasets import image_folder
from blobnet.device.device import Device
from blobnet.errors import DataError, OptionError
from blobnet.model import Model, load
from blobnet.optimizers import SGD
from blobnet.training.trainer import Progress
from tests.packing import pack_digits
from tests.tiny import tiny_model

COUNT = 45


@pytest.fixture(params=["tar", "parquet", "lmdb"])
def archives(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Digits in five files, which are not read into memory."""
    monkeypatch.setattr(image_folder, "KEPT_BYTES", 0)
    digits = bn.datasets.load("digits").train
    for first in range(0, COUNT, 9):
        pack_digits(tmp_path / f"digits-{first // 9}.{request.param}", digits, first, 9)
    return f"{tmp_path}/digits-{{0..4}}.{request.param}"


class Orders(Callback):
    """Keeps the order of each epoch."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []

    def step_end(self, progress: Progress) -> None:
        order = progress.trainer._under_way._order.tolist()
        if order not in self.seen:
            self.seen.append(order)


class StopError(Exception):
    """What ends a training."""


class StopAt(Callback):
    def step_end(self, progress: Progress) -> None:
        if progress.trainer.step.number == 9:
            raise StopError


def fit(model: Model, device: Device, data: Any, **settings: Any) -> Model:
    given: dict[str, Any] = {"epochs": 3, "batch_size": 8, "optimizer": SGD(0.05, momentum=0.9), "seed": 7}
    given |= {"augment": "crop=1, mixup", "device": device, "verbose": False}
    if model.training_state is None:
        model.set_normalization(*data.statistics())
    model.fit(data.train.x, data.train.y, **(given | settings))
    return model


def bits(model: Model) -> tuple[Any, ...]:
    return {name: values.tobytes() for name, values in model.weights.items()}, repr(model.history)


def test_every_epoch_has_the_order_of_archives(device: Device, archives: str) -> None:
    orders = Orders()
    fit(tiny_model(), device, bn.datasets.load(archives, shuffle_buffer=12), callbacks=[orders])
    for epoch, order in enumerate(orders.seen):
        assert sorted(order) == list(range(COUNT))
        # Nine samples of each archive, in an order drawn from the seed and the epoch; twelve at a time mix.
        generator = np.random.default_rng([7, epoch])
        ranks = generator.permutation(5)
        plain = sorted(range(COUNT), key=lambda number: (ranks[number // 9], number))
        for first in range(0, COUNT, 12):
            part = np.array(plain[first : first + 12])
            generator.shuffle(part)
            assert order[first : first + 12] == part.tolist()
    assert len({tuple(order) for order in orders.seen}) == 3


def test_the_same_bits_as_without_an_interruption(device: Device, archives: str, tmp_path: Path) -> None:
    data = bn.datasets.load(archives, shuffle_buffer=12)
    whole = fit(tiny_model(), device, data)
    path = tmp_path / "model.h5"
    with pytest.raises(StopError):
        fit(tiny_model(), device, data, callbacks=[Checkpoint(path, every_steps=8), StopAt()])
    state = load(path).training_state
    assert state is not None
    assert (state.epoch, state.step) == (1, 8)
    assert bits(fit(load(path), device, bn.datasets.load(archives, shuffle_buffer=12), resume=True)) == bits(whole)
    with pytest.raises(OptionError, match=r"samples must be in the order of the interrupted.*--shuffle-buffer"):
        fit(load(path), device, bn.datasets.load(archives, shuffle_buffer=13), resume=True)


def test_arrays_have_the_same_order_as_ever(device: Device, archives: str) -> None:
    """Archives that are in memory are arrays."""
    data = bn.datasets.load(archives)
    orders = Orders()
    fit(tiny_model(), device, bn.datasets.Dataset("a", _in_memory(data.train), None, ()), callbacks=[orders], epochs=1)
    assert orders.seen == [np.random.default_rng([7, 0]).permutation(COUNT).tolist()]


def _in_memory(split: bn.datasets.Split) -> bn.datasets.Split:
    return bn.datasets.Split(np.asarray(split.x), split.y)


def test_a_picture_that_is_damaged_later_ends_the_training(device: Device, archives: str) -> None:
    data = bn.datasets.load(archives)
    path = Path(archives.replace("{0..4}", "2"))
    path = path / "data.mdb" if path.is_dir() else path
    path.write_bytes(path.read_bytes()[:1500])
    with pytest.raises((DataError, bn.errors.FileError), match=r"digits-2\."):
        fit(tiny_model(), device, data)
