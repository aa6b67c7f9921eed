"""A data set that is a folder of pictures for each class, a folder of pictures and masks, or a table of pictures."""

from __future__ import annotations

import codecs
import csv
import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from blobnet.datasets.array_files import format_of, suffix_of
from blobnet.datasets.checks import chunks
from blobnet.datasets.class_names import (
    CLASS_FILE,
    CLASS_INDEX,
    class_file,
    listed_classes,
    note_alike,
)
from blobnet.datasets.dataset import IGNORED_LABEL, Dataset, Split, ignored_label
from blobnet.datasets.listing import Listing, has_pictures, subfolders
from blobnet.datasets.packed import File
from blobnet.datasets.picture_labels import (
    CLASSES,
    ROW_RULE,
    SEVERAL,
    Labelled,
    check_kind,
    has_several,
    read_labels,
)
from blobnet.datasets.picture_source import SHUFFLE_BUFFER, PictureSource
from blobnet.datasets.picture_workers import SKIP_HINT, Form, PictureWorkers
from blobnet.datasets.pictures import REAL, note_shallow
from blobnet.datasets.source import KEPT_BYTES, Source, kept_type
from blobnet.datasets.split_names import SPLIT_NAMES, split_like, split_named
from blobnet.datasets.user_data import largest_class
from blobnet.errors import DataError, FileError, OptionError, first_few, near_matches, warn
from blobnet.support.checks import is_int
from blobnet.support.picture_kinds import ARRAY_SUFFIXES, FORMATS, LOSSLESS
from blobnet.support.regular_file import check_regular

TABLE_SUFFIXES = (".csv",)
#: The names that columns of a table may have.
_PATH_COLUMNS, _LABEL_COLUMNS = ("path", "file", "filename", "file_name", "image"), ("label", "class")
#: The tables that a folder of pictures without classes may have.
_TABLES = ("labels.csv", "metadata.csv")
#: Pictures up to which processes to look at them take longer to start than they would save.
FEW_PICTURES = 512

#: The folders of pictures and of their masks, in any case; and what else people call them.
PICTURES, MASKS = "images", "masks"
_CLASS_FILES = (CLASS_FILE, CLASS_INDEX)
_LIKE_PICTURES = ("image", PICTURES, "img", "imgs", "pictures", "photos", "jpegimages")
_LIKE_MASKS = ("mask", MASKS, "labels", "annotations", "segmentation", "segmentations", "segmentationclass", "gt")

#: The advice for splits without classes.
_FLAT_SPLIT = "put its pictures into a folder for each class, or name their classes in a CSV file (path, label, split)."
#: Pictures that cannot be read which an error or a warning names.
_MAX_NAMED = 20

#: Pictures with their class numbers (or rows of labels), and pictures with the files of their masks.
Pictures = list[tuple[File, Any]]
Masked = list[tuple[Path, Path]]
#: The pictures in folders, by their names without suffixes.
_Stems = dict[Path, dict[str, list[Path]]]
_Label = TypeVar("_Label")
_Parts = Mapping[str, Sequence[tuple[File, _Label]]]


@dataclass(frozen=True)
class Reading:
    """How pictures are read.

    Attributes:
        size: (height, width) to which every picture is resized; None demands that all have one size.
        workers: processes that decode; None takes one for each core where it pays, 0 does without.
        skip_unreadable: whether pictures that cannot be decoded are left out, with a warning. All are decoded once to
            find them.
        units: what every picture becomes: 1 for gray, 3 for RGB; None: gray if all are.
        labels: the kind of their labels, one of LABEL_KINDS; None finds it.
        columns: those of a table that hold labels; None takes ``label`` or ``class``, else all that are not the path
            and the split.
        shuffle_buffer: how many samples of archives and the like are shuffled among themselves; None: SHUFFLE_BUFFER.

    Raises:
        OptionError: the size is not a pair of positive numbers, the buffer is not one, or there is no such kind of
            labels.
    """

    size: tuple[int, int] | None = None
    workers: int | None = None
    skip_unreadable: bool = False
    units: int | None = None
    labels: str | None = None
    columns: Sequence[str] | None = None
    shuffle_buffer: int | None = None

    def __post_init__(self) -> None:
        check_kind(self.labels)
        if isinstance(self.columns, str):
            object.__setattr__(self, "columns", (self.columns,))
        if self.shuffle_buffer is not None and not is_int(self.shuffle_buffer, 1):
            raise OptionError("shuffle_buffer", "it must be a number of samples", shuffle_buffer=self.shuffle_buffer)
        size: Any = self.size
        if size is None or (isinstance(size, tuple | list) and len(size) == 2 and all(is_int(n, 1) for n in size)):
            return
        hint = f"size=({size}, {size}) makes squares." if is_int(size, 1) else None
        raise OptionError("size", "it must be a height and a width of at least 1", size=size, hint=hint)

    def crew(self, pictures: int) -> PictureWorkers:
        """The processes to look at so many pictures with."""
        return PictureWorkers(0 if self.workers is None and pictures <= FEW_PICTURES else self.workers)


