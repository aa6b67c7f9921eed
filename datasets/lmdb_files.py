"""LMDB data bases of pictures and their labels, whose keys are names of files: ``0001.jpg`` and ``0001.cls``."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from blobnet.datasets.containers import containers_of
from blobnet.datasets.dataset import Dataset
from blobnet.datasets.file_source import check_unwritten, readable, written
from blobnet.datasets.image_folder import Reading
from blobnet.datasets.keyed import read_keyed
from blobnet.datasets.listing import Listing
from blobnet.datasets.packed import Packed, Record
from blobnet.errors import DataError, OptionError, extra

LMDB_SUFFIXES = (".lmdb", ".mdb")
#: The files of a data base that is a folder.
_DATA, _LOCK = "data.mdb", "lock.mdb"


def read_databases(path: Path, reading: Reading) -> Dataset:
    """Read LMDB data bases of pictures with their labels: files, or folders of a ``data.mdb`` (:func:`containers_of`).

    Keys are names of files, which make samples as those of archives do. Values are never unpickled.

    Raises:
        OptionError: lmdb is not installed, or the name is that of no file here.
        FileError: a data base is missing, damaged or cut short.
        DataError: keys are no names of files, or a sample is without a picture or a label.
    """
    containers = containers_of(path, LMDB_SUFFIXES)
    splits = {each: split for each, split in containers.splits.items() if each.name != _LOCK}
    return read_keyed(containers._replace(splits=splits), _values, reading)


@dataclass(frozen=True, slots=True)
class _Value(Record):  # type: ignore[misc]  # mypy sees this package under another name
    """The value of a key."""

    container: Path
    name: str
    database: _Database

    @property
    def data(self) -> bytes:
        return self.database.read(self.name)


def _values(path: Path, listing: Listing) -> Iterator[Packed]:
    """The values of a data base, in the order of their keys."""
    file = path / _DATA if path.is_dir() else path
    database = _Database.of(file)
    keys = database.keys()
    if keys and not any("." in key for key in keys):
        hint = "0001.jpg and 0001.cls. Pickled samples are not read, and neither are Caffe's (Datum)."
        raise DataError(str(path), "keys must be names of files", key=keys[0], hint=hint)
    return (_Value(file, key, database) for key in keys)


class _Database:
    """The data base in a file, which LMDB lets a process open once: :meth:`of`."""

    _open: ClassVar[weakref.WeakValueDictionary[Any, _Database]] = weakref.WeakValueDictionary()
    _lock = threading.Lock()

    def __init__(self, path: Path) -> None:
        import lmdb

        self._path, self._written = path, written(path)
        self._file = lmdb.open(str(path), subdir=False, readonly=True, lock=False, readahead=False)
        weakref.finalize(self, self._file.close)
        # NOTE: the file is mapped, and a signal ends who reads beyond its end.
        needed = (self._file.info()["last_pgno"] + 1) * self._file.stat()["psize"]
        if self._written[0] < needed:
            self._file.close()
            raise ValueError(f"it is cut short: it has {self._written[0]} bytes of {needed}")

    @classmethod
    def of(cls, path: Path) -> _Database:
        """The data base in a file.

        Raises:
            FileError: it is damaged or cut short.
            OptionError: lmdb is not installed.
        """
        with cls._lock, _reading(path):
            key = path.resolve(), written(path)
            found = cls._open[key] = cls._open.get(key) or cls(path)
            return found

    def keys(self) -> list[str]:
        """All keys, in their order.

        Raises:
            FileError: one of them is no text.
        """
        with _reading(self._path), self._file.begin() as view:
            return [str(key, "utf-8") for key in view.cursor().iternext(keys=True, values=False)]

    def read(self, key: str) -> bytes:
        """The value of a key.

        Raises:
            DataError: somebody wrote to the file since it was opened.
            FileError: it is damaged.
        """
        with _reading(self._path):
            check_unwritten(str(self._path), self._path, self._written, written(self._path))
            with self._file.begin(buffers=True) as view:
                value = view.get(key.encode())
                if value is None or len(value) > self._written[0]:
                    raise ValueError(f"the value of {key} is not there as a whole")
                return bytes(value)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Makes a FileError of what LMDB says."""
    try:
        import lmdb
    except ImportError as error:
        raise OptionError(str(path), "reading LMDB needs lmdb", cause=error, hint=extra("lmdb")) from error
    with readable(path, "LMDB data base", (OSError, ValueError, lmdb.Error)):
        yield
