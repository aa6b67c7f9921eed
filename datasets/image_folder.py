"""A data set that is a folder with one folder of pictures for each class."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from blobnet.datasets.checks import as_split
from blobnet.datasets.dataset import Dataset, Split
from blobnet.datasets.pictures import read_picture, with_units
from blobnet.errors import DataError, OptionError

PICTURE_SUFFIXES = (".png", ".jpg", ".jpeg")


def read_image_folder(folder: Path, size: tuple[int, int] | None = None) -> Dataset:
    """Read ``folder/<class>/*.png``, or ``folder/train/<class>/*.png`` and (optional) ``folder/test/<class>/*.png``.

    Classes are numbered in the order of their sorted names; x is uint8, (N, 1, H, W) if every picture is gray, else
    (N, 3, H, W). Files that are no PNG or JPEG by their name, and hidden ones, are left out.

    Args:
        folder: what to read.
        size: (height, width) to which every picture is resized; None demands that all have one size.

    Raises:
        OptionError: the size is not a pair of positive numbers.
        FileError: a picture cannot be read (it is named), or Pillow is not installed.
        DataError: no classes, a class without pictures, a test class that is not trained, or pictures of several sizes.
    """
    if size is not None and (len(size) != 2 or min(size) < 1):
        raise OptionError("size", "it must be a height and a width of at least 1", size=size)
    parts = [part.name for part in _subfolders(folder)]
    is_split = parts in (["train"], ["test", "train"])
    train_folder = folder / "train" if is_split else folder
    class_names = [part.name for part in _subfolders(train_folder)]
    if not class_names:
        raise DataError(str(train_folder), "it must hold one folder of PNG or JPEG pictures for each class")
    pictures = _find_pictures(train_folder, class_names)
    test_count = 0
    if "test" in parts and is_split:
        test_pictures = _find_pictures(folder / "test", class_names)
        test_count = len(test_pictures)
        pictures += test_pictures
    everything = _read_pictures(pictures, size, len(class_names))
    train_count = len(everything) - test_count
    test = Split(everything.x[train_count:], everything.y[train_count:]) if test_count else None
    train = Split(everything.x[:train_count], everything.y[:train_count])
    return Dataset(folder.resolve().name, train, test, tuple(class_names))


def _subfolders(folder: Path) -> list[Path]:
    """The folders in a folder, sorted by name, without hidden ones and what macOS leaves in archives."""
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith((".", "__MACOSX")))


def _find_pictures(folder: Path, class_names: list[str]) -> list[tuple[Path, int]]:
    """The pictures of every class, each with its class number."""
    found: list[tuple[Path, int]] = []
    for part in _subfolders(folder):
        if part.name not in class_names:
            raise DataError(str(part), "every class of the test split must be trained", classes=class_names)
        pictures = sorted(
            path for path in part.iterdir() if path.suffix.lower() in PICTURE_SUFFIXES and not path.name.startswith(".")
        )
        if not pictures:
            raise DataError(str(part), "the folder of a class must hold PNG or JPEG pictures")
        found += [(path, class_names.index(part.name)) for path in pictures]
    return found


def _read_pictures(pictures: list[tuple[Path, int]], size: tuple[int, int] | None, classes: int) -> Split:
    """All pictures as one array."""
    planes = []
    for path, _ in pictures:
        picture = read_picture(path, size)
        planes.append(picture)
        if planes[-1].shape[1:] != planes[0].shape[1:]:
            raise DataError(
                str(path),
                "all pictures must have one size",
                hint="give size=(height, width), or --image-size HEIGHTxWIDTH, to resize them",
                size=picture.shape[1:],
                first=f"{planes[0].shape[1:]} in {pictures[0][0]}",
            )
    units = max(len(picture) for picture in planes)
    x = np.stack([with_units(picture, units, path) for picture, (path, _) in zip(planes, pictures, strict=True)])
    return as_split(x, np.array([label for _, label in pictures]), classes, "pictures")
