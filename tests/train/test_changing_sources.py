"""Samples and labels of a user's own class that are not what they promise, or change while they are trained on."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import blobnet as bn
from blobnet import layers
from blobnet.device.device import Device
from blobnet.errors import DataError
from blobnet.execution.loader import Loader


class Changing:
    """Samples or labels that a user's own class gives, until it does otherwise."""

    def __init__(
        self, values: np.ndarray, changed: Callable[[np.ndarray], object] = np.asarray, calls: int = 4
    ) -> None:
        self.values, self.changed, self.calls = values, changed, calls

    shape = property(lambda self: self.values.shape)
    dtype = property(lambda self: self.values.dtype)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: np.ndarray) -> object:
        self.calls -= 1
        batch = self.values[np.asarray(rows, np.int64)]
        return batch if self.calls >= 0 else self.changed(batch)


def fails(batch: np.ndarray) -> np.ndarray:
    raise OSError("the disk is gone")


CHANGES: dict[str, tuple[Callable[[np.ndarray], object], str]] = {
    "fewer": (lambda batch: batch[1:], r"x: the source must give one sample of its shape for each index.*its length"),
    "more": (lambda batch: np.tile(batch, (2, 1)), r"x: the source must give one sample of its shape for each index"),
    "narrower": (
        lambda batch: batch[:, :2],
        r"wanted=\(\d+, 3\), received=\(\d+, 2\)\. Hint: its length, or the shape",
    ),
    "wider numbers": (lambda batch: batch * 1e300, "x: x must hold finite float32 values"),
    "texts": (lambda batch: batch.astype(str), r"x: x must hold real numbers\. Received dtype=<U"),
    "nothing": (lambda batch: None, "x: x must hold real numbers"),
    "fails": (fails, r"x: the source must give a batch for an array of indices.*cause=OSError: the disk is gone"),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("is_kept", [True, False])
def test_sources_that_change_while_they_are_trained_on(
    device: Device, monkeypatch: pytest.MonkeyPatch, change: str, is_kept: bool
) -> None:
    x, y = np.random.default_rng(0).standard_normal((64, 3)), np.arange(64) % 2
    if not is_kept:
        monkeypatch.setattr(Loader, "keep", lambda *arguments: False)
    changed, message = CHANGES[change]
    model = bn.Sequential([layers.Input(3), layers.Dense(2)])
    with pytest.raises(DataError, match=message):
        # What the device keeps is read at once.
        model.fit(Changing(x, changed, 1 if is_kept else 4), y, epochs=2, batch_size=8, device=device, verbose=False)
    # Model and device go on.
    assert np.isfinite(model.fit(Changing(x), Changing(y), epochs=1, device=device, verbose=False)["loss"]).all()


def test_labels_of_a_class_of_ones_own(device: Device) -> None:
    x, y = np.random.default_rng(0).standard_normal((64, 3)), np.arange(64) % 2
    model = bn.Sequential([layers.Input(3), layers.Dense(2)])
    wanted = model.evaluate(x, y, device=device)
    assert model.evaluate(x, Changing(y), device=device) == wanted
    with pytest.raises(DataError, match=r"y: the source must give a batch for an array of indices.*the disk is gone"):
        model.fit(x, Changing(y, fails, 0), device=device, verbose=False)
    with pytest.raises(DataError, match=r"y: .*OSError: the disk is gone"):
        model.fit(x, Changing(y, fails, 0), validation=0.25, device=device, verbose=False)


def test_a_source_that_does_not_know_its_length(device: Device) -> None:
    class Endless(Changing):
        def __len__(self) -> int:
            raise OSError("gone")

    model = bn.Sequential([layers.Input(3), layers.Dense(2)])
    rule = r"x: the source must say how many samples it has\. Received Endless, cause=OSError: gone"
    with pytest.raises(DataError, match=rule):
        model.fit(Endless(np.ones((4, 3))), np.zeros(4, int), device=device, verbose=False)
