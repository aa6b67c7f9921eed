"""Files inside larger ones: members of archives, cells of tables, values of data bases."""

from __future__ import annotations

import io
import os
from abc import abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from blobnet.errors import FileError


class Packed(os.PathLike[str]):
    """A file inside a larger one, in whose place it may stand.

    The path, to the system, is that of the larger file; the text is what errors call it. Processes that decode get it
    pickled.

    Attributes:
        container: the larger file.
        name: of the file, which ends in its suffix.
    """

    container: Path
    name: str

    def __fspath__(self) -> str:
        return str(self.container)

    def __str__(self) -> str:
        return f"{self.container}, {self.name}"

    @property
    def suffix(self) -> str:
        """The end of the name, with its dot."""
        return Path(self.name).suffix

    @property
    def piece(self) -> Hashable:
        """The part of the data that is quick to read one after another; None where any order is as quick."""
        return str(self.container)

    def exists(self) -> bool:
        """Return True if the larger file is there."""
        return self.container.exists()

    @property
    @abstractmethod
    def size(self) -> int:
        """Its bytes."""

    @abstractmethod
    def open(self) -> BinaryIO:
        """Return it as an open file; the caller closes it.

        Raises:
            OSError: the larger file cannot be read.
        """


#: A file, by itself or inside a larger one.
File: TypeAlias = Path | Packed


def opened(file: File) -> BinaryIO:
    """Return a file, opened to read bytes."""
    return file.open() if isinstance(file, Packed) else file.open("rb")


def bytes_of(file: File) -> int:
    """The number of bytes of a file."""
    return file.size if isinstance(file, Packed) else file.stat().st_size


@dataclass(frozen=True, slots=True)
class Stretch(Packed):
    """Bytes of a larger file, as they stand there."""

    container: Path
    name: str
    offset: int
    size: int

    def open(self) -> BinaryIO:
        return io.BufferedReader(_StretchReader(self))


class _StretchReader(io.RawIOBase):
    """Reads a stretch as if it were a file."""

    def __init__(self, stretch: Stretch) -> None:
        self._stretch, self._place = stretch, 0
        self._file = stretch.container.open("rb", buffering=0)

    def close(self) -> None:
        self._file.close()
        super().close()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._place = max(
            0, offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._stretch.size}[whence]
        )
        return self._place

    def tell(self) -> int:
        return self._place

    def readinto(self, target: Any) -> int:
        count = min(len(target), max(0, self._stretch.size - self._place))
        self._file.seek(self._stretch.offset + self._place)
        count = self._file.readinto(memoryview(target)[:count]) or 0
        self._place += count
        return count


class Record(Packed):
    """A value that a library gives as a whole. Another process gets its bytes, so that this one alone reads them."""

    @property
    @abstractmethod
    def data(self) -> bytes | None:
        """Its bytes; None where there are none."""

    @property
    def size(self) -> int:
        """Its bytes, counted."""
        return len(self.data or b"")

    def open(self) -> BinaryIO:
        """Return it as a file.

        Raises:
            FileError: there are no bytes.
        """
        if (data := self.data) is None:
            raise FileError(str(self), "it must hold its picture, and not be empty or a path alone")
        return io.BytesIO(data)

    def __reduce__(self) -> Any:
        return Held, (self.container, self.name, self.data)


@dataclass(frozen=True, slots=True)
class Held(Record):
    """A file whose bytes are in memory."""

    container: Path
    name: str
    data: bytes | None
