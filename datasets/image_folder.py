"""A data set that is a folder with one folder of pictures for each class, or a table of pictures and labels."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from blobnet.datasets.dataset import Dataset, Split
from blobnet.datasets.picture_source import PictureSource
from blobnet.datasets.picture_workers import PictureWorkers
from blobnet.datasets.source import KEPT_BYTES
from blobnet.errors import DataError, FileError, OptionError, warn

PICTURE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
TABLE_SUFFIXES = (".csv",)
#: The file that names the classes in the order of their numbers.
CLASS_FILE = "classes.txt"
#: What a folder or a row of a table may be called that belongs to a part of the data.
PARTS = {"train": "train", "test": "test", "val": "validation", "valid": "validation", "validation": "validation"}
#: How the columns of a table may be called.
_PATH_COLUMNS, _LABEL_COLUMNS = ("path", "file", "filename", "image"), ("label", "class")
#: Pictures up to which processes to look at them take longer to start than they would save.
FEW_PICTURES = 512

_KINDS = "PNG, JPEG, WebP or BMP"

Pictures = list[tuple[Path, int]]


def read_image_folder(
    folder: Path, size: tuple[int, int] | None = None, workers: int | None = None, *, skip_unreadable: bool = False
) -> Dataset:
    """Read ``folder/<class>/*.png``, or ``folder/train/<class>/*.png`` with ``folder/test`` and ``folder/val`` beside.

    ``val`` may also be ``valid`` or ``validation``; it and ``test`` may be missing. Classes are numbered in the order
    of their sorted names, or of the lines of a file ``classes.txt`` in the folder. x is uint8, (N, 1, H, W) if every
    picture is gray, else (N, 3, H, W): an array if that takes up to 64 MB, else a :class:`Source` that decodes
    pictures when they are asked for. Files that are no pictures by their name, and hidden ones, are left out.

    Args:
        folder: what to read.
        size: (height, width) to which every picture is resized; None demands that all have one size.
        workers: processes that decode; None takes one for each core where it pays, 0 does without.
        skip_unreadable: whether pictures that cannot be decoded are left out, with a warning. All are decoded once to
            find them.

    Raises:
        OptionError: the size is not a pair of positive numbers, or the number of workers is negative.
        FileError: a picture cannot be read (it is named), or Pillow is not installed.
        DataError: no classes, a class without pictures, a test class that is not trained, or pictures of several sizes.
    """
    found = [part.name for part in _subfolders(folder)]
    is_split = "train" in found and set(found) <= set(PARTS)
    if is_split and len({PARTS[name] for name in found}) < len(found):
        rule = "only one folder may hold the pictures to validate with"
        raise DataError(str(folder), rule, found=[name for name in found if PARTS[name] == "validation"])
    folders = {PARTS[name]: folder / name for name in found} if is_split else {"train": folder}
    trained = [part.name for part in _subfolders(folders["train"])]
    if not trained:
        raise DataError(str(folders["train"]), f"it must hold one folder of {_KINDS} pictures for each class")
    class_names = _listed_classes(folder) or trained
    for name in trained:
        if name not in class_names:
            rule = "every class must stand in it, a name a line"
            raise DataError(str(folder / CLASS_FILE), rule, missing=name, names=class_names)
    pictures: dict[str, Pictures] = {
        part: _find_pictures(folders[part], part, class_names)
        for part in ("train", "validation", "test")
        if part in folders
    }
    return _dataset(folder.resolve().name, pictures, class_names, size, workers, skip_unreadable)


def read_picture_table(
    path: Path, size: tuple[int, int] | None = None, workers: int | None = None, *, skip_unreadable: bool = False
) -> Dataset:
    """Read a CSV file whose columns ``path`` and ``label``, and perhaps ``split``, name pictures and their classes.

    Commas, semicolons or tabs part them. Paths are relative to the file's folder. Classes are numbered in the order of
    their sorted names (as numbers if all are whole numbers), or of the lines of a file ``classes.txt`` beside it, which
    labels may also number from 0 on. The split is ``train``, ``test`` or ``val``. The rest is as in
    :func:`read_image_folder`.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            start = file.readline()
            file.seek(0)
            # Where a comma stands in numbers, programs write semicolons between columns.
            delimiter = max(",;\t", key=start.count)
            reader = csv.DictReader(file, skipinitialspace=True, delimiter=delimiter)
            columns, rows = [name.strip() for name in reader.fieldnames or ()], list(reader)
    except (OSError, ValueError, csv.Error) as error:
        raise FileError(str(path), "the file must be a readable CSV file", reason=error) from error
    lower = [name.lower() for name in columns]
    place_of_path, place_of_label = (
        next((lower.index(name) for name in names if name in lower), None) for names in (_PATH_COLUMNS, _LABEL_COLUMNS)
    )
    if place_of_path is None or place_of_label is None:
        hint = "the first line names the columns; split (train, test or val) may be a third one."
        raise DataError(str(path), "it must have the columns path and label", columns=columns, hint=hint)
    parts: dict[str, list[tuple[Path, str]]] = {"train": []}
    for number, row in enumerate(rows, 2):
        cells = [(cell or "").strip() for cell in list(row.values())[: len(columns)]]
        part = cells[lower.index("split")].lower() if "split" in lower else "train"
        if not cells[place_of_path] or not cells[place_of_label] or part not in PARTS:
            rule = "every row must have a path and a label, and its split must be train, test or val"
            raise DataError(f"{path}, row {number}", rule, row=cells)
        parts.setdefault(PARTS[part], []).append((path.parent / cells[place_of_path], cells[place_of_label]))
    if not parts["train"]:
        raise DataError(str(path), "it must name pictures to train on", rows=len(rows))
    labels = {label for pictures in parts.values() for _, label in pictures}
    class_names, number_of = _numbered(path, labels, {label for _, label in parts["train"]})
    numbered = {part: [(file, number_of[label]) for file, label in pictures] for part, pictures in parts.items()}
    return _dataset(path.stem, numbered, class_names, size, workers, skip_unreadable)


def _numbered(path: Path, labels: set[str], trained: set[str]) -> tuple[list[str], dict[str, int]]:
    """The names of the classes, and the number of each label."""
    listed, are_numbers = _listed_classes(path.parent), all(label.isdecimal() for label in labels)
    if listed and labels <= set(listed):
        return listed, {name: number for number, name in enumerate(listed)}
    if listed and are_numbers and all(int(label) < len(listed) for label in labels):
        return listed, {label: int(label) for label in labels}
    if listed:
        rule = f"every label must stand in {CLASS_FILE}, or be the number of a line of it, from 0 on"
        wrong = next(label for label in sorted(labels) if label not in listed)
        raise DataError(str(path), rule, label=wrong, names=listed)
    if labels != trained:
        rule = "every class of the other splits must be trained"
        raise DataError(str(path), rule, label=min(labels - trained), classes=sorted(trained))
    names = sorted(labels, key=(lambda label: (int(label), label)) if are_numbers else str)
    return names, {name: number for number, name in enumerate(names)}


def _subfolders(folder: Path) -> list[Path]:
    """The folders in a folder, sorted by name, without hidden ones and what macOS leaves in archives."""
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith((".", "__MACOSX")))


def _listed_classes(folder: Path) -> list[str]:
    """The names in the file for them; empty if there is none.

    Raises:
        FileError: it cannot be read.
        DataError: it names a class twice, or none.
    """
    path = folder / CLASS_FILE
    if not path.is_file():
        return []
    try:
        names = [line.strip() for line in path.read_text("utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise FileError(str(path), "the file must be readable text", reason=error) from error
    if not names or len(set(names)) < len(names):
        raise DataError(str(path), "it must name each class once, a name a line", names=names)
    return names


def _find_pictures(folder: Path, part: str, class_names: Sequence[str]) -> Pictures:
    """The pictures of every class, each with its class number."""
    found: Pictures = []
    for subfolder in _subfolders(folder):
        if subfolder.name not in class_names:
            rule = f"every class of the {part} split must be trained"
            raise DataError(str(subfolder), rule, classes=class_names)
        pictures = sorted(
            path
            for path in subfolder.iterdir()
            if path.suffix.lower() in PICTURE_SUFFIXES and not path.name.startswith(".")
        )
        if not pictures:
            raise DataError(str(subfolder), f"the folder of a class must hold {_KINDS} pictures")
        found += [(path, class_names.index(subfolder.name)) for path in pictures]
    return found


def _dataset(
    name: str,
    parts: Mapping[str, Pictures],
    class_names: Sequence[str],
    size: tuple[int, int] | None,
    workers: int | None,
    skip_unreadable: bool,
) -> Dataset:
    """Pictures as a data set."""
    if size is not None and (len(size) != 2 or min(size) < 1):
        raise OptionError("size", "it must be a height and a width of at least 1", size=size)
    pictures = [(part, path, label) for part, members in parts.items() for path, label in members]
    is_few = workers is None and len(pictures) <= FEW_PICTURES
    crew = PictureWorkers(0 if is_few else workers)
    forms = crew.forms([path for _, path, _ in pictures], has_size=size is None, is_whole=skip_unreadable)
    errors = [form for form in forms if isinstance(form, FileError)]
    if errors and not skip_unreadable:
        rule = f"{len(errors)} of {len(pictures)} pictures cannot be read"
        hint = "skip_unreadable=True (--skip-unreadable) leaves such pictures out."
        raise FileError(name, rule, first=str(errors[0]).rstrip("."), hint=hint)
    if errors:
        rule = f"{len(errors)} of {len(pictures)} pictures cannot be read and are left out"
        warn(name, rule, first=str(errors[0]).rstrip("."))
    readable = [(picture, form) for picture, form in zip(pictures, forms, strict=True) if isinstance(form, tuple)]
    pictures, kept = [picture for picture, _ in readable], [form for _, form in readable]
    if {part for part, _, _ in pictures} != set(parts):
        raise DataError(name, "every split must hold pictures that can be read", unreadable=len(errors))
    gone = {label for _, label in parts["train"]} - {label for part, _, label in pictures if part == "train"}
    if gone:
        rule = "every class must hold a picture to train on that can be read"
        raise DataError(name, rule, unreadable=len(errors), **{"class": class_names[min(gone)]})
    for (_, path, _), form in zip(pictures, kept, strict=True):
        if size is None and form[1:] != kept[0][1:]:
            rule = "all pictures must have one size"
            hint = "give size=(height, width), or --image-size HEIGHTxWIDTH, to resize them"
            example = f"{kept[0][1:]} in {pictures[0][1]}"
            raise DataError(str(path), rule, size=form[1:], first=example, hint=hint)
    units = max(form[0] for form in kept)
    size = kept[0][1:] if size is None else size
    is_large = len(pictures) * units * size[0] * size[1] > KEPT_BYTES
    if is_large and is_few:
        crew = PictureWorkers(workers)
    source = PictureSource([path for _, path, _ in pictures], size, units, crew, name)
    x = source if is_large else np.asarray(source)
    splits: dict[str, Split] = {}
    first = 0
    for part in parts:
        y = np.array([label for member, _, label in pictures if member == part], np.int64)
        splits[part] = Split(x[first : first + len(y)], y)
        first += len(y)
    return Dataset(name, splits["train"], splits.get("test"), tuple(class_names), splits.get("validation"))
