"""Samples whose files share a key, the name up to its first dot: ``0001.jpg`` and ``0001.cls``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from blobnet.datasets.array_files import suffix_of
from blobnet.datasets.containers import Containers, Table
from blobnet.datasets.dataset import Dataset
from blobnet.datasets.image_folder import Reading
from blobnet.datasets.listing import Listing
from blobnet.datasets.packed import Packed, opened
from blobnet.datasets.picture_labels import SEPARATOR, Labelled
from blobnet.datasets.pictures import reads
from blobnet.errors import DataError, FileError
from blobnet.support.picture_kinds import KINDS

#: The endings of files that hold nothing but a label, and the keys of a label in JSON, or names of a column of labels.
_LABEL_ENDINGS, LABEL_KEYS = ("cls", "label", "class"), ("label", "labels", "class", "cls")
#: Where the folder of a file is its label.
_FOLDER = "folder"
#: Bytes up to which a file may be a label.
_LONGEST_LABEL = 1 << 20


class Sample(NamedTuple):
    """A sample.

    Attributes:
        key: the name of its files up to the first dot.
        files: by the ends of their names, without the dot and in lower case: ``jpg``, ``seg.png``.
        place: what errors call it.
    """

    key: str
    files: dict[str, Packed]
    place: str


def read_keyed(containers: Containers, files: Callable[[Path, Listing], Iterable[Packed]], reading: Reading) -> Dataset:
    """The data set of samples in larger files, whose ``files`` are of one sample if they share a key.

    Raises:
        FileError: a file cannot be read.
        DataError: a sample without a picture or a label.
    """

    def read(paths: Mapping[str, Sequence[Path]], listing: Listing) -> Table:
        parts = {
            split: [sample for path in own for sample in _grouped(files(path, listing))] for split, own in paths.items()
        }
        return _labelled({split: own for split, own in parts.items() if own}, reading.columns, listing)

    return containers.read(reading, read)


def _grouped(files: Iterable[Packed]) -> list[Sample]:
    """The samples that files of one container make, in the order of their first files.

    Raises:
        DataError: a name comes twice.
    """
    found: dict[str, Sample] = {}
    for file in files:
        folder, slash, name = file.name.rpartition("/")
        stem, _, ending = name.partition(".")
        key = f"{folder}{slash}{stem}"
        sample = found.setdefault(key, Sample(key, {}, f"{file.container}, {key}"))
        if ending.lower() in sample.files:
            rule = "a name must come once, since files of one name are one sample"
            raise DataError(str(file.container), rule, name=file.name)
        sample.files[ending.lower()] = file
    return list(found.values())


def _labelled(parts: Mapping[str, Sequence[Sample]], columns: Sequence[str] | None, listing: Listing) -> Table:
    """The pictures of samples with the texts of their labels, and the names of these.

    Args:
        parts: samples by the names of splits.
        columns: the ends of names, or the keys in a ``.json``, that hold labels. None takes what the first picture has:
            ``.cls``; ``label`` in ``.json``; ``.txt``; or the name of the folder.
        listing: counts what is left out: other files beside pictures, and those with neither a picture nor a label.

    Raises:
        DataError: a sample lacks its picture or its label, or has several pictures.
        FileError: a label cannot be read.
    """
    samples = [sample for own in parts.values() for sample in own]
    if not samples:
        return Table((), {})
    first = next((sample for sample in samples if _has_picture(sample)), samples[0])
    chosen = columns or [_place_of_label(first)]
    readers = [_reader(column, first) for column in chosen]
    found: dict[str, list[Labelled]] = {}
    for split, own in parts.items():
        found[split] = []
        for sample in own:
            if _is_stray(sample, chosen):
                for ending in sample.files:
                    listing.leave_out(f".{ending}" if ending else "without a suffix")
                continue
            picture = _picture(sample, chosen)
            cells = tuple(read(sample) for read in readers)
            found[split].append(Labelled(picture, cells, sample.place))
            for ending in sample.files:
                if sample.files[ending] is not picture and not (ending in chosen or ending == "json"):
                    listing.leave_out(f".{ending}")
        if not found[split]:
            _picture(own[0], chosen)  # Raises: nothing but strays.
    return Table(["label"] if columns is None else chosen, found)


def _has_picture(sample: Sample) -> bool:
    """Return True if a sample has a file of a kind of pictures, whether or not it can be read here."""
    return any(suffix_of(PurePosixPath(f"x.{ending}")) in KINDS for ending in sample.files)


def _is_stray(sample: Sample, labels: Sequence[str]) -> bool:
    """Return True for files with neither a picture nor a label, such as a README beside the samples."""
    if _has_picture(sample):
        return False
    return {*sample.files, *(_json(sample) if "json" in sample.files else ())}.isdisjoint(labels)


def _picture(sample: Sample, labels: Sequence[str]) -> Packed:
    """The picture of a sample: the one with a plain ending, where others are ``seg.png``, say."""
    endings = [ending for ending in sample.files if ending not in labels and _is_picture(ending)]
    plain = [ending for ending in endings if f".{ending}" in KINDS]
    if len(plain or endings) != 1:
        rule = "every sample must have one picture"
        hint = "names up to the first dot are one sample: 0001.jpg and 0001.cls."
        raise DataError(sample.place, rule, found=", ".join(sample.files), hint=hint)
    return sample.files[(plain or endings)[0]]


def _is_picture(ending: str) -> bool:
    kind = KINDS.get(suffix_of(PurePosixPath(f"x.{ending}")))
    return kind is not None and reads(kind)


def _place_of_label(sample: Sample) -> str:
    """Return where a sample has its label: the end of a file's name, or _FOLDER."""
    found = next((ending for ending in _LABEL_ENDINGS if ending in sample.files), None)
    if found is not None:
        return found
    if "json" in sample.files:
        content = _json(sample)
        if key := next((key for key in LABEL_KEYS if key in content), None):
            return key
    if "txt" in sample.files:
        return "txt"
    if "/" in sample.key:
        return _FOLDER
    rule = "every sample must have a label: .cls, label in .json, .txt, or the name of its folder"
    hint = "--columns NAME (columns= in Python) names the end of a name, or a key in .json, that holds it."
    raise DataError(sample.place, rule, found=", ".join(sample.files), hint=hint)


