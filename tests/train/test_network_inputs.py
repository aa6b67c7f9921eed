"""Samples as a network gets them, against NumPy and against what a training reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from blobnet.augment.epoch_rows import rows_for
from blobnet.augment.words import augmentations_of
from blobnet.device.device import Device
from blobnet.errors import DataError, OptionError
from blobnet.examination.reference.augmentation import augmented
from blobnet.inspection.network_inputs import STATISTICS_SAMPLES, sample_sheet
from blobnet.layers import Dense, Flatten, Input
from blobnet.losses.base import IGNORED
from blobnet.memory.blob import Shape
from blobnet.model import Sequential


class Lazy:
    """Samples that are made when they are asked for; remembers the numbers of those that were."""

    def __init__(self, count: int) -> None:
        self.asked: list[np.ndarray] = []
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        self.asked.append(np.asarray(rows))
        y, x = np.mgrid[:5, :4]
        return (np.asarray(rows)[:, None, None, None] % 97 + 3 * y + x * x).astype(np.float32)


@pytest.mark.parametrize("units", [1, 3, 5])
@pytest.mark.parametrize("augment", [None, "crop=2, flip", "rotate=20, contrast=0.5, erase=0.9", "mixup, cutmix"])
def test_a_sheet_is_what_the_input_kernel_makes_of_the_first_samples(device: Device, units, augment) -> None:
    random = np.random.default_rng(units)
    x = random.integers(0, 256, (23, units, 7, 6)).astype(np.uint8)
    y = random.integers(0, 4, 23)
    sheet = sample_sheet(x, y, augment=augment, count=9, seed=3, device=device)
    numbers = np.random.default_rng([3, 0]).permutation(23)[:9]
    np.testing.assert_array_equal(sheet.numbers, numbers)
    np.testing.assert_array_equal(sheet.labels, y[numbers])
    values = x.astype(np.float64)
    mean, deviation = values.mean(axis=(0, 2, 3)), values.std(axis=(0, 2, 3))
    np.testing.assert_allclose(sheet.mean, mean)
    np.testing.assert_allclose(sheet.deviation, deviation)
    if augment is None:
        wanted = (values[numbers] - mean[:, None, None]) / deviation[:, None, None]
    else:
        # The last one's partner is the one that comes behind it in a training.
        more = np.random.default_rng([3, 0]).permutation(23)[:10] if "mix" in augment else numbers
        rows = rows_for(augmentations_of(augment), Shape(units, 7, 6), 3, 0, more)
        wanted = augmented(x[more], rows, mean, deviation)[:9]
    np.testing.assert_allclose(sheet.values, wanted, atol=2e-5)
    if augment is not None and "mix" in augment:
        np.testing.assert_array_equal(sheet.partners, y[more[1:]])
        top, left, bottom, right, part = rows[:9, 14:].T
        np.testing.assert_allclose(sheet.shares, part * (bottom - top) * (right - left) / 42, rtol=1e-5)
        assert sheet.shares.max() > 0.1
    else:
        assert not sheet.shares.any()


@pytest.mark.parametrize("augment", [None, "crop=2, flip", "cutmix"])
def test_masks_move_with_their_pictures(device: Device, augment) -> None:
    masks = np.random.default_rng(0).integers(1, 9, (11, 7, 6)).astype(np.uint8)
    pictures = masks[:, None]  # What is seen is the class; what comes from outside is 0.
    sheet = sample_sheet(pictures, masks, augment=augment, normalization=([0], [1]), count=6, seed=3, device=device)
    outside = sheet.labels == IGNORED
    np.testing.assert_array_equal(sheet.values[:, 0], np.where(outside, 0, sheet.labels))
    assert outside.any() == (augment == "crop=2, flip")
    assert (sheet.labels != masks[sheet.numbers]).any() == (augment is not None)
    assert not sheet.shares.any()


@pytest.mark.parametrize("shape", [(3, 9), (6,)])
def test_samples_that_are_no_pictures(device: Device, shape) -> None:
    x = np.random.default_rng(0).normal(2, 3, (12, *shape)).astype(np.float32)
    given = np.arange(shape[0]), np.arange(shape[0]) + 1.0
    sheet = sample_sheet(x, np.zeros((12, 2)), normalization=given, count=40, device=device)
    assert sorted(sheet.numbers) == list(range(12))
    mean, deviation = (values.reshape(-1, *[1] * (len(shape) - 1)) for values in given)
    np.testing.assert_allclose(sheet.values, (x[sheet.numbers] - mean) / deviation, rtol=1e-5, atol=1e-6)


def test_a_sheet_begins_with_what_a_training_begins_with(device: Device) -> None:
    x, y = Lazy(50), np.arange(50) % 3
    sheet = sample_sheet(x, y, count=8, seed=11, device=device)
    x.asked.clear()
    model = Sequential([Input(1, 5, 4), Flatten(), Dense(3)])
    model.set_normalization([30], [20])
    # In memory of its own, or all samples are read once, in their order.
    model.fit(x, y, batch_size=8, seed=11, device=device, debug=True, verbose=False)
    assert any(np.array_equal(rows, sheet.numbers) for rows in x.asked)


def test_a_large_data_set_is_not_read_whole(device: Device) -> None:
    count = 5_000_000
    x = Lazy(count)
    sheet = sample_sheet(x, np.broadcast_to(np.int64(1), count), count=10, device=device)
    assert sum(len(rows) for rows in x.asked) < STATISTICS_SAMPLES + 50
    taken = x[np.sort(np.random.default_rng([0, 0]).permutation(count)[:STATISTICS_SAMPLES])]
    np.testing.assert_allclose(sheet.mean, taken.mean(dtype=np.float64))
    assert sheet.values.shape == (10, 1, 5, 4)


def test_what_cannot_be_shown(device: Device) -> None:
    x = np.zeros((6, 1, 4, 4), np.float32)
    wrong: list[tuple[type[Exception], str, Any, dict[str, Any]]] = [
        (DataError, r"^y: there must be a label for each sample\. Received x=6, y=5\.$", np.zeros(5), {}),
        (OptionError, "samples: count must be an int of at least 1", np.zeros(6), {"count": 0}),
        (OptionError, "padding must be smaller than the picture", np.zeros(6), {"augment": "crop=4"}),
        (OptionError, "every word must be that of an augmentation", np.zeros(6), {"augment": "flop"}),
    ]
    for error, message, y, settings in wrong:
        with pytest.raises(error, match=message):
            sample_sheet(x, y, device=device, **settings)
