"""Labels of positions that move along with their samples, cell by cell."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from blobnet.augment import Augmentation, CutMix, Flip, Mixup, RandomAffine, RandomCrop, RandomResizedCrop
from blobnet.augment.epoch_rows import partner_shares, rows_for
from blobnet.data.moved_labels import move_labels
from blobnet.examination.reference.augmentation import augmented
from blobnet.losses import CrossEntropy, Loss, MeanSquaredError
from blobnet.losses.base import IGNORED
from blobnet.memory.blob import FloatArray, Shape

COUNT = 9
SHAPES = pytest.mark.parametrize("shape", [Shape(2, 7, 11), Shape(1, 9), Shape(3, 1, 1)], ids=str)


def moves(shape: Shape) -> list[list[Augmentation]]:
    both = [
        Flip(vertical=shape.rank == 2),
        *([RandomCrop(3)] if shape.width > 3 < shape.height + 3 * (shape.rank < 2) else []),
    ]
    if shape.rank == 1:
        return [both]
    return [both, [RandomResizedCrop()], [RandomAffine(60, 0.3, (0.6, 1.5))], [*both, RandomAffine(180), *both]]


def rows_of(changes: list[Augmentation], shape: Shape) -> FloatArray:
    return rows_for(changes, shape, seed=3, epoch=1, samples=np.arange(COUNT))


def moved(labels: npt.NDArray[Any], rows: FloatArray, shape: Shape, loss: Loss) -> npt.NDArray[Any]:
    """As the loader does it, on words of 4 bytes."""
    words = labels.copy().reshape(COUNT, -1).view(np.int32)
    move_labels(words, rows, shape, loss)
    return words.view(labels.dtype).reshape(labels.shape)


@SHAPES
def test_classes_come_from_the_nearest_cell(shape: Shape) -> None:
    labels = np.random.default_rng(0).integers(0, 200, (COUNT, shape.height, shape.width)).astype(np.int32)
    labels[0, 0, 0] = IGNORED
    for changes in moves(shape):
        rows = rows_of(changes, shape)
        seen = moved(labels, rows, shape, CrossEntropy())
        for (n, y, x), label in np.ndenumerate(seen):
            at = rows[n, :6].astype(np.float64).reshape(2, 3) @ [y, x, 1]
            distance = np.abs(at - np.rint(at))
            if distance.max() > 0.4999:
                continue  # Between two cells, or at the edge, either of which will do.
            row, column = np.rint(at).astype(int)
            is_inside = 0 <= row < shape.height and 0 <= column < shape.width
            assert label == (labels[n, row, column] if is_inside else IGNORED), (changes, n, y, x)
        assert shape.elements < 9 or not np.array_equal(seen, labels)


@SHAPES
def test_targets_are_interpolated_as_samples_are(shape: Shape) -> None:
    """The reference of the input kernel with a mean of 0, so that what comes from outside is 0 too."""
    targets = np.random.default_rng(1).standard_normal((COUNT, 2, shape.height, shape.width)).astype(np.float32)
    for changes in moves(shape):
        rows = rows_of([*changes, CutMix()], shape)
        wanted = augmented(targets, rows, np.zeros(2), np.ones(2))
        np.testing.assert_allclose(moved(targets, rows, shape, MeanSquaredError()), wanted, rtol=1e-5, atol=1e-6)


def test_labels_of_all_planes_of_a_volume_move_alike() -> None:
    """Those of each plane are those of a picture."""
    shape, random = Shape(1, 4, 6, 7), np.random.default_rng(5)
    classes = random.integers(0, 9, (COUNT, 4, 6, 7)).astype(np.int32)
    targets = random.standard_normal((COUNT, 2, 4, 6, 7)).astype(np.float32)
    plane = Shape(1, 6, 7)
    for changes in ([*moves(plane)[0], CutMix()], [RandomAffine(60, 0.3, (0.6, 1.5))]):
        rows = rows_of(changes, shape)
        np.testing.assert_array_equal(rows, rows_of(changes, plane))
        seen, values = moved(classes, rows, shape, CrossEntropy()), moved(targets, rows, shape, MeanSquaredError())
        for z in range(4):
            own = np.ascontiguousarray(classes[:, z])
            np.testing.assert_array_equal(seen[:, z], moved(own, rows, plane, CrossEntropy()))
            own_targets = np.ascontiguousarray(targets[:, :, z])
            np.testing.assert_array_equal(values[:, :, z], moved(own_targets, rows, plane, MeanSquaredError()))
        np.testing.assert_array_equal(partner_shares(rows, shape), partner_shares(rows, plane))
        assert not np.array_equal(seen, classes)


def test_what_is_pasted_has_the_labels_of_the_partner() -> None:
    shape = Shape(1, 6, 8)
    labels = np.random.default_rng(2).integers(0, 5, (COUNT, 6, 8)).astype(np.int32)
    for changes in ([CutMix(1, 0.7)], [Flip(), CutMix()], [Mixup(), CutMix()]):
        rows = rows_of(changes, shape)
        before = moved(labels, rows_of(changes[:-1], shape), shape, CrossEntropy())
        seen = moved(labels, rows, shape, CrossEntropy())
        for n, (top, left, bottom, right, part) in enumerate(rows[:, 14:].tolist()):
            for y, x in np.ndindex(6, 8):
                owner = (n + 1) % COUNT if part == 1 and top <= y < bottom and left <= x < right else n
                assert seen[n, y, x] == before[owner, y, x]
        shares = partner_shares(rows, shape, has_positions=True)
        assert np.array_equal(shares, np.where(rows[:, 18] == 1, 0, rows[:, 18]))
    assert not np.array_equal(seen, before)


def test_without_a_change_labels_stay() -> None:
    labels = np.arange(COUNT * 20, dtype=np.int32).reshape(COUNT, 4, 5)
    assert np.array_equal(moved(labels, rows_of([], Shape(1, 4, 5)), Shape(1, 4, 5), CrossEntropy()), labels)
