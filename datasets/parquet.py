"""Parquet files of pictures and labels, as the Hugging Face hub serves them, by pyarrow."""

from __future__ import annotations

import functools
import json
import re
import threading
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from blobnet.datasets.containers import Table, are_containers, containers_of
from blobnet.datasets.dataset import Dataset
from blobnet.datasets.file_source import check_unwritten, readable, written
from blobnet.datasets.hub import hub_containers, is_on_hub
from blobnet.datasets.image_folder import Reading
from blobnet.datasets.keyed import LABEL_KEYS, text_of
from blobnet.datasets.listing import Listing
from blobnet.datasets.packed import Record
from blobnet.datasets.picture_labels import Labelled
from blobnet.datasets.picture_source import SHUFFLE_BUFFER
from blobnet.errors import DataError, FileError, OptionError, extra, near_matches
from blobnet.support.regular_file import MAX_UNPACKED, most_memory

PARQUET_SUFFIXES = (".parquet",)
#: Bytes of pictures that are kept in memory.
_KEPT_BYTES = 1 << 30
#: The types of columns of pictures, as pyarrow calls them.
_PICTURE = re.compile(r"(large_)?binary|struct<(.*, )?bytes: (large_)?binary[,>].*")


def are_parquet(text: str) -> bool:
    """Return True if a text names Parquet files, here or on the hub."""
    return bool(is_on_hub(text) or are_containers(text, PARQUET_SUFFIXES))


def read_parquet(path: Path, reading: Reading) -> Dataset:
    """Read Parquet files with a column of pictures and one of labels, as the package ``datasets`` writes them.

    Pictures are binary values, or structs with a field ``bytes``. Labels are the column of classes (``ClassLabel``)
    that the schema's metadata name, else that of a name in LABEL_KEYS, else the only other column.
    ``reading.columns`` names others, of pictures too.

    Pictures stay in the files, of which row groups are read; those that were read last stay in memory. Each epoch goes
    through row groups in an order drawn from the seed.

    Args:
        path: as for :func:`containers_of`, or ``hf:OWNER/NAME`` (:func:`hub_containers`).
        reading: how pictures are read.

    Raises:
        OptionError: pyarrow is not installed, or there is no column of a wanted name.
        FileError: a file is damaged or cut short.
        DataError: several columns may be meant, files have other columns than the first, or a label is missing.
    """
    containers = hub_containers(str(path)) if is_on_hub(str(path)) else containers_of(path, PARQUET_SUFFIXES)
    groups = _Groups([*containers.splits], reading.columns)
    form = groups.form
    if reading.shuffle_buffer is None:
        reading = replace(reading, shuffle_buffer=min(SHUFFLE_BUFFER, groups.room))

    def read(splits: Mapping[str, list[Path]], listing: Listing) -> Table:
        parts = {split: [*chain.from_iterable(map(groups.rows, own))] for split, own in splits.items()}
        for split in ("validation", "test"):  # Those of contests have no labels.
            if not any(any(entry.cells) for entry in parts.get(split, ())):
                listing.leave_out(f"rows of the {split} split, which has no labels", len(parts.pop(split, ())))
        listing.leave_out(f"columns ({', '.join(form.others)})", len(form.others))
        return Table(form.labels, parts, form.classes.get(form.labels[0], ()))

    return containers.read(reading, read)


class _Form(NamedTuple):
    """What the schema of a file says of its columns.

    Attributes:
        picture: the column of pictures.
        labels: those of labels.
        others: those that are left out.
        types: of the first two.
        classes: the names of classes, by the columns that hold their numbers.
    """

    picture: str
    labels: tuple[str, ...]
    others: tuple[str, ...]
    types: Mapping[str, str]
    classes: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class _Cell(Record):  # type: ignore[misc]  # mypy sees this package under another name
    """The picture of a row."""

    container: Path
    name: str
    groups: _Groups
    group: int
    row: int

    @property
    def piece(self) -> Hashable:
        return str(self.container), self.group

    @property
    def data(self) -> bytes | None:
        return self.groups.picture(self.container, self.group, self.row)


