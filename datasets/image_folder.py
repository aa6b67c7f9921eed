"""A data set that is a folder of pictures for each class, a folder of pictures and masks, or a table of pictures."""

from __future__ import annotations

import csv
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from blobnet.datasets.checks import chunks
from blobnet.datasets.dataset import IGNORED_LABEL, Dataset, Split, ignored_label
from blobnet.datasets.picture_source import PictureSource
from blobnet.datasets.picture_workers import SKIP_HINT, Form, PictureWorkers
from blobnet.datasets.source import KEPT_BYTES, Source
from blobnet.datasets.user_data import largest_class
from blobnet.errors import DataError, FileError, OptionError, first_few, warn
from blobnet.geometry import is_int
from blobnet.picture_kinds import PICTURE_KINDS, PICTURE_SUFFIXES
from blobnet.regular import check_regular

TABLE_SUFFIXES = (".csv",)
#: Files that name the classes in the order of their numbers: a name a line, or JSON with the number of each name.
CLASS_FILE, CLASS_INDEX = "classes.txt", "class_index.json"
#: What a folder or a row of a table may be called that belongs to a part of the data.
PARTS = {"train": "train", "test": "test", "val": "validation", "valid": "validation", "validation": "validation"}
#: How the columns of a table may be called.
_PATH_COLUMNS, _LABEL_COLUMNS = ("path", "file", "filename", "image"), ("label", "class")
#: Digits of a label that is a number, and not a name of digits.
_MOST_DIGITS = 18
#: Pictures up to which processes to look at them take longer to start than they would save.
FEW_PICTURES = 512

#: The folders of pictures and of their masks, and what masks may be: kinds of files that keep values as they are.
PICTURES, MASKS, MASK_SUFFIXES = "images", "masks", (".png", ".bmp")

#: Pictures that cannot be read which an error or a warning names.
_MOST_NAMED = 20

#: Pictures with their class numbers, and pictures with the files of their masks.
Pictures = list[tuple[Path, int]]
Masked = list[tuple[Path, Path]]
_Label = TypeVar("_Label", int, Path)
_Parts = Mapping[str, list[tuple[Path, _Label]]]


def read_image_folder(
    folder: Path,
    size: tuple[int, int] | None = None,
    workers: int | None = None,
    *,
    skip_unreadable: bool = False,
    units: int | None = None,
) -> Dataset:
    """Read ``folder/<class>/*.png``, or ``folder/train/<class>/*.png`` with ``folder/test`` and ``folder/val`` beside.

    ``val`` may also be ``valid`` or ``validation``; it and ``test`` may be missing. Classes are numbered in the order
    of their sorted names, or of the lines of a file ``classes.txt`` in the folder, or as its ``class_index.json`` says:
    ``{"cat": 0}``, ``{"0": "cat"}`` or ``{"0": ["cat", "what it is"]}``. x is uint8, (N, 1, H, W) if every picture is
    gray, else (N, 3, H, W): an array if that takes up to 64 MB, else a :class:`Source` that decodes pictures when they
    are asked for. Files that are no pictures by their name, and hidden ones, are left out.

    Where the folders are ``images`` and ``masks`` instead of classes, each picture has a mask of its size and of its
    name, but for the suffix: a PNG or BMP whose gray values, or indices into a palette, are the class numbers of the
    positions, or 255 for those that take no part. A file of classes then names the numbers. y is uint8, (N, H, W);
    where pictures are resized, masks take the nearest position's number.

    Args:
        folder: what to read.
        size: (height, width) to which every picture is resized; None demands that all have one size.
        workers: processes that decode; None takes one for each core where it pays, 0 does without.
        skip_unreadable: whether pictures that cannot be decoded are left out, with a warning. All are decoded once to
            find them.
        units: what every picture becomes: 1 for gray, 3 for RGB; None: gray if all are.

    Raises:
        OptionError: the size is not a pair of positive numbers, the number of workers is negative, or Pillow is not
            installed.
        FileError: a picture cannot be read (it is named).
        DataError: no classes, a class without pictures, a test class that is not trained, or pictures of several sizes;
            a picture without a mask, a mask of another size, or with a number that is no class.
    """
    found = [part.name for part in _subfolders(folder)]
    is_split = "train" in found and set(found) <= set(PARTS)
    if is_split and len({PARTS[name] for name in found}) < len(found):
        rule = "only one folder may hold the pictures to validate with"
        raise DataError(str(folder), rule, found=[name for name in found if PARTS[name] == "validation"])
    folders = {PARTS[name]: folder / name for name in found} if is_split else {"train": folder}
    trained = [part.name for part in _subfolders(folders["train"])]
    if {PICTURES, MASKS} <= set(trained):
        masked: dict[str, Masked] = {part: _find_masked(folders[part]) for part in folders}
        return _masked_dataset(folder, masked, size, workers, skip_unreadable, units)
    if not trained:
        rule, hint = f"it must hold one folder of {PICTURE_KINDS} pictures for each class", None
        if not is_split and _files(folder, PICTURE_SUFFIXES):
            hint = f"pictures lie in it itself: if they are those of one class, give the folder above, {folder.parent}."
        raise DataError(str(folders["train"]), rule, hint=hint)
    class_names = _listed_classes(folder) or trained
    for name in trained:
        if name not in class_names:
            raise DataError(str(_class_file(folder)), "every class must stand in it", missing=name, names=class_names)
    pictures: dict[str, Pictures] = {
        part: _find_pictures(folders[part], part, class_names)
        for part in ("train", "validation", "test")
        if part in folders
    }
    return _dataset(folder.resolve().name, pictures, class_names, size, workers, skip_unreadable, units)


