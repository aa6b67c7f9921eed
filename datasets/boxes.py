"""Pictures with boxes around what is in them: COCO's JSON, YOLO's texts and Pascal VOC's XML."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import numpy.typing as npt

from blobnet.datasets.class_names import listed_classes, note_alike
from blobnet.datasets.dataset import NO_BOX, Dataset, Split
from blobnet.datasets.image_folder import Reading, _common_form, _files_of, _joined, _pictures, _readable
from blobnet.datasets.listing import Listing
from blobnet.datasets.split_names import split_like, split_named
from blobnet.errors import DataError, FileError, OptionError, extra, first_few, warn
from blobnet.support.picture_kinds import FORMATS
from blobnet.support.regular_file import check_regular

#: The ends of the names of files that hold the boxes of many pictures.
BOX_SUFFIXES = (".json",)
#: Where files of boxes lie in a folder.
_COCO = ("[Aa]nnotations/*.json", "*/_annotations.coco.json")
_VOC = ("*.xml", "[Aa]nnotations/*.xml", "*/[Aa]nnotations/*.xml", "train/*.xml")
_YOLO = ("labels/*.txt", "labels/*/*.txt", "*/labels/*.txt")
#: Where pictures lie beside such files.
_PICTURES = ("", "images", "JPEGImages", "../images", "../JPEGImages", "..")
#: Files that a warning names.
_MAX_NAMED = 3

#: The class, left, top, right and bottom of a box.
_Box = tuple[str, float, float, float, float]


@dataclass
class _Picture:
    """A picture with its boxes.

    Attributes:
        path: the picture.
        split: that it is of.
        source: the file that has its boxes, for errors.
        size: its (height, width), if that file says it.
        is_relative: whether boxes are parts of the width and height, and not pixels.
        boxes: what is in it.
    """

    path: Path
    split: str
    source: str
    size: tuple[int, int] | None = None
    is_relative: bool = False
    boxes: list[_Box] = field(default_factory=list)


@dataclass
class _Found:
    """All pictures of a data set.

    Attributes:
        pictures: with their boxes.
        class_names: in the order of their numbers; empty where only boxes say them.
        notes: what is left out or changed, and where.
    """

    pictures: list[_Picture] = field(default_factory=list)
    class_names: list[str] = field(default_factory=list)
    notes: dict[str, list[str]] = field(default_factory=dict)

    def note(self, what: str, where: str) -> None:
        self.notes.setdefault(what, []).append(where)


def reader_of(path: Path) -> Callable[[Path, Reading], Dataset] | None:
    """Return what reads a file or folder of boxes; None if it is none."""
    if not path.is_dir():
        return _reader(_coco) if path.suffix.lower() in BOX_SUFFIXES else None
    if any(path.glob("[Mm]asks")) or any(path.glob("*/[Mm]asks")):
        return None  # A class for each position says more.
    for patterns, find in ((_COCO, _coco), (_YOLO, _yolo), (_VOC, _voc)):
        if any(next(path.glob(pattern), None) for pattern in patterns):
            return _reader(find)
    return None


def _reader(find: Callable[[Path], _Found]) -> Callable[[Path, Reading], Dataset]:
    return lambda path, reading: _dataset(path, find(path), reading)


def _dataset(path: Path, found: _Found, reading: Reading) -> Dataset:
    """Pictures with boxes as a data set: y is float32, (N, boxes, 5), see :class:`Split`.

    Raises:
        FileError: a picture cannot be read.
        DataError: no pictures to train on, no boxes, a class that is not known, a picture of another size than its file
            of boxes says, or pictures of several sizes.
    """
    name = path.resolve().name if path.is_dir() else path.stem
    parts: dict[str, list[tuple[Path, int]]] = {"train": []}
    for number, picture in enumerate(found.pictures):
        parts.setdefault(picture.split, []).append((picture.path, number))
    parts = {split: parts[split] for split in ("train", "validation", "test") if split in parts}
    if not parts["train"]:
        raise DataError(str(path), "it must name pictures to train on", pictures=len(found.pictures))
    order = [number for members in parts.values() for _, number in members]
    crew = reading.crew(len(order))
    paths = [found.pictures[number].path for number in order]
    forms = crew.forms(paths, has_size=True, is_whole=reading.skip_unreadable)
    kept, _ = _readable(name, parts, forms, reading)
    class_names = found.class_names or sorted({box[0] for picture in found.pictures for box in picture.boxes})
    if not class_names:
        raise DataError(str(path), "there must be boxes to learn from", pictures=len(order))
    note_alike(str(path), class_names)
    boxes = [
        _relative(found, found.pictures[number], form[1:], class_names) if isinstance(form, tuple) else []
        for number, form in zip(order, forms, strict=True)
    ]
    by_number = dict(zip(order, boxes, strict=True))
    if not any(by_number[number] for _, number in kept["train"]):
        raise DataError(str(path), "pictures to train on must hold boxes", pictures=len(kept["train"]))
    for what, where in found.notes.items():
        warn(str(path), f"{len(where)} {what}", where=first_few(dict.fromkeys(where), _MAX_NAMED))
    most = max(map(len, boxes))
    x, _ = _pictures(name, kept, _common_form(kept, forms, reading), crew, reading)
    splits = {
        part: Split(x[part], _rows([by_number[number] for _, number in members], most), _files_of(members))
        for part, members in kept.items()
    }
    return _joined(name, splits, class_names)


def _relative(
    found: _Found, picture: _Picture, size: tuple[int, int], class_names: Sequence[str]
) -> list[tuple[float, ...]]:
    """The boxes of a picture as numbers: its class, and its sides as parts of the picture."""
    if picture.size not in (None, size):
        rule = "its boxes must be those of a picture of its size"
        hint = "a picture that was turned or resized since needs new boxes."
        raise DataError(str(picture.path), rule, size=size, boxes=f"{picture.size} in {picture.source}", hint=hint)
    height, width = (1, 1) if picture.is_relative else size
    rows = []
    for kind, *sides in picture.boxes:
        if kind not in class_names:
            raise DataError(
                picture.source, "every box must be of a class that is trained", box=kind, classes=class_names
            )
        if not all(map(math.isfinite, sides)):
            raise DataError(picture.source, "the sides of a box must be finite numbers", box=sides)
        given = [side / length for side, length in zip(sides, (width, height) * 2, strict=True)]
        inside = [min(max(side, 0.0), 1.0) for side in given]
        if inside[0] >= inside[2] or inside[1] >= inside[3]:
            found.note("boxes are empty, or lie outside their pictures, and are left out", picture.source)
            continue
        # What rounding alone adds needs no words.
        if max(abs(one - other) for one, other in zip(given, inside, strict=True)) > 1e-3:
            found.note("boxes reach beyond their pictures, and are cut off there", picture.source)
        rows.append((float(class_names.index(kind)), *inside))
    return rows


def _rows(boxes: Sequence[Sequence[tuple[float, ...]]], most: int) -> npt.NDArray[np.float32]:
    """(pictures, most, 5); the class of what is no box is NO_BOX."""
    rows = np.zeros((len(boxes), most, 5), np.float32)
    rows[:, :, 0] = NO_BOX
    for row, own in zip(rows, boxes, strict=True):
        row[: len(own)] = np.array(own, np.float32).reshape(-1, 5)
    return rows


def _split_of(path: Path, folder: Path) -> str:
    """The split that a folder on the way to a file names, or else a word of the file's own name; else that to train."""
    parts = path.relative_to(folder).parts
    named = next(filter(None, map(split_named, parts[:-1])), None) or next(filter(None, map(split_like, parts)), None)
    return named or "train"