def read_image_folder(folder: Path, reading: Reading) -> Dataset:
    """Read ``folder/<class>/*.png``, or ``folder/train/<class>/*.png`` with ``folder/test`` and ``folder/val`` beside.

    The splits may have the other names of SPLIT_NAMES, in any case; all but ``train`` may be missing. Pictures in
    folders below a class's belong to the class. Classes are numbered in the order of their sorted names, or of the
    lines of a file ``classes.txt`` in the folder, or as its ``class_index.json`` says: ``{"cat": 0}``, ``{"0": "cat"}``
    or ``{"0": ["cat", "what it is"]}``. x is uint8, or float32 where grays of more than 8 bits are among the pictures
    (:func:`blobnet.datasets.read_image`); (N, 1, H, W) if every picture is gray, else (N, 3, H, W): an array if that
    takes up to 64 MB, else a :class:`Source` that decodes pictures when they are asked for. A warning says how many
    files of which suffixes are left out. Hidden ones are, too.

    A folder called ``cat|red`` holds pictures with both labels: then, or with ``reading.labels``, the names of all
    folders are texts for :func:`read_labels`. A folder of pictures without classes may have a table ``labels.csv`` or
    ``metadata.csv``, as for :func:`read_picture_table`.

    Where the folders are ``images`` and ``masks`` instead of classes, each picture has a mask of its size, its place
    and its name, but for the suffix, in a format that keeps values: its gray values, or indices into a palette, are the
    class numbers of the positions, or 255 for those that take no part. A file of classes then names the numbers. y is
    uint8, (N, H, W); where pictures are resized, masks take the nearest position's number.

    Raises:
        OptionError: the number of workers is negative, or Pillow is not installed.
        FileError: a picture cannot be read (it is named).
        DataError: no classes, a class without pictures, a test class that is not trained, or pictures of several sizes;
            a picture without a mask, a mask of another size, or with a number that is no class.
    """
    listing = Listing()
    folders = _split_folders(folder, listing)
    trained = listing.folders(folders["train"], _CLASS_FILES)
    if _pair_of_masks(folders["train"], trained):
        masked: dict[str, Masked] = {part: _find_masked(own, listing) for part, own in folders.items()}
        listing.say(str(folder))
        return _masked_dataset(folder, masked, reading)
    table = _table_in(folder, trained, reading)
    if table is not None:
        return replace(read_picture_table(table, reading), name=folder.resolve().name)
    if not trained:
        rule, hint = "it must hold one folder of pictures for each class", None
        if has_pictures(folders["train"]):
            hint = "pictures lie in it itself: if they are those of one class, give the folder above, "
            hint = f"{hint}{folder.parent}." if folders["train"] == folder else _FLAT_SPLIT
        raise DataError(str(folders["train"]), rule, hint=hint)
    names = [each.name for each in trained]
    kind = reading.labels or (SEVERAL if any(map(has_several, names)) else CLASSES)
    if kind != CLASSES:
        return _labelled_folder(folder, folders, listing, replace(reading, labels=kind))
    class_names = listed_classes(folder) or names
    for name in names:
        if name not in class_names:
            raise DataError(str(class_file(folder)), "every class must stand in it", missing=name, names=class_names)
    note_alike(str(folder), names)
    pictures: dict[str, Pictures] = {}
    for part, own in folders.items():
        classes = trained if part == "train" else listing.folders(own, _CLASS_FILES)
        pictures[part] = _find_pictures(classes, part, class_names, listing)
    if len(trained) == 1 and subfolders(trained[0]) and not has_pictures(trained[0]):
        hint = f"did you mean {trained[0]}?"
        warn(str(folder), f"all pictures lie below {trained[0].name}, which is taken for the only class", hint=hint)
    listing.say(str(folder))
    return _dataset(folder.resolve().name, pictures, class_names, reading)