def read_picture_table(
    path: Path,
    size: tuple[int, int] | None = None,
    workers: int | None = None,
    *,
    skip_unreadable: bool = False,
    units: int | None = None,
) -> Dataset:
    """Read a CSV file whose columns ``path`` and ``label``, and perhaps ``split``, name pictures and their classes.

    Commas, semicolons or tabs part them. Paths are relative to the file's folder. Classes are numbered in the order of
    their sorted names (as numbers if all are whole numbers), or of a file of classes beside it, which labels may also
    number from 0 on. The split is ``train``, ``test`` or ``val``. The rest is as in
    :func:`read_image_folder`.
    """
    try:
        check_regular(path)
        with path.open(newline="", encoding="utf-8-sig") as file:
            start = file.readline()
            file.seek(0)
            # Where a comma stands in numbers, programs write semicolons between columns.
            delimiter = max(",;\t", key=start.count)
            reader = csv.reader(file, skipinitialspace=True, delimiter=delimiter)
            columns, rows = [name.strip() for name in next(reader, ())], [row for row in reader if row]
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
        cells = [cell.strip() for cell in row[: len(columns)]] + [""] * (len(columns) - len(row))
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
    return _dataset(path.stem, numbered, class_names, size, workers, skip_unreadable, units)


def _numbered(path: Path, labels: set[str], trained: set[str]) -> tuple[list[str], dict[str, int]]:
    """The names of the classes, and the number of each label."""
    listed = _listed_classes(path.parent)
    are_numbers = all(label.isdecimal() and len(label) <= _MOST_DIGITS for label in labels)
    if listed and labels <= set(listed):
        return listed, {name: number for number, name in enumerate(listed)}
    if listed and are_numbers and all(int(label) < len(listed) for label in labels):
        return listed, {label: int(label) for label in labels}
    if listed:
        rule = f"every label must stand in {_class_file(path.parent).name}, or be a class's number there, from 0 on"
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


def _class_file(folder: Path) -> Path:
    """The file that names the classes, if there is one."""
    return next((path for name in (CLASS_FILE, CLASS_INDEX) if (path := folder / name).is_file()), folder / CLASS_FILE)


def _listed_classes(folder: Path) -> list[str]:
    """The names in the file for them; empty if there is none.

    Raises:
        FileError: it cannot be read.
        DataError: it names a class twice, or none.
    """
    path = _class_file(folder)
    if not path.is_file():
        return []
    try:
        text = path.read_text("utf-8")
        is_index = path.name == CLASS_INDEX
        names = _indexed(json.loads(text)) if is_index else [line.strip() for line in text.splitlines() if line.strip()]
    except (OSError, ValueError, RecursionError) as error:
        raise FileError(str(path), "the file must be readable text", reason=error) from error
    if not names or len(set(names)) < len(names):
        raise DataError(str(path), "it must name each class once", names=names)
    return names


def _indexed(index: Any) -> list[str]:
    """The names in an index of classes, in the order of their numbers.

    Raises:
        ValueError: it does not number names from 0 on.
    """
    found: dict[int, Any] = {}
    for key, value in index.items() if isinstance(index, dict) else ():
        number, name = (value, key) if isinstance(value, int) else (int(key) if key.isdecimal() else -1, value)
        found[number] = name[0] if isinstance(name, list) and name else name
    names = [found.get(number) for number in range(len(found))]
    if not found or len(found) < len(index) or not all(isinstance(name, str) for name in names):
        raise ValueError('it must number names from 0 on, as {"cat": 0, "dog": 1} or {"0": "cat", "1": "dog"} do')
    return [str(name) for name in names]


