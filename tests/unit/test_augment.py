"""Augmentation: the rows that kernels get."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from blobnet.augment import (
    AlternatingFlip,
    Augmentation,
    AugMix,
    Brightness,
    Contrast,
    CutMix,
    Erasing,
    Flip,
    Mixup,
    RandAugment,
    RandomAffine,
    RandomCrop,
    RandomResizedCrop,
    Saturation,
    TrivialAugment,
)
from blobnet.augment.base import uniform
from blobnet.augment.epoch_rows import EpochRows, from_descriptions, partner_shares, rows_for
from blobnet.augment.words import augmentations_of
from blobnet.errors import OptionError
from blobnet.examination.reference.philox import philox4x32
from blobnet.memory.blob import FloatArray, Shape

SHAPE = Shape(3, 12, 16)
MANY = np.arange(4000)
WORDS = ("crop", "resize", "flip", "rotate", "brightness", "contrast", "saturation", "erase", "mixup", "cutmix")
WORDS += ("augmix", "alternating-flip")
ALL = list(augmentations_of(",".join(WORDS)))


def rows(*augmentations: Augmentation, shape: Shape = SHAPE, epoch: int = 0) -> FloatArray:
    return rows_for(augmentations, shape, seed=7, epoch=epoch, samples=MANY)


def test_numbers_are_those_of_the_reference() -> None:
    seed, epoch, samples = 0x1234567890, 3, np.array([5, 0, 2**31 - 1])
    numbers = uniform(seed, epoch, samples, [8, 3, 5])
    assert [part.shape for part in numbers] == [(8, 3), (3, 3), (5, 3)]
    key = np.array([(seed & 0xFFFFFFFF) ^ 0x6175676D, seed >> 32], np.uint32)
    for stream, part in enumerate(numbers):
        for (place, n), number in np.ndenumerate(part):
            counter = np.array([samples[n], 2 * stream + place // 4, epoch, 0], np.uint32)
            word = int(philox4x32(counter, key)[place % 4])
            assert number == (word + 0.5) / 2**32


def test_a_row_follows_from_seed_epoch_and_sample_alone() -> None:
    whole = rows_for(ALL, SHAPE, 7, 1, MANY)
    some = np.random.default_rng(0).permutation(MANY)[:37]
    assert rows_for(ALL, SHAPE, 7, 1, some).tobytes() == whole[some].tobytes()
    assert rows_for(ALL, SHAPE, 7, 1, some[:1]).tobytes() == whole[some[:1]].tobytes()
    for seed, epoch in ((8, 1), (7, 2), (7 + 2**32, 1)):
        assert not np.any(rows_for(ALL, SHAPE, seed, epoch, MANY)[:, 10] == whole[:, 10])
    assert len(np.unique(whole[:, 10])) > 3900


def test_what_comes_behind_does_not_change_what_is_drawn_before() -> None:
    assert np.array_equal(rows(RandomCrop(3))[:, :6], rows(RandomCrop(3), Brightness())[:, :6])


def test_no_augmentation_changes_nothing() -> None:
    identity = [1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]
    assert np.array_equal(rows(), np.tile(identity, (len(MANY), 1)))
    nothing = RandomAffine(0), Brightness(0), Contrast(0), Saturation(0), Erasing(0), RandomResizedCrop((1, 1), (1, 1))
    assert np.array_equal(rows(*nothing, shape=Shape(3, 9, 9)), rows())


def test_crops_shift_by_whole_cells_all_alike() -> None:
    made = rows(RandomCrop(2))
    assert np.array_equal(made[:, [0, 1, 3, 4]], np.tile([1, 0, 0, 1], (len(MANY), 1)))
    for column in (2, 5):
        shifts, counts = np.unique(made[:, column], return_counts=True)
        assert shifts.tolist() == [-2, -1, 0, 1, 2]
        assert np.all(np.abs(counts - len(MANY) / 5) < 100)
    assert np.all(rows(RandomCrop(2), shape=Shape(3, 9))[:, 2] == 0)


def test_every_other_picture_is_flipped() -> None:
    made = rows(Flip(horizontal=True, vertical=True))
    for scale, shift, size in ((made[:, 0], made[:, 2], 12), (made[:, 4], made[:, 5], 16)):
        assert abs(np.mean(scale == -1) - 0.5) < 0.03
        assert np.array_equal(shift, np.where(scale == -1, size - 1, 0))
        assert set(np.unique(scale)) == {-1, 1}
    both = np.mean((made[:, 0] == -1) & (made[:, 4] == -1))
    assert abs(both - 0.25) < 0.03
    assert np.all(rows(Flip())[:, 0] == 1)


def test_alternating_flips_show_both_sides_in_any_two_epochs() -> None:
    first, second, third = (rows(RandomCrop(1), AlternatingFlip(vertical=True), epoch=epoch) for epoch in range(3))
    for column in (0, 4):
        assert abs(np.mean(first[:, column] == -1) - 0.5) < 0.03
        assert np.array_equal(first[:, column], -second[:, column])
        assert np.array_equal(first[:, column], third[:, column])
    # What comes beside them is drawn anew in every epoch.
    shifts = [np.where(made[:, 4] == -1, made[:, 5] - 15, made[:, 5]) for made in (first, second, third)]
    assert not any(np.array_equal(shifts[0], others) for others in shifts[1:])
    assert np.array_equal(rows(RandomCrop(1))[:, 5], shifts[0])


def test_maps_follow_one_another() -> None:
    """A flip behind a crop mirrors what the crop has left."""
    crop, both = rows(RandomCrop(2)), rows(RandomCrop(2), Flip())
    flipped = both[:, 4] == -1
    assert 0.4 < np.mean(flipped) < 0.6
    assert np.array_equal(both[:, 5], np.where(flipped, 15, 0) + crop[:, 5])
    again = rows(RandomCrop(2), Flip(), RandomCrop(1))
    step = (again[:, 5] - both[:, 5]) * both[:, 4]
    assert set(np.unique(step)) == {-1, 0, 1}


def test_resized_crops_stay_inside() -> None:
    made = rows(RandomResizedCrop((0.2, 0.6), (0.5, 2)))
    height, width = made[:, 0] * 12, made[:, 4] * 16
    area = height * width / (12 * 16)
    assert 0.19 < area.min() < 0.21
    assert 0.57 < area.max() < 0.6001
    assert np.all((made[:, 2] >= made[:, 0] / 2 - 0.5001) & (made[:, 5] >= made[:, 4] / 2 - 0.5001))
    # The last cell's far edge.
    assert np.all(made[:, 2] + 11.5 * made[:, 0] <= 11.5001)
    assert np.all(made[:, 5] + 15.5 * made[:, 4] <= 15.5001)


def test_affine_maps_turn_about_the_middle() -> None:
    made = rows(RandomAffine(30, 0, (0.5, 2))).astype(np.float64)
    maps, middle = made[:, :6].reshape(-1, 2, 3), np.array([5.5, 7.5, 1])
    np.testing.assert_allclose(maps @ middle, np.tile(middle[:2], (len(MANY), 1)), atol=1e-5)
    factor = np.hypot(maps[:, 0, 0], maps[:, 0, 1])
    assert 0.5 <= factor.min() < 0.51
    assert 1.95 < factor.max() <= 2.0001
    angle = np.degrees(np.arctan2(maps[:, 0, 1], maps[:, 0, 0]))
    assert -30.001 < angle.min() < -29
    assert 29 < angle.max() < 30.001
    np.testing.assert_allclose(maps[:, 1, :2], np.stack([-maps[:, 0, 1], maps[:, 0, 0]], 1), atol=1e-6)
    moved = rows(RandomAffine(0, 0.25))
    assert np.all(np.abs(moved[:, 2]) <= 3)
    assert np.all(np.abs(moved[:, 5]) <= 4)
    assert moved[:, 5].max() > 3.9


def test_colours_follow_one_another() -> None:
    """Against the changes one by one, on a cell of three values."""
    changes = Brightness(0.5), Saturation(0.9), Contrast(0.6), Saturation(0.3), Brightness(0.1)
    made = rows(*changes).astype(np.float64)
    draws = uniform(7, 0, MANY, [1] * len(changes))
    gray, mean, cell = np.array([0.299, 0.587, 0.114]), np.array([3.0, 9.0, 5.0]), np.array([40.0, 7.0, 90.0])
    steps: dict[type, Callable[[Any, Any], Any]] = {
        Brightness: lambda value, factor: value * factor,
        Contrast: lambda value, factor: mean + factor * (value - mean),
        Saturation: lambda value, factor: value @ gray + factor * (value - value @ gray),
    }
    for n in range(0, len(MANY), 100):
        value = cell
        for change, numbers in zip(changes, draws, strict=True):
            value = steps[type(change)](value, 1 + change.amount * (2 * numbers[0, n] - 1))  # type: ignore[attr-defined]
        own, of_gray, of_mean, of_gray_mean = made[n, 10:14]
        seen = own * cell + of_gray * (cell @ gray) + of_mean * mean + of_gray_mean * (mean @ gray)
        np.testing.assert_allclose(seen, value, rtol=1e-5)


def test_erased_rectangles() -> None:
    made = rows(Erasing(0.3, (0.1, 0.4), (0.5, 2)))
    top, left, bottom, right = made[:, 6:10].T
    there = bottom > top
    assert abs(np.mean(there) - 0.3) < 0.03
    assert np.all(made[~there, 6:10] == 0)
    assert np.all((top >= 0) & (left >= 0) & (bottom <= 12) & (right <= 16))
    assert np.array_equal(made[:, 6:10], np.rint(made[:, 6:10]))
    area = ((bottom - top) * (right - left))[there] / (12 * 16)
    assert 0.07 < area.min() < 0.12
    assert 0.3 < area.max() < 0.45


def test_mixup_takes_all_cells_by_a_beta_distribution() -> None:
    for alpha in (0.2, 1.0, 3.0):
        made = rows(Mixup(alpha))
        assert np.array_equal(made[:, 14:18], np.tile([0, 0, 12, 16], (len(MANY), 1)))
        part = made[:, 18].astype(np.float64)
        assert 0 <= part.min() <= part.max() <= 1
        # The first two moments of a beta distribution of (alpha, alpha).
        assert abs(part.mean() - 0.5) < 0.03
        assert abs(part.var() - 0.25 / (2 * alpha + 1)) < 0.01
        assert np.array_equal(partner_shares(made, SHAPE), made[:, 18])
    quantiles = np.quantile(rows(Mixup(0.2))[:, 18], [0.1, 0.25, 0.75, 0.9])
    np.testing.assert_allclose(quantiles, [0.00025, 0.0247, 0.9753, 0.99975], atol=0.01)
    assert abs(np.mean(rows(Mixup(1, 0.3))[:, 18] > 0) - 0.3) < 0.03


def test_cutmix_pastes_rectangles_whose_area_is_the_share() -> None:
    for shape in (SHAPE, Shape(2, 33)):
        made = rows(CutMix(), shape=shape)
        top, left, bottom, right = made[:, 14:18].T
        assert np.array_equal(made[:, 14:18], np.rint(made[:, 14:18]))
        assert np.all((top >= 0) & (left >= 0) & (bottom <= shape.height) & (right <= shape.width))
        assert np.all((top <= bottom) & (left <= right))
        assert np.array_equal(made[:, 18], np.ones(len(MANY)))
        shares = (bottom - top) * (right - left) / (shape.height * shape.width)
        np.testing.assert_allclose(partner_shares(made, shape), shares, rtol=1e-6)
        # A part l of the area, uniform from 0 to 1; along each axis what lies outside is cut off.
        sides = np.linspace(0, 1, 20001) ** (1 / shape.rank)
        assert shares.mean() == pytest.approx(np.mean((sides - sides**2 / 4) ** shape.rank), abs=0.02)
        assert shares.max() > 0.9
    assert np.all(rows(CutMix(), shape=Shape(2, 33))[:, [14, 16]] == [0, 1])
    there = partner_shares(rows(CutMix(1, 0.4)), SHAPE) > 0
    assert 0.33 < np.mean(there) < 0.43


def test_of_several_mixtures_each_sample_takes_one() -> None:
    made = rows(Mixup(1), CutMix(), Mixup(1))
    pasted, blended = made[:, 18] == 1, (made[:, 18] < 1) & (made[:, 18] > 0)
    assert abs(pasted.mean() - 1 / 3) < 0.03
    assert np.all(pasted | blended)
    alone, both = rows(Mixup(1)), rows(Mixup(1), Flip())
    assert np.array_equal(alone[:, 14:], both[:, 14:])
    assert not partner_shares(rows(), SHAPE).any()


def test_policies_draw_all_changes_as_often() -> None:
    """TrivialAugment: each of fourteen; the eight of colours have a step that is not KEEP, with 31 numbers."""
    made = rows(TrivialAugment())
    kinds, counts = np.unique(made[:, 19], return_counts=True)
    assert kinds.tolist() == list(range(9))
    assert np.all(np.abs(counts[1:] - len(MANY) / 14) < 60)
    assert np.all(made[:, 20] == 1)
    factors = made[made[:, 19] == 1][:, 21]
    assert 0.01 <= factors.min() < 0.1
    assert 1.9 < factors.max() <= 1.991
    assert abs(np.mean(factors < 1) - 0.5) < 0.1
    assert 40 < len(np.unique(factors)) <= 61
    bits = made[made[:, 19] == 2][:, 21]
    assert np.unique(bits).tolist() == [2, 3, 4, 5, 6, 7, 8]
    still = np.all(made[:, :6] == rows()[:, :6], axis=1)
    assert abs(np.mean(still) - (9 + 5 / 31) / 14) < 0.02


def test_several_changes_are_steps_that_go_on() -> None:
    steps = rows(RandAugment(3, 30))[:, 19:].reshape(-1, 3, 8)
    assert np.array_equal(steps[:, :, 1], np.tile([-1, -1, 1], (len(MANY), 1)))
    colours = np.count_nonzero(steps[:, :, 0], axis=1)
    assert abs(colours.mean() - 3 * 8 / 14) < 0.05


def test_chains_have_shares_that_are_one_together() -> None:
    steps = rows(AugMix()).astype(np.float64)[:, 19:].reshape(-1, 10, 8)
    own, chains = steps[:, 0, 1], steps[:, 1:, 1].reshape(-1, 3, 3)
    ends = chains >= 0
    assert np.all(ends.sum(axis=2) == 1)
    np.testing.assert_allclose(own + np.where(ends, chains, 0).sum(axis=(1, 2)), 1, atol=1e-6)
    assert abs(own.mean() - 0.5) < 0.02
    assert abs(own.var() - 1 / 12) < 0.01
    depths = np.argmax(ends, axis=2)
    assert np.all(np.abs(np.bincount(depths.ravel()) / depths.size - 1 / 3) < 0.02)
    # A third of what the sample itself has not, with the variance of Dirichlet's distribution of (1, 1, 1).
    parts = np.where(ends, chains, 0).sum(axis=2) / (1 - own[:, None])
    assert abs(parts.mean() - 1 / 3) < 0.01
    assert abs(parts.var() - 2 / 36) < 0.005
    assert np.all(steps[:, 1:, 0].reshape(-1, 3, 3)[np.arange(3) > depths[:, :, None]] == 0)
    assert len(rows(AugMix(3, 2, 5))[0]) == 19 + 8 * 11


def test_rows_that_are_made_ahead_are_those_of_each_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blobnet.augment.epoch_rows._AHEAD", 100)
    order = np.random.default_rng(1).permutation(1000)
    made = EpochRows(ALL, SHAPE, 7, 2, lambda first, end: order[first:end])
    for first, count in ((0, 64), (64, 64), (128, 150), (278, 64), (936, 64), (10, 3), (990, 10)):
        wanted = rows_for(ALL, SHAPE, 7, 2, order[first : first + count])
        assert made.of(first, count).tobytes() == wanted.tobytes()


def test_words_and_descriptions() -> None:
    assert augmentations_of(" crop=3,flip , rotate=15.5") == (RandomCrop(3), Flip(), RandomAffine(15.5))
    assert {type(item) for item in ALL} | {TrivialAugment, RandAugment} == {*Augmentation.kinds.values()}
    assert augmentations_of("trivialaugment") == (TrivialAugment(),)
    assert augmentations_of("flip, randaugment=3") == (Flip(), RandAugment(3))
    assert augmentations_of("aug-mix=5") == (AugMix(5),)
    assert augmentations_of(",".join(type(item).__name__ for item in ALL)) == tuple(ALL)
    assert augmentations_of("random-resized-crop, cut-mix=0.5") == (RandomResizedCrop(), CutMix(0.5))
    assert augmentations_of(Flip()) == (Flip(),)
    assert augmentations_of(iter([Flip(), Contrast()])) == (Flip(), Contrast())
    assert from_descriptions([item.description() for item in ALL], "resume") == tuple(ALL)
    assert RandomCrop(np.int64(2)) == RandomCrop(2)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RandomCrop(0), r"RandomCrop: padding must be an int of at least 1\. Received padding=0"),
        (lambda: RandomCrop(1.5), "padding must be an int"),
        (lambda: Flip(False, False), "and not both False"),
        (lambda: Flip(1), r"must be True or False.*horizontal=1"),
        (lambda: Brightness(1.5), r"Brightness: amount must be at most 1\. Received amount=1\.5"),
        (lambda: Contrast(-0.1), "amount must be a finite number of at least 0"),
        (lambda: Saturation("much"), "amount must be a finite number"),
        (lambda: RandomAffine(200), "degrees must be at most 180"),
        (lambda: RandomAffine(float("nan")), "degrees must be a finite number"),
        (lambda: RandomAffine(10, scale=(2, 1)), r"scale must be two numbers, the smaller one first\. .*\(2, 1\)"),
        (lambda: RandomAffine(10, scale=(0, 1)), "scale must be a finite number above 0"),
        (lambda: RandomResizedCrop(0.5), "scale must be two numbers, the smaller one first, of at most 1"),
        (lambda: RandomResizedCrop((0.5, 1.2)), "of at most 1"),
        (lambda: Mixup(0), r"Mixup: alpha must be a finite number above 0\. Received alpha=0"),
        (lambda: CutMix(1, 1.5), r"CutMix: probability must be at most 1\. Received probability=1\.5"),
        (lambda: CutMix().check(Shape.flat(9)), "CutMix: the model's input must have a width"),
        (lambda: Erasing(2), "probability must be at most 1"),
        (lambda: augmentations_of(3), r"augment: it must be a list of augmentations.*augment=3.*'crop=2, flip'"),
        (lambda: augmentations_of([Flip]), "it must be a list of augmentations"),
        (lambda: augmentations_of("crop, flop"), r"every word must be that of an augmentation.*'flop'.*flip"),
        (lambda: augmentations_of(""), r"every word .*known names: alternating-flip, augmix"),
        (
            lambda: augmentations_of("flip=2", "--augment"),
            r"--augment: flip takes no number\. Received augment='flip=2'",
        ),
        (lambda: augmentations_of("crop=1.5"), "after crop= there must be an int"),
        (lambda: augmentations_of("rotate=a"), "after rotate= there must be a number"),
        (lambda: augmentations_of([Erasing(), Erasing()]), "at most one Erasing"),
        (lambda: augmentations_of("randaugment, augmix"), r"at most one policy.*RandAugment\(3\) does three changes"),
        (lambda: RandAugment(0), r"RandAugment: num_ops must be an int of at least 1\. Received num_ops=0"),
        (lambda: RandAugment(2, 31), r"magnitude must be below num_magnitude_bins.*magnitude=31"),
        (lambda: TrivialAugment(1), "num_magnitude_bins must be an int of at least 2"),
        (lambda: AugMix(11), "severity must be at most 10"),
        (lambda: AugMix(1, 0), "mixture_width must be an int of at least 1"),
        (lambda: TrivialAugment().check(Shape(1, 9)), "must have a height and a width"),
        (lambda: from_descriptions([{"kind": "Spin"}], "resume"), "resume: what the interrupted training says"),
        (lambda: RandomCrop(5).check(Shape(1, 5, 9)), r"padding must be smaller than the picture.*padding=5"),
        (lambda: RandomCrop(1).check(Shape.flat(9)), "the model's input must have a width"),
        (lambda: RandomAffine(1).check(Shape(1, 9)), "must have a height and a width"),
        (lambda: Flip(vertical=True).check(Shape(1, 9)), "must have a height"),
        (lambda: Saturation().check(Shape(1, 5, 5)), "three units: red, green and blue"),
    ],
)
def test_errors(make: Callable[[], object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make()