def _reader(column: str, first: Sample) -> Callable[[Sample], str]:
    """Return what reads the text of a column for each sample."""
    if column in first.files:
        return lambda sample: _text(sample, column)
    if column == _FOLDER:
        return _folder
    if "json" in first.files:
        return lambda sample: _value(sample, column)
    rule = "every sample must have its label"
    raise DataError(first.place, rule, missing=column, found=", ".join(first.files))


def _folder(sample: Sample) -> str:
    name = PurePosixPath(sample.key).parent.name
    if not name:
        raise DataError(sample.place, "every sample must lie in the folder of its class, as the first one does")
    return name


def _text(sample: Sample, ending: str) -> str:
    file = sample.files.get(ending)
    if file is None:
        rule = "every sample must have its label"
        raise DataError(sample.place, rule, missing=f".{ending}", found=", ".join(sample.files))
    try:
        if file.size > _LONGEST_LABEL:
            raise ValueError(f"it has {file.size} bytes")
        with opened(file) as text:
            return str(text.read(), "utf-8-sig").strip()
    except (OSError, ValueError) as error:
        raise FileError(str(file), "a label must be a short text in UTF-8", reason=error) from error


def _json(sample: Sample) -> dict[str, Any]:
    text = _text(sample, "json")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FileError(str(sample.files["json"]), "it must be readable JSON", reason=error) from error
    return content if isinstance(content, dict) else {}


def _value(sample: Sample, key: str) -> str:
    content = _json(sample)
    if key not in content:
        rule = "every sample must have its label"
        raise DataError(sample.place, rule, missing=f"{key} in .json", found=", ".join(content))
    return text_of(content[key])


def text_of(value: Any) -> str:
    """The text of a label, as a table in CSV would have it: several with ``|`` between."""
    if isinstance(value, list | tuple):
        return str(SEPARATOR.join(map(text_of, value)))
    if isinstance(value, bool):
        return str(int(value))
    return "" if value is None else str(value).strip()
