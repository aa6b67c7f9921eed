"""The labels of pictures in tables and folders: a class, several labels, or numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from blobnet.datasets.checks import FLOAT32_LIMIT
from blobnet.datasets.class_names import class_file, listed_classes, note_alike, numbered_labels
from blobnet.datasets.packed import File
from blobnet.errors import DataError, OptionError, near_matches

#: The kinds of labels: one class, any number of names, or one number or several.
CLASSES, SEVERAL, NUMBERS = LABEL_KINDS = ("classes", "several", "numbers")
#: What stands between several labels, or numbers, in one cell or in the name of a folder.
SEPARATOR = "|"
#: A number as programs write it, with a point or a comma.
_NUMBER = re.compile(r"[-+]?(\d+([.,]\d*)?|[.,]\d+)([eE][-+]?\d+)?")
#: The rule of a table.
ROW_RULE = "every row must have a path and a label, and its split must be train, test or val"


class Labelled(NamedTuple):
    """A picture with its labels as texts.

    Attributes:
        file: the picture.
        cells: a text for each column of labels.
        place: what errors call it.
    """

    file: File
    cells: tuple[str, ...]
    place: str


@dataclass(frozen=True)
class PictureLabels:
    """The labels of all pictures of a data set.

    Attributes:
        y: by the names of splits: class numbers (N,), or float32 (N, names): numbers, or 1 for the labels of a picture
            and 0 for the others.
        names: of the classes, of the labels, or of the numbers.
        kind: one of LABEL_KINDS.
    """

    y: Mapping[str, npt.NDArray[Any]]
    names: tuple[str, ...]
    kind: str


def read_labels(
    subject: Path,
    parts: Mapping[str, Sequence[Labelled]],
    columns: Sequence[str],
    kind: str | None,
    listed: Sequence[str] = (),
) -> PictureLabels:
    """Labels of pictures from their texts.

    Args:
        subject: the table or folder that has them; a file of classes beside a table, or in a folder, orders names.
        parts: pictures by the names of splits.
        columns: the names of the columns of texts.
        kind: of the labels; None finds it: several where a text has a ``|``, or where more than one column holds 0 and
            1 alone; numbers where all texts are numbers, some of them with a fraction, or in more than one column; else
            classes.
        listed: the names of classes, in the order of their numbers; without them those of the file of classes.

    Raises:
        DataError: a text is none of its kind, a label of another split is not trained, or a class is not listed.
        FileError: the file of classes cannot be read.
        OptionError: more than one column is to hold a class.
    """
    entries = [*chain.from_iterable(parts.values())]
    folder = subject if subject.is_dir() else subject.parent
    listed = listed or listed_classes(folder)
    found = kind or _kind_of(entries, columns, listed)
    if found != SEVERAL:
        _check_cells(entries)
    if found == CLASSES:
        if len(columns) > 1:
            rule = "a class must lie in one column"
            raise OptionError("columns", rule, columns=", ".join(columns), hint=_kinds_hint(columns))
        return _classes(subject, parts, listed)
    if found == NUMBERS:
        return _numbers(parts, columns)
    texts = [text for entry in entries for text in entry.cells if text]
    if len(columns) > 1 and texts and all(map(_share, texts)):
        _check_cells(entries)
        y = {part: _array([[*map(_value, entry.cells)] for entry in own], len(columns)) for part, own in parts.items()}
        return PictureLabels(y, tuple(columns), SEVERAL)
    return _several(subject, listed, parts)


def _check_cells(entries: Sequence[Labelled]) -> None:
    for entry in entries:
        if not all(entry.cells):
            raise DataError(entry.place, ROW_RULE, row=[str(entry.file), *entry.cells])


def check_kind(kind: str | None) -> None:
    """Raises OptionError unless it is a kind of labels, or None."""
    if kind is not None and kind not in LABEL_KINDS:
        hint = near_matches(kind, [*LABEL_KINDS]) if isinstance(kind, str) else None
        raise OptionError("labels", f"they must be {', '.join(LABEL_KINDS[:-1])} or {NUMBERS}", labels=kind, hint=hint)


def has_several(text: str) -> bool:
    """Return True if a text, or the name of a folder, has several labels."""
    return SEPARATOR in text


def _kind_of(entries: Sequence[Labelled], columns: Sequence[str], listed: Sequence[str]) -> str:
    texts = {text for entry in entries for text in entry.cells if text}
    if len(columns) > 1:
        wrong = next((entry for entry in entries if not all(map(_is_number, entry.cells))), None)
        if wrong is not None:
            number, text = next((n, text) for n, text in enumerate(wrong.cells) if not _is_number(text))
            rule = "columns of labels must hold numbers, or 0 and 1"
            raise DataError(wrong.place, rule, column=columns[number], received=repr(text), hint=_kinds_hint(columns))
        return SEVERAL if all(_value(text) in (0, 1) for text in texts) else NUMBERS
    if texts <= set(listed):
        return CLASSES
    pieces = {piece for text in texts for piece in _pieces(text)}
    if pieces and all(map(_is_number, pieces)) and any(_value(piece) % 1 for piece in pieces):
        return NUMBERS
    return SEVERAL if any(map(has_several, texts)) else CLASSES


def _kinds_hint(columns: Sequence[str]) -> str:
    return (
        f"--columns {columns[0]} (columns= in Python) names those that count, and --labels says what they hold: "
        "classes, several (labels) or numbers."
    )


def _pieces(text: str) -> list[str]:
    return [piece.strip() for piece in text.split(SEPARATOR)]


def _is_number(text: str) -> bool:
    return _NUMBER.fullmatch(text) is not None and abs(_value(text)) <= FLOAT32_LIMIT


def _value(text: str) -> float:
    return float(text.replace(",", "."))


def _share(text: str) -> bool:
    """Return True if a text says how far a label holds: 0, 1 or between."""
    return _is_number(text) and 0 <= _value(text) <= 1


def _array(rows: Sequence[Sequence[float]], columns: int) -> npt.NDArray[np.float32]:
    return np.array(rows, np.float32).reshape(len(rows), columns)


def _classes(subject: Path, parts: Mapping[str, Sequence[Labelled]], listed: Sequence[str]) -> PictureLabels:
    labels = {entry.cells[0] for entry in chain.from_iterable(parts.values())}
    names, number_of = numbered_labels(subject, labels, {entry.cells[0] for entry in parts["train"]}, listed)
    y = {part: np.array([number_of[entry.cells[0]] for entry in own], np.int64) for part, own in parts.items()}
    return PictureLabels(y, tuple(names), CLASSES)


def _numbers(parts: Mapping[str, Sequence[Labelled]], columns: Sequence[str]) -> PictureLabels:
    """Numbers of one column, which may hold several, or of more columns."""
    count = len([piece for text in parts["train"][0].cells for piece in _pieces(text)])
    rows: dict[str, list[list[float]]] = {part: [] for part in parts}
    for part, own in parts.items():
        for entry in own:
            pieces = [piece for text in entry.cells for piece in _pieces(text)]
            wrong = next((piece for piece in pieces if not _is_number(piece)), None)
            if wrong is not None:
                rule = "every label must be a number, finite in float32"
                hint = "--labels classes (labels='classes' in Python) takes them for names."
                raise DataError(entry.place, rule, label=repr(wrong), hint=hint)
            if len(pieces) != count:
                rule = "every picture must have as many numbers as the first one"
                raise DataError(entry.place, rule, numbers=len(pieces), first=count)
            rows[part].append([*map(_value, pieces)])
    names = tuple(columns) if len(columns) == count else tuple(f"{columns[0]} {number}" for number in range(count))
    return PictureLabels({part: _array(own, count) for part, own in rows.items()}, names, NUMBERS)


def _several(subject: Path, listed: Sequence[str], parts: Mapping[str, Sequence[Labelled]]) -> PictureLabels:
    """Any number of names for each picture, in all of its columns."""
    names_of = {
        part: [{piece for text in entry.cells for piece in _pieces(text) if piece} for entry in own]
        for part, own in parts.items()
    }
    trained = set().union(*names_of["train"])
    if not trained:
        raise DataError(str(subject), "a picture to train on must have a label", pictures=len(parts["train"]))
    known = listed or sorted(trained)
    for part, own in parts.items():
        for entry, names in zip(own, names_of[part], strict=True):
            if not names <= set(known):
                where = class_file(subject if subject.is_dir() else subject.parent).name
                rule = f"every label must stand in {where}" if listed else "every label must be trained"
                raise DataError(entry.place, rule, label=min(names - set(known)), labels=known)
    note_alike(str(subject), known)
    y = {
        part: _array([[float(name in names) for name in known] for names in own], len(known))
        for part, own in names_of.items()
    }
    return PictureLabels(y, tuple(known), SEVERAL)
