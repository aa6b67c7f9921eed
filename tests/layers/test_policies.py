"""Policies of augmentation: changes of pictures against torchvision's, with the same numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from blobnet.augment import AugMix, Brightness, Flip, Mixup, RandAugment, RandomCrop, TrivialAugment
from blobnet.augment.base import Augmentation, uniform
from blobnet.augment.epoch_rows import rows_for
from blobnet.augment.policies import CHANGES
from blobnet.device.device import Device
from blobnet.examination.reference.augmentation import augmented
from blobnet.memory.blob import FloatArray, Shape
from tests.interop.networks import torchvision
from tests.layers.test_augmented import CLASSES, entered, statistics

torch = pytest.importorskip("torch")
torchvision()  # Beside PyTorch for CPUs its operators must be declared first.
transforms = pytest.importorskip("torchvision.transforms.v2")

SHAPES = [(3, 11, 14), (1, 9, 6), (3, 2, 5), (3, 2, 6, 7)]
GEOMETRY = CHANGES[:6]
#: Rounding down may go to the other side of a whole number.
ROUNDED = 1.0


def pictures(count: int, shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """Of a narrow range, which differs by the unit, with few values: equalize and autocontrast have something to do."""
    generator = np.random.default_rng(5)
    samples = generator.normal(120, 30, (count, *shape)) + generator.normal(
        0, 20, (count, shape[0], *(1,) * (len(shape) - 1))
    )
    samples[0] = 77
    return np.clip(samples, 0, 255).astype(np.uint8)


def changed(picture: npt.NDArray[Any], name: str, number: float) -> npt.NDArray[Any]:
    """What torchvision makes of a picture, (units[, depth], height, width), by its own names and numbers."""
    magnitude = number / 255 if name == "Solarize" else number
    planes = torch.from_numpy(np.moveaxis(picture, 0, -3).copy())  # A volume's planes are pictures of all units.
    if picture.ndim == 4 and name in ("Contrast", "AutoContrast", "Equalize"):  # Of which these are all over.
        planes = planes.transpose(0, 1).flatten(1, 2)
    made = transforms.TrivialAugmentWide()._apply_image_or_video_transform(
        planes, name, magnitude, interpolation=transforms.InterpolationMode.BILINEAR, fill={type(planes): None}
    )
    result = np.asarray(made.reshape(picture.shape) if made.ndim < picture.ndim else made.movedim(-3, 0))
    if name != "AutoContrast":
        return result
    # Theirs is of floats, and falls short of whole quotients.
    axes = tuple(range(1, picture.ndim))
    low, high = (extreme(axis=axes, keepdims=True) for extreme in (picture.min, picture.max))
    exact = np.where(high > low, (picture.astype(int) - low) * 255 // np.maximum(high.astype(int) - low, 1), picture)
    assert np.isin(exact - result, (0, 1)).all()
    return exact.astype(np.uint8)


def drawn(policy: Any, shape: Shape, count: int) -> list[Any]:
    """The changes and numbers of all samples, one after the other."""
    return list(policy._changes(shape, uniform(4, 2, np.arange(count), [policy.numbers])[0]))


def unchanged(units: int) -> tuple[FloatArray, FloatArray]:
    """A normalization that changes nothing."""
    return np.zeros(units, np.float32), np.ones(units, np.float32)


@CLASSES
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_change_is_that_of_torchvision(device: Device, shape: tuple[int, ...], device_class: str) -> None:
    policy, count = TrivialAugment(), 120
    samples, numbers = pictures(count, shape), np.arange(count)
    rows = rows_for([policy], Shape(*shape), 4, 2, numbers)
    found = entered(device, samples, numbers.astype(np.int32), rows, *unchanged(shape[0]), device_class)
    (each,) = drawn(policy, Shape(*shape), count)
    seen, rounded, values = set[str](), 0, 0
    for n in range(count):
        name, number = CHANGES[each.changes[n]], float(each.numbers[n])
        seen.add(name)
        if name in GEOMETRY:
            exact = samples[n].astype(np.float64)
            wanted, whole = (changed(picture, name, number) for picture in (exact, np.ones_like(exact)))
            # At an edge torchvision fades to what is outside.
            np.testing.assert_allclose(found[n][whole > 1 - 1e-9], wanted[whole > 1 - 1e-9], atol=1e-3, err_msg=name)
            assert not found[n][whole == 0].any()
        else:
            difference = np.abs(found[n] - changed(samples[n], name, number))
            assert difference.max() <= ROUNDED, (name, number)
            rounded, values = rounded + np.count_nonzero(difference), values + difference.size
    assert seen == set(CHANGES)
    assert rounded < 0.002 * values


@CLASSES
@pytest.mark.parametrize("shape", SHAPES[:2], ids=str)
def test_colours_change_one_after_the_other_and_then_places(
    device: Device, shape: tuple[int, ...], device_class: str
) -> None:
    policy, count = RandAugment(3, 14), 40
    others: list[Augmentation] = [RandomCrop(2), policy, Flip(), Brightness(0.3), Mixup(1, 0.5)]
    samples, numbers = pictures(count, shape), np.arange(count)
    rows = rows_for(others, Shape(*shape), 4, 2, numbers)
    draws = uniform(4, 2, numbers, [item.numbers for item in others])[1]
    coloured = samples.copy()
    for each in policy._changes(Shape(*shape), draws):
        for n in numbers:
            name = CHANGES[each.changes[n]]
            if name not in GEOMETRY:
                coloured[n] = changed(coloured[n], name, float(each.numbers[n]))
    mean, deviation = statistics(shape[0])
    found = entered(device, samples, numbers.astype(np.int32), rows, mean, deviation, device_class)
    wanted = augmented(coloured, rows, mean.astype(np.float64), deviation.astype(np.float64))
    difference = np.abs(found - wanted) * deviation[:, None, None]
    assert np.mean(difference > 1e-3) < 0.02
    assert difference.max() < 10
    assert np.mean(coloured != samples) > 0.5


@CLASSES
def test_chains_are_mixed(device: Device, device_class: str) -> None:
    """Step by step: colours by torchvision, places by the reference of maps."""
    shape, count = (3, 11, 14), 30
    samples, numbers = pictures(count, shape), np.arange(count)
    rows = rows_for([AugMix(10)], Shape(*shape), 4, 2, numbers)
    steps = rows[:, 19:].reshape(count, -1, 8).astype(np.float64)
    mean, deviation = statistics(3)
    wanted = np.zeros(samples.shape)
    for n in numbers:
        picture = samples[n]
        for kind, share, *own in steps[n]:
            if kind == 9:
                row = np.zeros((1, 19), np.float32)
                row[0, :6], row[0, 10] = own, 1
                moved = augmented(picture[None], row, np.rint(mean).astype(np.float64), np.ones(3))[0]
                picture = np.rint(moved + np.rint(mean)[:, None, None]).astype(np.uint8)
            elif kind:
                name = CHANGES[int(kind) + 5]
                factor = name in ("Brightness", "Contrast", "Color", "Sharpness")
                picture = changed(picture, name, own[0] - factor)
            if share >= 0:
                wanted[n] += share * picture
                picture = samples[n]
    found = entered(device, samples, numbers.astype(np.int32), rows, mean, deviation, device_class)
    difference = np.abs(found * deviation[:, None, None] + mean[:, None, None] - wanted)
    # Where a value between cells is rounded to the other side.
    assert np.mean(difference > 1e-3) < 0.06
    assert np.mean(difference > ROUNDED) < 0.005
    assert np.median(np.abs(wanted - samples)) > 3


def test_maps_follow_one_another_as_those_of_torchvision() -> None:
    matrix_of = pytest.importorskip("torchvision.transforms.functional")._get_inverse_affine_matrix
    policy, shape, count = RandAugment(3, 25), Shape(3, 11, 14), 60
    rows = rows_for([policy], shape, 4, 2, np.arange(count)).astype(np.float64)
    middle = np.array([[1, 0, 6.5], [0, 1, 5.0], [0, 0, 1]])
    changes, different = drawn(policy, shape, count), 0
    for n in range(count):
        wanted = np.eye(3)
        for each in changes:
            name, number = CHANGES[each.changes[n]], float(each.numbers[n])
            center, angle, shift, shear = [0.0, 0.0], 0.0, [0.0, 0.0], [0.0, 0.0]
            axis = int(name.endswith("Y"))
            if name.startswith("Shear"):
                center, shear[axis] = [-7.0, -5.5], float(np.degrees(np.arctan(number)))
            elif name.startswith("Translate"):
                shift[axis] = int(number)
            elif name == "Rotate":
                angle = -number
            matrix = np.array([*matrix_of(center, angle, shift, 1.0, shear), 0, 0, 1]).reshape(3, 3)
            wanted = wanted @ middle @ matrix @ np.linalg.inv(middle)
            different += name in GEOMETRY
        # Theirs is from (x, y, 1) to x and y.
        np.testing.assert_allclose(rows[n, :6].reshape(2, 3), wanted[np.ix_([1, 0], [1, 0, 2])], atol=1e-5)
    assert different > count


def test_ranges_are_those_of_torchvision() -> None:
    shape = Shape(3, 12, 17)
    theirs = {
        TrivialAugment(): (transforms.TrivialAugmentWide, 31),
        RandAugment(): (transforms.RandAugment, 31),
        AugMix(): (transforms.AugMix, 10),
    }
    for policy, (kind, bins) in theirs.items():
        numbers = policy.ranges.numbers(bins, shape)
        for name, (numbers_of, _) in kind._AUGMENTATION_SPACE.items():
            wanted = numbers_of(bins, shape.height, shape.width)
            if wanted is not None:
                scale = 255 if name == "Solarize" else 1
                np.testing.assert_allclose(numbers[CHANGES.index(name)], wanted * scale, rtol=1e-6, atol=1e-5)
        assert set(kind._AUGMENTATION_SPACE) == set(CHANGES[isinstance(policy, AugMix) :])