def _table_in(folder: Path, classes: Sequence[Path], reading: Reading) -> Path | None:
    """The table of a folder of pictures that has no folders of classes; None where there is none.

    Raises:
        OptionError: columns are named, but there is no table.
    """
    found = next((path for name in _TABLES if (path := folder / name).is_file()), None)
    if found is not None and len(classes) < 2:
        return found
    if reading.columns is not None:
        rule = f"only a table has columns of labels: a CSV file, or {' or '.join(_TABLES)} in a folder without classes"
        raise OptionError("columns", rule, columns=", ".join(reading.columns), data=folder)
    return None


def _labelled_folder(folder: Path, folders: Mapping[str, Path], listing: Listing, reading: Reading) -> Dataset:
    """Pictures in folders whose names are several labels, or numbers, as a data set."""
    parts = {
        part: [
            Labelled(path, (each.name,), str(each))
            for each in listing.folders(own, _CLASS_FILES)
            for path in listing.pictures(each)
        ]
        for part, own in folders.items()
    }
    listing.say(str(folder))
    for part, own in parts.items():
        if not own:
            raise DataError(str(folders[part]), "its folders must hold pictures", **listing.received)
    return labelled_dataset(folder.resolve().name, folder, parts, ("label",), reading)


def _split_folders(folder: Path, listing: Listing) -> dict[str, Path]:
    """The folder of each split, in the order of SPLIT_NAMES; the folder itself where it holds classes.

    Folders that are called like splits are some where they hold folders themselves, or where there are no others.

    Raises:
        DataError: a folder beside those of splits is none by its name; there is no ``train``, or two of one split.
    """
    found = subfolders(folder)
    like = [each for each in found if split_like(each.name)]
    is_named = any(split_named(each.name) for each in like)
    hold_classes = any(subfolders(each) and not has_pictures(each) for each in like)
    if not (hold_classes and (is_named or len(like) > 1)) and not (is_named and len(like) == len(found)):
        return {"train": folder}
    listing.folders(folder, _CLASS_FILES)
    splits: dict[str, Path] = {}
    for each in found:
        split = split_named(each.name)
        if split is None and (each in like or Listing().pictures(each)):
            mean = split_like(each.name)
            rule = "folders of splits must be called train, val or test, and there must be no others beside them"
            hint = "move it elsewhere; or, where all are classes, let their pictures lie in them without more folders."
            hint = f"did you mean {mean}/?" if mean else hint
            raise DataError(str(each), rule, found=[other.name for other in found], hint=hint)
        if split is None:
            listing.leave_out(f"folder {each.name}/")
        elif split in splits:
            rule = f"only one folder may hold the {split} split"
            raise DataError(str(folder), rule, found=[splits[split].name, each.name])
        else:
            splits[split] = each
    if "train" not in splits:
        hint = f"{found[0]} by itself is a data set, to measure on, say."
        raise DataError(str(folder), "there must be a folder train", found=[each.name for each in found], hint=hint)
    return {split: splits[split] for split in SPLIT_NAMES if split in splits}


def _pair_of_masks(folder: Path, found: Sequence[Path]) -> bool:
    """Return True if folders are those of pictures and masks, and not of classes.

    Raises:
        DataError: they are called like these.
    """
    names = {each.name.lower(): each.name for each in found}
    if {PICTURES, MASKS} <= set(names):
        return True
    like = [next((names[word] for word in words if word in names), None) for words in (_LIKE_PICTURES, _LIKE_MASKS)]
    if all(like):
        rule = "folders of pictures and their masks must have their names, and classes other ones"
        raise DataError(str(folder), rule, found=like, hint=f"did you mean {PICTURES}/ and {MASKS}/?")
    return False