def _find_pictures(folder: Path, part: str, class_names: Sequence[str]) -> Pictures:
    """The pictures of every class, each with its class number."""
    found: Pictures = []
    for subfolder in _subfolders(folder):
        if subfolder.name not in class_names:
            rule = f"every class of the {part} split must be trained"
            raise DataError(str(subfolder), rule, classes=class_names)
        pictures = _files(subfolder, PICTURE_SUFFIXES)
        if not pictures:
            raise DataError(str(subfolder), f"the folder of a class must hold {PICTURE_KINDS} pictures")
        found += [(path, class_names.index(subfolder.name)) for path in pictures]
    return found


def _files(folder: Path, suffixes: Sequence[str]) -> list[Path]:
    """The files in a folder that end so, sorted, without hidden ones."""
    return sorted(
        path for path in folder.iterdir() if path.suffix.lower() in suffixes and not path.name.startswith(".")
    )


def _find_masked(folder: Path) -> Masked:
    """The pictures of a folder, each with its mask."""
    for name in (PICTURES, MASKS):
        if not (folder / name).is_dir():
            raise DataError(str(folder), f"it must hold the folders {PICTURES} and {MASKS}", missing=name)
    pictures = _files(folder / PICTURES, PICTURE_SUFFIXES)
    if not pictures:
        raise DataError(str(folder / PICTURES), f"it must hold {PICTURE_KINDS} pictures")
    masks = {path.stem: path for path in _files(folder / MASKS, MASK_SUFFIXES)}
    missing = [path for path in pictures if path.stem not in masks]
    if missing:
        rule = "each picture must have a mask of its name, a PNG or BMP file"
        raise DataError(str(folder / MASKS), rule, missing=len(missing), of=len(pictures), first=missing[0].stem)
    return [(path, masks[path.stem]) for path in pictures]


def _dataset(
    name: str,
    parts: Mapping[str, Pictures],
    class_names: Sequence[str],
    size: tuple[int, int] | None,
    workers: int | None,
    skip_unreadable: bool,
    units: int | None,
) -> Dataset:
    """Pictures with class numbers as a data set."""
    crew = _crew(parts, size, workers)
    paths = [path for pictures in parts.values() for path, _ in pictures]
    forms = crew.forms(paths, has_size=size is None, is_whole=skip_unreadable)
    kept, unreadable = _readable(name, parts, forms, skip_unreadable)
    gone = {label for _, label in parts["train"]} - {label for _, label in kept["train"]}
    if gone:
        rule = "every class must hold a picture to train on that can be read"
        raise DataError(name, rule, unreadable=unreadable, **{"class": class_names[min(gone)]})
    x, _ = _pictures(name, kept, _common_form(kept, forms, size, units), crew, workers)
    y = {part: np.array([label for _, label in pictures], np.int64) for part, pictures in kept.items()}
    return _joined(name, {part: Split(x[part], y[part], _files_of(kept[part])) for part in kept}, class_names)


def _masked_dataset(
    folder: Path,
    parts: Mapping[str, Masked],
    size: tuple[int, int] | None,
    workers: int | None,
    skip_unreadable: bool,
    units: int | None,
) -> Dataset:
    """Pictures with masks as a data set, called as their folder."""
    name, class_names = folder.resolve().name, _listed_classes(folder)
    crew = _crew(parts, size, workers)
    pairs = [pair for pictures in parts.values() for pair in pictures]
    each = crew.forms([path for pair in pairs for path in pair], has_size=True, is_whole=skip_unreadable)
    # What is wrong with either of a pair is wrong with it.
    forms = [mine if isinstance(theirs, tuple) else theirs for mine, theirs in zip(each[::2], each[1::2], strict=True)]
    kept, _ = _readable(name, parts, forms, skip_unreadable)
    for (picture, mask), mine, theirs in zip(pairs, each[::2], each[1::2], strict=True):
        if isinstance(mine, tuple) and isinstance(theirs, tuple) and mine[1:] != theirs[1:]:
            rule = "a mask must have the height and width of its picture"
            raise DataError(str(mask), rule, mask=theirs[1:], picture=f"{mine[1:]} in {picture}")
    form = _common_form(kept, forms, size, units)
    x, crew = _pictures(name, kept, form, crew, workers)
    masks = {part: [mask for _, mask in members] for part, members in kept.items()}
    y = _parted(masks, PictureSource(list(itertools.chain(*masks.values())), form[1:], None, crew, name))
    splits = {part: Split(x[part], y[part], _files_of(kept[part])) for part in kept}
    for part, split in splits.items():
        _check_masks(split, masks[part], class_names, _class_file(folder).name)
    largest = largest_class(name, [*splits.values()])
    if not largest:
        rule = "masks must hold at least two classes, to learn what tells them apart"
        hint = f"{IGNORED_LABEL} takes no part: masks of 0 and 255 must become masks of 0 and 1."
        raise DataError(name, rule, found=0, hint=hint)
    return _joined(name, splits, class_names or [str(number) for number in range(largest + 1)])