def _beside(folder: Path, name: str, more: Sequence[str] = ()) -> Path:
    """The picture of a name in one of the folders where pictures lie beside a file of boxes; the first one if none."""
    places = [folder / place / name for place in (*_PICTURES, *more)]
    return next((place for place in places if place.is_file()), places[0])


def _number(value: Any, subject: str) -> float:
    """A number of a file."""
    try:
        if isinstance(value, bool):
            raise TypeError("it is no number")
        return float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise DataError(subject, "the sides of a box must be finite numbers", received=repr(value)[:80]) from error


# -- COCO --------------------------------------------------------------------------------------------------------------


def _coco(path: Path) -> _Found:
    """Boxes in COCO's JSON: a file, or those of a folder, a split each.

    Numbers of categories may jump: classes are numbered from 0 on in their order. Crowds are left out. Where a folder
    has files ``instances_*.json``, its others are not read.
    """
    found = _Found()
    folder = path if path.is_dir() else path.parent
    files = sorted(itertools.chain(*map(path.glob, _COCO))) if path.is_dir() else [path]
    # COCO's own folder also has captions_*.json, and the boxes once more, with keypoints.
    files = [file for file in files if file.name.startswith("instances_")] or files
    named: dict[str, tuple[Path, list[str]]] = {}
    for file in files:
        split = _split_of(file, folder) if path.is_dir() else "train"
        tables = _coco_tables(file)
        kinds = _by_id(file, tables["categories"], "name")
        names = [str(kinds[number]["name"]) for number in sorted(kinds)]
        if len(set(names)) < len(names):
            raise DataError(str(file), "every category must have a name of its own", names=names)
        other, there = named.setdefault(split, (file, names))
        if names != there:
            rule = "files of one split must have the same categories"
            raise DataError(str(file), rule, split=split, names=names, other=other, names_there=there)
        # That of the split to train says the numbers; boxes of others are looked for by their names.
        found.class_names = names if split == "train" or not found.class_names else found.class_names
        pictures = {}
        for number, row in _by_id(file, tables["images"], "file_name").items():
            more = (f"../{file.stem.rpartition('_')[2]}", f"../images/{file.stem.rpartition('_')[2]}")
            sizes = [row.get(name) for name in ("height", "width")]
            size = (sizes[0], sizes[1]) if isinstance(sizes[0], int) and isinstance(sizes[1], int) else None
            where = _beside(file.parent, str(row["file_name"]), more)
            pictures[number] = _Picture(where, split, f"{file}, image {number}", size)
        for row in tables["annotations"]:
            subject = f"{file}, annotation {row.get('id') if isinstance(row, dict) else row!r}"
            if not isinstance(row, dict) or not isinstance(box := row.get("bbox"), list) or len(box) != 4:
                raise DataError(subject, "an annotation must have a bbox of left, top, width and height")
            for key, known in (("image_id", pictures), ("category_id", kinds)):
                if isinstance(row.get(key), list | dict) or row.get(key) not in known:
                    raise DataError(subject, f"its {key} must be that of a row of the file", received=row.get(key))
            if row.get("iscrowd"):
                found.note("boxes are around crowds (iscrowd), and are left out", subject)
                continue
            left, top, width, height = (_number(side, subject) for side in box)
            kind = str(kinds[row["category_id"]]["name"])
            pictures[row["image_id"]].boxes.append((kind, left, top, left + width, top + height))
        found.pictures += pictures.values()
    return found