def read_picture_table(path: Path, reading: Reading) -> Dataset:
    """Read a CSV file whose columns ``path`` and ``label``, and perhaps ``split``, name pictures and their labels.

    Labels are classes; ``cat|red``, several of them; or numbers: see :func:`read_labels`. Without a column ``label``,
    all columns besides are labels: 0 and 1, or numbers. y is then float32, (N, labels).

    Commas, semicolons or tabs part them. Paths are relative to the file's folder. Classes are numbered in the order of
    their sorted names (as numbers if all are whole numbers), or of a file of classes beside it, which labels may also
    number from 0 on. The split has a name of SPLIT_NAMES. Where there is no such file, backslashes part folders, and
    the name's only picture with a suffix is taken. The file is UTF-8, or UTF-16 with its mark. The rest is as in
    :func:`read_image_folder`.
    """
    columns, rows = _cells(path)
    lower = [name.lower() for name in columns]
    place_of_path = next((lower.index(name) for name in _PATH_COLUMNS if name in lower), None)
    labels_at = _label_places(path, columns, place_of_path, reading.columns)
    if place_of_path is None or not labels_at:
        hint = "the first line names the columns; split (train, test or val) may be a third one."
        raise DataError(str(path), "it must have the columns path and label", columns=columns, hint=hint)
    parts: dict[str, list[Labelled]] = {"train": []}
    stems: _Stems = {}
    for number, row in enumerate(rows, 2):
        cells = [cell.strip() for cell in row[: len(columns)]] + [""] * (len(columns) - len(row))
        part = split_named(cells[lower.index("split")] if "split" in lower else "train")
        place, labels = f"{path}, row {number}", tuple(cells[column] for column in labels_at)
        if not cells[place_of_path] or part is None:
            raise DataError(place, ROW_RULE, row=cells)
        file = _meant_file(path.parent / cells[place_of_path], stems)
        parts.setdefault(part, []).append(Labelled(file, labels, place))
    if not parts["train"]:
        raise DataError(str(path), "it must name pictures to train on", rows=len(rows))
    return labelled_dataset(path.stem, path, parts, [columns[column] for column in labels_at], reading)


def _label_places(
    path: Path, columns: Sequence[str], place_of_path: int | None, wanted: Sequence[str] | None
) -> list[int]:
    """The places of the columns that hold labels.

    Raises:
        OptionError: there is no column of a wanted name, or a name comes twice.
    """
    if wanted is not None:
        if len(set(wanted)) < len(wanted):
            raise OptionError("columns", "every column must be named once", columns=", ".join(wanted))
        for name in wanted:
            if name not in columns:
                raise OptionError(
                    "columns", f"{path} must have them", missing=name, hint=near_matches(name, [*columns])
                )
        return [columns.index(name) for name in wanted]
    lower = [name.lower() for name in columns]
    found = next((lower.index(name) for name in _LABEL_COLUMNS if name in lower), None)
    if found is not None or place_of_path is None:
        return [] if found is None else [found]
    return [place for place, name in enumerate(lower) if place != place_of_path and name and name != "split"]


def labelled_dataset(
    name: str,
    subject: Path,
    parts: Mapping[str, Sequence[Labelled]],
    columns: Sequence[str],
    reading: Reading,
    listed: Sequence[str] = (),
) -> Dataset:
    """Pictures whose labels are texts as a data set; ``listed`` are classes as for :func:`read_labels`."""
    labels = read_labels(subject, parts, columns, reading.labels, listed)
    pictures: dict[str, Pictures] = {
        part: list(zip((entry.file for entry in own), labels.y[part], strict=True)) for part, own in parts.items()
    }
    return _dataset(name, pictures, labels.names, reading, labels.kind)