def _files_of(pictures: Sequence[tuple[Path, _Label]]) -> tuple[str, ...]:
    """The paths of pictures."""
    return tuple(str(path) for path, _ in pictures)


def _joined(name: str, splits: Mapping[str, Split], class_names: Sequence[str]) -> Dataset:
    """Splits as a data set."""
    return Dataset(name, splits["train"], splits.get("test"), tuple(class_names), splits.get("validation"))


def _check_masks(split: Split, masks: Sequence[Path], class_names: Sequence[str], class_file: str) -> None:
    """Raises DataError for the first number in masks that is none of the classes, if a file names these."""
    if not class_names:
        return
    ignored = ignored_label(split.shape[1:], len(class_names))
    for first, rows in chunks(split.y):
        is_wrong = rows >= len(class_names)
        if ignored is not None:
            is_wrong &= rows != ignored
        if is_wrong.any():
            number, *place = (int(axis) for axis in np.unravel_index(int(is_wrong.argmax()), rows.shape))
            rule = f"class numbers must be below {len(class_names)}, as many as {class_file} names, or {IGNORED_LABEL}"
            label = rows[number, place[0], place[1]]
            raise DataError(str(masks[first + number]), rule, position=tuple(place), label=label)


def _crew(parts: _Parts[_Label], size: tuple[int, int] | None, workers: int | None) -> PictureWorkers:
    """The processes to look at pictures with."""
    if size is not None and not (isinstance(size, tuple | list) and len(size) == 2 and all(is_int(n, 1) for n in size)):
        hint = f"size=({size}, {size}) makes squares." if is_int(size, 1) else None
        raise OptionError("size", "it must be a height and a width of at least 1", size=size, hint=hint)
    return PictureWorkers(0 if workers is None and sum(map(len, parts.values())) <= FEW_PICTURES else workers)


def _readable(
    name: str, parts: _Parts[_Label], forms: Sequence[Form | FileError], skip_unreadable: bool
) -> tuple[dict[str, list[tuple[Path, _Label]]], int]:
    """The pictures that can be read, and how many cannot."""
    paths = [path for pictures in parts.values() for path, _ in pictures]
    errors = [(path, form) for path, form in zip(paths, forms, strict=True) if isinstance(form, FileError)]
    if errors:
        rule = f"{len(errors)} of {len(forms)} pictures cannot be read"
        others = {"others": first_few([path for path, _ in errors[1:]], _MOST_NAMED)} if len(errors) > 1 else {}
        received = {"first": str(errors[0][1]).rstrip("."), **others}
        if not skip_unreadable:
            raise FileError(name, rule, **received, hint=SKIP_HINT)
        warn(name, f"{rule} and are left out", **received)
    left = iter(forms)
    kept = {
        part: [picture for picture in pictures if isinstance(next(left), tuple)] for part, pictures in parts.items()
    }
    if not all(kept.values()):
        raise DataError(name, "every split must hold pictures that can be read", unreadable=len(errors))
    return kept, len(errors)


def _common_form(
    parts: _Parts[_Label], forms: Sequence[Form | FileError], size: tuple[int, int] | None, units: int | None
) -> Form:
    """The form of all pictures that can be read, resized to a size, or of that size by themselves."""
    read: list[Form] = [form for form in forms if isinstance(form, tuple)]
    paths = [path for pictures in parts.values() for path, _ in pictures]
    for path, form in zip(paths, read, strict=True):
        if size is None and form[1:] != read[0][1:]:
            rule = "all pictures must have one size"
            hint = "give size=(height, width), or --image-size HEIGHTxWIDTH, to resize them"
            raise DataError(str(path), rule, size=form[1:], first=f"{read[0][1:]} in {paths[0]}", hint=hint)
    height, width = read[0][1:] if size is None else size
    return units or max(form[0] for form in read), height, width


def _pictures(
    name: str, parts: _Parts[_Label], form: Form, crew: PictureWorkers, workers: int | None
) -> tuple[dict[str, npt.NDArray[np.uint8] | Source], PictureWorkers]:
    """The pictures of each part, and the processes that decode them."""
    paths = [path for pictures in parts.values() for path, _ in pictures]
    if not crew.count and workers is None and len(paths) * math.prod(form) > KEPT_BYTES:
        crew = PictureWorkers()  # They are few, but large.
    return _parted(parts, PictureSource(paths, form[1:], form[0], crew, name)), crew


def _parted(parts: Mapping[str, Sequence[object]], source: PictureSource) -> dict[str, npt.NDArray[np.uint8] | Source]:
    """The pictures or masks of each part, in memory unless they are too many."""
    values = source if source.bytes > KEPT_BYTES else np.asarray(source)
    ends = np.cumsum([len(pictures) for pictures in parts.values()])
    return {part: values[end - len(parts[part]) : end] for part, end in zip(parts, ends, strict=True)}