def _coco_tables(file: Path) -> dict[str, list[Any]]:
    try:
        check_regular(file)
        tables = json.loads(file.read_text("utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise FileError(str(file), "the file must be readable JSON", reason=error) from error
    wanted = ("images", "annotations", "categories")
    missing = [name for name in wanted if not (isinstance(tables, dict) and isinstance(tables.get(name), list))]
    if missing:
        rule = "it must be COCO's JSON, with the lists images, annotations and categories"
        raise DataError(str(file), rule, missing=", ".join(missing))
    return {name: tables[name] for name in wanted}


def _by_id(file: Path, rows: Sequence[Any], key: str) -> dict[int, dict[str, Any]]:
    """Rows by their ids."""
    found: dict[int, dict[str, Any]] = {}
    for row in rows:
        number = row.get("id") if isinstance(row, dict) else None
        if not isinstance(number, int) or key not in row or number in found:
            rule = f"each must have a {key} and an id, a whole number that no other has"
            raise DataError(str(file), rule, row=str(row)[:80])
        found[number] = row
    return found


# -- YOLO --------------------------------------------------------------------------------------------------------------


def _yolo(folder: Path) -> _Found:
    """YOLO's texts: for ``images/a.jpg`` a file ``labels/a.txt``, a line a box: class, middle x and y, width, height.

    Splits are folders above or below ``images``. ``classes.txt`` or ``data.yaml`` name the classes.
    """
    found = _Found(class_names=listed_classes(folder) or _yaml_names(folder))
    listing = Listing()
    pictures = [path for path in listing.pictures(folder, others=(".txt", ".yaml")) if path.suffix.lower() in FORMATS]
    listing.say(str(folder))
    texts = set(itertools.chain(*map(folder.glob, _YOLO)))
    for path in pictures:
        parts = list(path.relative_to(folder).parts)
        if "images" not in parts[:-1]:
            found.note("pictures lie in no folder images, and are left out", str(path))
            continue
        place = len(parts) - 2 - parts[-2::-1].index("images")
        text = folder.joinpath(*parts[:place], "labels", *parts[place + 1 :]).with_suffix(".txt")
        picture = _Picture(path, _split_of(path.parent / "-", folder), str(text), is_relative=True)
        if text.is_file():
            picture.boxes = list(_yolo_boxes(text, found.class_names))
        else:
            found.note("pictures have no file of boxes, and count as empty", str(path))
        texts.discard(text)
        found.pictures.append(picture)
    for text in sorted(texts):
        if text.name != "classes.txt":
            found.note("files of boxes have no picture, and are left out", str(text))
    if not found.class_names:  # Numbers stand for names.
        numbers = {int(box[0]) for picture in found.pictures for box in picture.boxes}
        found.class_names = [str(number) for number in range(max(numbers, default=-1) + 1)]
    return found


def _yaml_names(folder: Path) -> list[str]:
    """The names in ``data.yaml``, if there is one: a list, or a mapping from numbers."""
    path = folder / "data.yaml"
    if not path.is_file():
        return []
    try:
        import yaml
    except ImportError as error:
        hint = f"{extra('detection')}; or write the names to classes.txt, one a line."
        raise OptionError(str(path), "reading it needs PyYAML", hint=hint) from error
    try:
        names = yaml.safe_load(path.read_text("utf-8"))["names"]
        return [str(names[number]) for number in range(len(names))]
    except (OSError, ValueError, LookupError, TypeError, yaml.YAMLError) as error:
        raise FileError(
            str(path), "it must be readable YAML whose names number classes from 0 on", reason=error
        ) from error


def _yolo_boxes(path: Path, class_names: Sequence[str]) -> Iterator[_Box]:
    try:
        check_regular(path)
        lines = path.read_text("utf-8-sig").splitlines()
    except (OSError, ValueError) as error:
        raise FileError(str(path), "the file must be readable text", reason=error) from error
    for number, line in enumerate(lines, 1):
        cells, subject = line.split(), f"{path}, line {number}"
        if not cells:
            continue
        if len(cells) != 5 or not cells[0].isdecimal():
            rule = "a line must be a class number from 0 on, the middle x and y, the width and the height"
            hint = "outlines (polygons) are no boxes." if len(cells) > 5 else None
            raise DataError(subject, rule, line=line[:60], hint=hint)
        kind = int(cells[0])
        if class_names and kind >= len(class_names):
            raise DataError(subject, "the class must be one of those that are named", number=kind, names=class_names)
        x, y, width, height = (_number(cell, subject) for cell in cells[1:])
        if max(x, y, width, height) > 2:
            raise DataError(subject, "sides must be parts of the picture's, from 0 to 1, not pixels", line=line[:60])
        kept = class_names[kind] if class_names else str(kind)
        yield kept, x - width / 2, y - height / 2, x + width / 2, y + height / 2


# -- Pascal VOC --------------------------------------------------------------------------------------------------------


def _voc(folder: Path) -> _Found:
    """Pascal VOC's XML, a file a picture; pixels are counted from 1, and the last ones belong to the box.

    Splits are folders, or the lists ``ImageSets/Main/train.txt``, ``val.txt`` and ``test.txt``.
    """
    found = _Found(class_names=listed_classes(folder))
    listed: dict[str, str] = {}
    for path in sorted(folder.glob("ImageSets/Main/*.txt")):
        if split := split_named(path.stem):
            listed |= dict.fromkeys(path.read_text("utf-8", "replace").split(), split)
    for path in sorted(set(itertools.chain(*map(folder.glob, (*_VOC, "*/*.xml"))))):
        if listed and path.stem not in listed:
            found.note("files are in no list of ImageSets/Main, and are left out", str(path))
            continue
        try:
            check_regular(path)
            root = ElementTree.fromstring(path.read_bytes())
        except (OSError, ValueError, ElementTree.ParseError) as error:
            raise FileError(str(path), "the file must be readable XML", reason=error) from error
        name = root.findtext("filename") or ""
        size = [root.findtext(f"size/{side}") or "" for side in ("height", "width")]
        has_size = all(side.isdecimal() and int(side) for side in size)
        picture = _Picture(
            _beside(path.parent, Path(name.replace("\\", "/")).name or f"{path.stem}.jpg"),
            listed.get(path.stem) or _split_of(path.parent / "-", folder),
            str(path),
            (int(size[0]), int(size[1])) if has_size else None,
        )
        for item in root.iter("object"):
            kind = (item.findtext("name") or "").strip()
            if not kind:
                raise DataError(str(path), "every object must have a name")
            sides = (_number(item.findtext(f"bndbox/{side}"), str(path)) for side in ("xmin", "ymin", "xmax", "ymax"))
            left, top, right, bottom = sides
            # Programs that count from 0 write a 0 here.
            picture.boxes.append((kind, max(left - 1, 0.0), max(top - 1, 0.0), right, bottom))
        found.pictures.append(picture)
    return found