def _cells(path: Path) -> tuple[list[str], list[list[str]]]:
    """The names of the columns of a table, and its rows.

    Raises:
        FileError: it is no CSV file.
    """
    try:
        check_regular(path)
        with path.open("rb") as start:
            is_wide = start.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
        with path.open(newline="", encoding="utf-16" if is_wide else "utf-8-sig") as file:
            first = file.readline()
            file.seek(0)
            # Where a comma stands in numbers, programs write semicolons between columns.
            delimiter = max(",;\t", key=first.count)
            reader = csv.reader(file, skipinitialspace=True, delimiter=delimiter)
            return [name.strip() for name in next(reader, ())], [row for row in reader if row]
    except (OSError, ValueError, csv.Error) as error:
        hint = "save it as UTF-8." if isinstance(error, UnicodeError) else None
        raise FileError(str(path), "the file must be a readable CSV file", reason=error, hint=hint) from error


def _meant_file(path: Path, stems: _Stems) -> Path:
    """The file that a name in a table means, where there is none of this name.

    Windows writes backslashes between folders; lists of identifiers leave the suffixes out. ``stems`` is kept for the
    next name.
    """
    if (path.suffix.lower() in FORMATS and "\\" not in str(path)) or path.exists():
        return path
    meant = Path(str(path).replace("\\", "/"))
    if meant.exists() or not meant.parent.is_dir():
        return meant
    if meant.parent not in stems:
        stems[meant.parent] = defaultdict(list)
        for file in meant.parent.iterdir():
            if file.suffix.lower() in FORMATS:
                stems[meant.parent][file.stem].append(file)
    found = stems[meant.parent].get(meant.name, [])
    return found[0] if len(found) == 1 else meant


def _find_pictures(folders: Sequence[Path], part: str, class_names: Sequence[str], listing: Listing) -> Pictures:
    """The pictures of every class, each with its class number."""
    found: Pictures = []
    for folder in folders:
        if folder.name not in class_names:
            rule = f"every class of the {part} split must be trained"
            raise DataError(str(folder), rule, classes=class_names)
        _check_no_splits(folder, f"{{}}/{folder.name}" if len(folders) > 1 else str(folder))
        pictures = listing.pictures(folder)
        if not pictures:
            raise DataError(str(folder), "the folder of a class must hold pictures", **listing.received)
        number = class_names.index(folder.name)
        found += [(path, number) for path in pictures]
    return found


def _check_no_splits(folder: Path, form: str) -> None:
    """Raises DataError where a folder of pictures holds but those of splits, which would become one."""
    found = [each.name for each in subfolders(folder)]
    if found and all(map(split_named, found)):
        hint = f"did you mean {' and '.join(dict.fromkeys(form.format(name) for name in found))}?"
        raise DataError(str(folder), "folders of splits must hold those of classes, or masks", found=found, hint=hint)


def _find_masked(folder: Path, listing: Listing) -> Masked:
    """The pictures of a folder, each with its mask."""
    found = {each.name.lower(): each for each in listing.folders(folder, _CLASS_FILES)}
    for name in (PICTURES, MASKS):
        if name not in found:
            raise DataError(str(folder), f"it must hold the folders {PICTURES} and {MASKS}", missing=name)
        _check_no_splits(found[name], f"{{}}/{name}")
    for name in sorted(set(found) - {PICTURES, MASKS}):
        listing.leave_out(f"folder {found[name].name}/")
    pictures = listing.pictures(found[PICTURES])
    if not pictures:
        raise DataError(str(found[PICTURES]), "it must hold pictures", **listing.received)
    files = listing.pictures(found[MASKS], (*LOSSLESS, *ARRAY_SUFFIXES.values()))
    masks = {_key(found[MASKS], path): path for path in files}
    keys = [_key(found[PICTURES], path) for path in pictures]
    missing = [key for key in keys if key not in masks]
    if missing:
        rule = f"each picture must have a mask of its name, of a format that keeps values ({', '.join(LOSSLESS)})"
        raise DataError(str(found[MASKS]), rule, missing=len(missing), of=len(pictures), first=missing[0])
    listing.leave_out(f"of {found[MASKS].name}/ without a picture", len(set(masks) - set(keys)))
    listing.leave_out(f"of {found[MASKS].name}/ with the name of another", len(files) - len(masks))
    return [(path, masks[key]) for path, key in zip(pictures, keys, strict=True)]