class _Groups:
    """The row groups of files, of whose pictures those that were read last are kept.

    Attributes:
        form: of all files.
        room: rows whose pictures are kept at a time.
    """

    def __init__(self, paths: Sequence[Path], wanted: Sequence[str] | None) -> None:
        self._written = {path: written(path) for path in paths}
        self._lock, sizes, rows, forms = threading.Lock(), list[int](), 0, list[_Form]()
        for path in paths:
            with _opened(path) as file:
                form = _form(path, file.schema_arrow, wanted)
                forms.append(form)
                if (form.types, form.classes) != (forms[0].types, forms[0].classes):
                    rule = "all files must have columns of the same types and classes"
                    raise DataError(str(path), rule, columns=form.types, first=forms[0].types)
                self._pixels = form.picture + ".bytes" * form.types[form.picture].startswith("struct")
                sizes += [self._bytes(path, file.metadata.row_group(group)) for group in range(file.num_row_groups)]
                rows += file.metadata.num_rows
        self.form = forms[0]
        count = max(3, _KEPT_BYTES // max([1, *sizes]))
        self._pictures = functools.lru_cache(count)(self._read)
        # Rows that follow one another may begin and end in the middle of a group.
        self.room = max(1, rows // max(1, len(sizes))) * (count - 2)

    def _bytes(self, path: Path, group: Any) -> int:
        """The bytes of the pictures of a row group."""
        columns = map(group.column, range(group.num_columns))
        size = sum(int(each.total_uncompressed_size) for each in columns if each.path_in_schema == self._pixels)
        if size > (most := most_memory(path.stat().st_size)):
            rule = f"what is read into memory must be no more than {MAX_UNPACKED} times its file, or 1 GiB"
            raise FileError(str(path), rule, bytes=size, most=most)
        return size

    def picture(self, path: Path, group: int, row: int) -> bytes | None:
        """The bytes of a picture; None if the row has none."""
        check_unwritten(str(path), path, self._written[path], written(path))
        with self._lock:
            found: bytes | None = self._pictures(path, group)[row].as_py()
            return found

    def _read(self, path: Path, group: int) -> Any:
        with _opened(path) as file:
            return _values(file.read_row_group(group, columns=[self._pixels]), self.form.picture)

    def rows(self, path: Path) -> Iterator[Labelled]:
        """The pictures of a file, with their labels."""
        picture, labels, number = self.form.picture, self.form.labels, 0
        with _opened(path) as file:
            for group in range(file.num_row_groups):
                table = file.read_row_group(group, columns=[*labels, f"{picture}.path"])
                paths = _values(table, picture).to_pylist() if picture in table.column_names else [None] * len(table)
                columns = [_values(table, name).to_pylist() for name in labels]
                for row, (name, *values) in enumerate(zip(paths, *columns, strict=True)):
                    place, number = f"row {number}", number + 1
                    name = f"{place}, {Path(name).name}" if name else place
                    texts = tuple(map(self._text, labels, values, [f"{path}, {place}"] * len(labels)))
                    yield Labelled(_Cell(path, name, self, group, row), texts, f"{path}, {place}")

    def _text(self, column: str, value: Any, place: str) -> str:
        """The text of a label, with the names of classes in place of numbers; -1 is none."""
        classes = self.form.classes.get(column)
        if classes is None or value is None or value == -1:
            return str(text_of(value if classes is None else None))
        numbers = value if isinstance(value, list) else [value]
        if not all(isinstance(number, int) and 0 <= number < len(classes) for number in numbers):
            rule = "a label must be the number of a class"
            raise DataError(place, rule, column=column, label=value, classes=len(classes))
        return str(text_of([classes[number] for number in numbers]))


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A Parquet file; what pyarrow says of damage becomes a FileError."""
    try:
        import pyarrow
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise OptionError(str(path), "reading Parquet needs pyarrow", cause=error, hint=extra("parquet")) from error
    faults = OSError, ValueError, LookupError, MemoryError, pyarrow.ArrowException
    with readable(path, "Parquet file", faults), ParquetFile(path, page_checksum_verification=True) as file:
        yield file


def _values(table: Any, name: str) -> Any:
    """A column; of structs, of which one field is read, that field."""
    column = table.column(name)
    column.validate(full=True)
    return column.flatten()[0] if str(column.type).startswith("struct") else column


def _form(path: Path, schema: Any, wanted: Sequence[str] | None) -> _Form:
    """What a schema says of pictures and labels.

    Raises:
        OptionError: there is no column of a wanted name.
        DataError: no column, or several, may be meant.
    """
    types, asked = {name: str(schema.field(name).type) for name in dict.fromkeys(schema.names)}, wanted or ()
    for name in asked:
        if name not in types:
            raise OptionError("columns", f"{path} must have them", missing=name, hint=near_matches(name, [*types]))
    pictures = [name for name in types if _PICTURE.fullmatch(types[name])]
    left = [name for name in types if name not in pictures]
    classes = {name: own for name, feature in _features(schema).items() if (own := _classes(feature))}
    named = [name for name in left if name in classes] or [name for name in left if name.lower() in LABEL_KEYS] or left
    labels = [name for name in asked if name in left]
    found = {"pictures": [name for name in asked if name in pictures] or pictures, "labels": labels[:1] or named}
    for what, names in found.items():
        if len(names) != 1:
            rule, hint = f"one column must hold the {what}", "--columns PICTURE,LABEL (columns= in Python) names them."
            raise DataError(str(path), rule, found=", ".join(names) or "none", columns=", ".join(types), hint=hint)
    kept = found["pictures"] + (labels or named)
    others = tuple(name for name in types if name not in kept)
    own_classes = {name: classes[name] for name in kept if name in classes}
    return _Form(kept[0], tuple(kept[1:]), others, {name: types[name] for name in kept}, own_classes)


def _features(schema: Any) -> Mapping[str, Any]:
    """What the package ``datasets`` says of the columns."""
    try:
        found = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _classes(feature: Any) -> tuple[str, ...]:
    """The names of the classes of a column, also of lists of them; none for others."""
    inner = feature[0] if isinstance(feature, list) and feature else feature
    inner = inner.get("feature", inner) if isinstance(inner, dict) else {}
    names = inner.get("names") if isinstance(inner, dict) and inner.get("_type") == "ClassLabel" else None
    return tuple(names) if isinstance(names, list) and all(isinstance(name, str) for name in names) else ()
