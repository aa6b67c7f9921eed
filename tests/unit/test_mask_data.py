"""Data sets with a class for each position: arrays in files, and folders of pictures and masks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blobnet import datasets
from blobnet.datasets import dataset, image_folder
from blobnet.datasets.pictures import image_size, read_mask, save_mask
from blobnet.datasets.source import Source
from blobnet.errors import BlobnetError, BlobnetWarning, DataError, FileError

SHAPE = (6, 5)


def random_masks(count: int, classes: int, shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    """Some positions take no part; each class is there."""
    rng = np.random.default_rng([count, classes])
    masks = rng.integers(0, classes, (count, *shape)).astype(np.uint8)
    masks[rng.random(masks.shape) < 0.2] = 255
    masks.reshape(-1)[:classes] = np.arange(classes)
    return masks


# -- arrays ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [1 << 26, 0], ids=["in memory", "in the file"])
@pytest.mark.parametrize("name", ["masks.npz", "masks.h5", "npy"])
@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.uint16])
def test_arrays(tmp_path, monkeypatch, kept: int, name: str, dtype: type) -> None:
    for module in ("user_data", "source"):
        monkeypatch.setattr(f"blobnet.datasets.{module}.KEPT_BYTES", kept)
    x, y = np.random.default_rng(0).random((7, 2, *SHAPE), np.float32), random_masks(7, 4).astype(dtype)
    path = tmp_path / name
    if name == "npy":
        path.mkdir()
        np.save(path / "x.npy", x)
        np.save(path / "y.npy", y)
    elif name.endswith("npz"):
        np.savez(path, x=x, y=y)
    else:
        h5py = pytest.importorskip("h5py")
        with h5py.File(path, "w") as file:
            file["x"], file["y"] = x, y
    data = datasets.load(path)
    assert isinstance(data.train.y, Source) == (kept == 0)
    assert (data.positions, data.classes, data.ignored_label) == (SHAPE, 4, 255)
    assert data.class_names == ("0", "1", "2", "3")
    assert data.train.y.dtype == dtype
    np.testing.assert_array_equal(np.asarray(data.train.y), y)
    assert repr(data) == f"{path.stem}: 7 samples of (2, 6, 5), 4 classes for each of (6, 5) positions"
    part, held_out = data.train.split_validation(0.3, 0)
    assert (part.y.shape, held_out.y.shape) == ((5, *SHAPE), (2, *SHAPE))


def test_curves_have_a_class_for_each_position_too(tmp_path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((4, 2, 9)), y=random_masks(4, 3, (9,)))
    data = datasets.load(tmp_path / "a.npz")
    assert (data.positions, data.classes) == ((9,), 3)


def test_keras_masks_have_an_axis_more(tmp_path) -> None:
    y = random_masks(4, 3)
    np.savez(tmp_path / "a.npz", x_train=np.zeros((4, *SHAPE, 3), np.uint8), y_train=y[..., None])
    data = datasets.load(tmp_path / "a.npz")
    assert data.shape == (3, *SHAPE)
    np.testing.assert_array_equal(data.train.y, y)


def test_a_class_may_have_the_number_255(tmp_path) -> None:
    names = [f"class {number}" for number in range(256)]
    np.savez(tmp_path / "a.npz", x=np.zeros((4, 1, *SHAPE)), y=random_masks(4, 3), class_names=names)
    data = datasets.load(tmp_path / "a.npz")
    assert (data.classes, data.ignored_label) == (256, None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda y: np.where(y == 2, 7, y), "class numbers must be below 3. Received sample=(0, 0, 2), label=7."),
        (lambda y: y.astype(np.int64) - 1, "class numbers must not be negative. Received sample=(0, 0, 0), label=-1."),
        (lambda y: y[:-1], "x and y must hold the same number of samples. Received x_shape=(4, 1, 6, 5), y_shape=(3"),
        (lambda y: y[:, :, :, None], "class numbers must have the shape (samples,). Received shape=(4, 6, 5, 1)."),
    ],
)
def test_errors_of_arrays(tmp_path, change: Callable[[np.ndarray], np.ndarray], message: str) -> None:
    y = change(random_masks(4, 3))
    np.savez(tmp_path / "a.npz", x=np.zeros((4, 1, *SHAPE)), y=y, class_names=["a", "b", "c"])
    with pytest.raises(DataError) as info:
        datasets.load(tmp_path / "a.npz")
    assert message in str(info.value)


def test_a_position_must_have_a_class(tmp_path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((4, 1, *SHAPE)), y=np.full((4, *SHAPE), 255))
    with pytest.raises(DataError, match="a position must have a class, and not all be 255, which takes no part"):
        datasets.load(tmp_path / "a.npz")


def test_floats_are_still_targets(tmp_path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((4, 1, *SHAPE)), y=random_masks(4, 3).astype(np.float32))
    data = datasets.load(tmp_path / "a.npz")
    assert (data.classes, data.positions, data.ignored_label) == (0, (), None)


# -- pictures ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def image() -> Any:
    return pytest.importorskip("PIL.Image", reason="Pillow is not installed")


def write_folder(folder: Path, image: Any, masks: np.ndarray, mode: str = "P", suffix: str = "jpg") -> np.ndarray:
    """Pictures and their masks, in the files of a folder."""
    rng = np.random.default_rng(len(masks))
    pictures = rng.integers(0, 256, (*masks.shape, 3)).astype(np.uint8)
    for name in ("images", "masks"):
        (folder / name).mkdir(parents=True)
    for number, (picture, mask) in enumerate(zip(pictures, masks, strict=True)):
        image.fromarray(picture).save(folder / "images" / f"{number:03}.{suffix}")
        made = image.fromarray(mask)
        if mode == "P":
            made.putpalette(rng.integers(0, 256, 768).astype(np.uint8).tobytes())
        elif mode == "I;16":
            made = image.fromarray(mask.astype(np.uint16))
        made.save(folder / "masks" / f"{number:03}.{'bmp' if mode == 'bmp' else 'png'}")
    return pictures


@pytest.mark.parametrize("mode", ["P", "L", "I;16", "bmp"])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kept", [1 << 26, 0], ids=["in memory", "in files"])
def test_a_folder(tmp_path, monkeypatch, image, mode: str, workers: int, kept: int) -> None:
    monkeypatch.setattr(image_folder, "KEPT_BYTES", kept)
    masks = random_masks(5, 4)
    pictures = write_folder(tmp_path / "train", image, masks, mode, "png")
    write_folder(tmp_path / "val", image, masks[:2], mode)
    (tmp_path / "train" / "masks" / "of nothing.png").write_bytes(b"")
    with pytest.warns(BlobnetWarning, match="left out: 1 of masks/ without a picture"):
        data = datasets.load(tmp_path, workers=workers)
    assert isinstance(data.train.y, Source) == (kept == 0)
    np.testing.assert_array_equal(np.asarray(data.train.x), pictures.transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(np.asarray(data.train.y), masks)
    assert data.validation is not None
    np.testing.assert_array_equal(np.asarray(data.validation.y), masks[:2])
    assert (data.class_names, data.positions, data.ignored_label) == (("0", "1", "2", "3"), SHAPE, 255)


def test_folders_in_other_cases_and_below(tmp_path, image) -> None:
    masks = random_masks(3, 2)
    pictures = write_folder(tmp_path, image, masks)
    for name, title in (("images", "Images"), ("masks", "MASKS")):
        (tmp_path / name).rename(tmp_path / title)
        (tmp_path / title / "street").mkdir()
        for path in (tmp_path / title).glob("00[12].*"):
            path.rename(tmp_path / title / "street" / path.name)
    data = datasets.load(tmp_path)
    np.testing.assert_array_equal(data.train.y, masks)
    assert len(data.train) == len(pictures)


def test_names_of_classes(tmp_path, image) -> None:
    write_folder(tmp_path, image, random_masks(3, 2))
    (tmp_path / "classes.txt").write_text("background\ncat\ndog\n", encoding="utf-8")
    assert datasets.load(tmp_path).class_names == ("background", "cat", "dog")


def test_resized_masks_take_the_nearest_number(tmp_path, image) -> None:
    masks = random_masks(3, 4)
    write_folder(tmp_path, image, masks)
    data = datasets.load(tmp_path, size=(10, 15))
    # The middle of a cell lies in the cell that it takes its number from.
    rows, columns = (np.floor((np.arange(n) + 0.5) * old / n).astype(int) for n, old in ((10, 6), (15, 5)))
    assert data.shape == (3, 10, 15)
    np.testing.assert_array_equal(data.train.y, masks[:, rows][:, :, columns])


def test_pictures_and_masks_that_cannot_be_read(tmp_path, image) -> None:
    masks = random_masks(6, 3)
    write_folder(tmp_path, image, masks)
    (tmp_path / "masks" / "001.png").write_bytes(b"no picture")
    (tmp_path / "images" / "004.jpg").write_bytes(b"no picture")
    with pytest.raises(FileError, match=r"cannot be read.*first=.*001\.png: .*others=[^ ]*004\.jpg\. Hint"):
        datasets.load(tmp_path)
    with pytest.warns(BlobnetWarning, match="2 of 6 pictures cannot be read and are left out"):
        data = datasets.load(tmp_path, skip_unreadable=True)
    np.testing.assert_array_equal(data.train.y, masks[[0, 2, 3, 5]])


def _remove(folder: Path) -> None:
    (folder / "masks" / "001.png").unlink()
    (folder / "masks" / "002.png").unlink()


def _shrink(folder: Path) -> None:
    save_mask(folder / "masks" / "001.png", np.zeros((5, 5), np.uint8))


def _name_two(folder: Path) -> None:
    (folder / "classes.txt").write_text("a\nb\n", encoding="utf-8")


def _index_two(folder: Path) -> None:
    (folder / "class_index.json").write_text('{"a": 0, "b": 1}', encoding="utf-8")


def _fill(value: int) -> Callable[[Path], None]:
    def fill(folder: Path) -> None:
        for path in (folder / "masks").iterdir():
            save_mask(path, np.where(np.arange(30).reshape(SHAPE) % 2, 255, value).astype(np.uint8))

    return fill


def _colour(folder: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    image.new("RGB", SHAPE[::-1]).save(folder / "masks" / "001.png")


def _widen(folder: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    image.fromarray(np.full(SHAPE, 300, np.uint16)).save(folder / "masks" / "001.png")


def _split(folder: Path) -> None:
    (folder / "train").mkdir()
    (folder / "images").rename(folder / "train" / "images")
    (folder / "masks").rename(folder / "train" / "masks")
    (folder / "val" / "images").mkdir(parents=True)


def _empty(folder: Path) -> None:
    for path in (folder / "images").iterdir():
        path.unlink()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_remove, "masks: each picture must have a mask of its name, of a format that keeps values (PNG, BMP, DIB, "
         "GIF, TIFF, PPM, TGA, QOI). Received missing=2, of=4, first=001."),
        (_shrink, "masks/001.png: a mask must have the height and width of its picture. Received mask=(5, 5), "
         "picture=(6, 5) in "),
        (_name_two, "masks/000.png: class numbers must be below 2, as many as classes.txt names, or 255. Received "
         "position=(0, 2), label=2."),
        (_index_two, "masks/000.png: class numbers must be below 2, as many as class_index.json names, or 255."),
        (_fill(0), "masks must hold at least two classes, to learn what tells them apart. Received found=0. Hint: 255 "
         "takes no part: masks of 0 and 255 must become masks of 0 and 1."),
        (_fill(255), "a position must have a class, and not all be 255, which takes no part."),
        (_colour, "masks/001.png: a mask must be gray or have a palette, and be no JPEG, which changes values. "
         "Received format=PNG, mode=RGB."),
        (_widen, "masks/001.png: class numbers of a mask must be from 0 to 255. Received largest=300."),
        (_split, "val: it must hold the folders images and masks. Received missing=masks."),
        (_empty, "images: it must hold pictures."),
    ],
)  # fmt: skip
def test_errors_of_folders(tmp_path, image, change: Callable[[Path], None], message: str) -> None:
    write_folder(tmp_path, image, random_masks(4, 3))
    change(tmp_path)
    with pytest.raises(BlobnetError) as info:
        datasets.load(tmp_path)
    assert message in str(info.value)


@pytest.mark.usefixtures("image")
def test_saved_masks_are_read_again(tmp_path) -> None:
    mask = np.random.default_rng(0).integers(0, 256, (7, 4)).astype(np.uint8)
    save_mask(tmp_path / "a.png", mask)
    np.testing.assert_array_equal(read_mask(tmp_path / "a.png"), mask)
    save_mask(tmp_path / "b.png", mask, (14, 8))
    np.testing.assert_array_equal(read_mask(tmp_path / "b.png"), mask.repeat(2, axis=0).repeat(2, axis=1))
    assert image_size(tmp_path / "b.png") == (14, 8)
    np.save(tmp_path / "c.npy", np.zeros((3, 7, 4)))
    assert image_size(tmp_path / "c.npy") == (7, 4)


def test_colours_of_saved_masks_are_those_of_voc(tmp_path, image) -> None:
    save_mask(tmp_path / "a.png", np.array([[0, 1, 2, 3, 15, 20, 255]], np.uint8))
    colours = np.asarray(image.open(tmp_path / "a.png").convert("RGB"))[0].tolist()
    # Background, aeroplane, bicycle, bird, person, television, and what takes no part.
    assert colours == [
        [0, 0, 0], [128, 0, 0], [0, 128, 0], [128, 128, 0], [192, 128, 128], [0, 64, 128], [224, 224, 192],
    ]  # fmt: skip


def test_the_number_that_takes_no_part() -> None:
    assert dataset.ignored_label((), 3) is None
    assert dataset.ignored_label((2,), 255) == 255
    assert dataset.ignored_label((2,), 256) is None