def _key(folder: Path, path: Path) -> str:
    """Return the key that a picture and its mask share: their place in their folders, without the suffix."""
    return str(path.relative_to(folder))[: -len(suffix_of(path)) or None]


def _dataset(
    name: str, parts: Mapping[str, Pictures], names: Sequence[str], reading: Reading, kind: str = CLASSES
) -> Dataset:
    """Pictures with class numbers, or with a row of labels or numbers of these names, as a data set."""
    paths = _paths(parts)
    crew = reading.crew(len(paths))
    forms = crew.forms(paths, has_size=reading.size is None, is_whole=reading.skip_unreadable)
    kept, unreadable = _readable(name, parts, forms, reading)
    if kind == CLASSES and (gone := {own for _, own in parts["train"]} - {own for _, own in kept["train"]}):
        rule = "every class must hold a picture to train on that can be read"
        raise DataError(name, rule, unreadable=unreadable, **{"class": names[min(gone)]})
    x, _ = _pictures(name, kept, _common_form(kept, forms, reading), crew, reading)
    dtype = np.int64 if kind == CLASSES else np.float32
    y = {part: np.array([label for _, label in pictures], dtype) for part, pictures in kept.items()}
    found = _joined(name, {part: Split(x[part], y[part], _files_of(kept[part])) for part in kept}, names)
    if kind == CLASSES:
        return found
    return replace(found, class_names=(), target_names=tuple(names), has_several=kind == SEVERAL)


def _masked_dataset(folder: Path, parts: Mapping[str, Masked], reading: Reading) -> Dataset:
    """Pictures with masks as a data set, called as their folder."""
    name, class_names = folder.resolve().name, listed_classes(folder)
    pairs = [pair for pictures in parts.values() for pair in pictures]
    crew = reading.crew(len(pairs))
    each = crew.forms([path for pair in pairs for path in pair], has_size=True, is_whole=reading.skip_unreadable)
    # What is wrong with either of a pair is wrong with it.
    forms = [mine if isinstance(theirs, tuple) else theirs for mine, theirs in zip(each[::2], each[1::2], strict=True)]
    kept, _ = _readable(name, parts, forms, reading)
    for (picture, mask), mine, theirs in zip(pairs, each[::2], each[1::2], strict=True):
        if isinstance(mine, tuple) and isinstance(theirs, tuple) and mine[1:] != theirs[1:]:
            rule = "a mask must have the height and width of its picture"
            raise DataError(str(mask), rule, mask=theirs[1:], picture=f"{mine[1:]} in {picture}")
    form = _common_form(kept, forms, reading)
    x, crew = _pictures(name, kept, form, crew, reading)
    masks = {part: [mask for _, mask in members] for part, members in kept.items()}
    y = _parted(masks, PictureSource(list(itertools.chain(*masks.values())), form[1:], None, crew, name))
    splits = {part: Split(x[part], y[part], _files_of(kept[part])) for part in kept}
    for part, split in splits.items():
        _check_masks(split, masks[part], class_names, class_file(folder).name)
    largest = largest_class(name, [*splits.values()])
    if not largest:
        rule = "masks must hold at least two classes, to learn what tells them apart"
        hint = f"{IGNORED_LABEL} takes no part: masks of 0 and 255 must become masks of 0 and 1."
        raise DataError(name, rule, found=0, hint=hint)
    return _joined(name, splits, class_names or [str(number) for number in range(largest + 1)])


def _files_of(pictures: Sequence[tuple[File, _Label]]) -> tuple[str, ...]:
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


def _paths(parts: _Parts[_Label]) -> list[File]:
    """The paths of the pictures of all parts."""
    return [path for pictures in parts.values() for path, _ in pictures]


def _readable(
    name: str, parts: _Parts[_Label], forms: Sequence[Form | FileError], reading: Reading
) -> tuple[dict[str, list[tuple[Any, _Label]]], int]:
    """The pictures that can be read, and how many cannot."""
    errors = [(path, form) for path, form in zip(_paths(parts), forms, strict=True) if isinstance(form, FileError)]
    if errors:
        rule = f"{len(errors)} of {len(forms)} pictures cannot be read"
        others = {"others": first_few([path for path, _ in errors[1:]], _MAX_NAMED)} if len(errors) > 1 else {}
        received = {"first": str(errors[0][1]).rstrip("."), **others}
        if not reading.skip_unreadable:
            hint = SKIP_HINT
            if not errors[0][0].exists():
                hint = f"paths in a table start from the folder that it lies in. {hint}"
            raise FileError(name, rule, **received, hint=hint)
        warn(name, f"{rule} and are left out", **received)
    left = iter(forms)
    kept = {
        part: [picture for picture in pictures if isinstance(next(left), tuple)] for part, pictures in parts.items()
    }
    if not all(kept.values()):
        raise DataError(name, "every split must hold pictures that can be read", unreadable=len(errors))
    return kept, len(errors)


def _common_form(parts: _Parts[_Label], forms: Sequence[Form | FileError], reading: Reading) -> Form:
    """The form of all pictures that can be read, resized to a size, or of that size by themselves."""
    read: list[Form] = [form for form in forms if isinstance(form, tuple)]
    paths = _paths(parts)
    for path, form in zip(paths, read, strict=True):
        if reading.size is None and form[1:] != read[0][1:]:
            rule = "all pictures must have one size"
            hint = "give size=(height, width), or --image-size HEIGHTxWIDTH, to resize them"
            if max(len(form), len(read[0])) > 3:
                hint = "resample volumes to one size and spacing first, with the library that reads them, say."
            raise DataError(str(path), rule, size=form[1:], first=f"{read[0][1:]} in {paths[0]}", hint=hint)
    if reading.size is not None and len(read[0]) > 3:
        raise OptionError("size", "only pictures are resized, not volumes", size=reading.size, volume=read[0][1:])
    units = {form[0] for form in read}
    if len(units) > 1 and (not units <= {1, 3} or len(read[0]) > 3):
        path, form = next((path, form) for path, form in zip(paths, read, strict=True) if form[0] != read[0][0])
        rule = "all pictures must have as many units (bands)"
        raise DataError(str(path), rule, units=form[0], first=f"{read[0][0]} in {paths[0]}")
    as_they_stand = [path for path, form in zip(paths, read, strict=True) if form[0] == 1 and format_of(path)]
    if len(units) > 1 and reading.units is None and as_they_stand:
        rule = f"{len(as_they_stand)} pictures are gray and others coloured: grays become red, green and blue"
        warn(str(as_they_stand[0]), rule)
    return (reading.units if units <= {1, 3} and reading.units else max(units), *(reading.size or read[0][1:]))


def _pictures(
    name: str, parts: _Parts[_Label], form: Form, crew: PictureWorkers, reading: Reading
) -> tuple[dict[str, npt.NDArray[Any] | Source], PictureWorkers]:
    """The pictures of each part, and the processes that decode them."""
    paths = _paths(parts)
    depths = crew.depths(paths)
    note_shallow(name, depths)
    if not crew.count and reading.workers is None and len(paths) * math.prod(form) > KEPT_BYTES:
        crew = PictureWorkers()  # They are few, but large.
    types = {
        np.dtype(depth)
        if isinstance(depth, str)
        else np.dtype(np.float32 if depth == REAL and depth is not None else np.uint8)
        for depth in depths
    }
    dtype = kept_type(np.result_type(*types))
    source = PictureSource(paths, form[1:], form[0], crew, name, dtype)
    source.shuffle_buffer = reading.shuffle_buffer or SHUFFLE_BUFFER
    return _parted(parts, source), crew


def _parted(parts: Mapping[str, Sequence[object]], source: PictureSource) -> dict[str, npt.NDArray[Any] | Source]:
    """The pictures or masks of each part, in memory unless they are too many."""
    values = source if source.bytes > KEPT_BYTES else np.asarray(source)
    ends = np.cumsum([len(pictures) for pictures in parts.values()])
    return {part: values[end - len(parts[part]) : end] for part, end in zip(parts, ends, strict=True)}
