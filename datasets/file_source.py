"""An array that lies in a file, row after row, and is read when it is asked for."""

from __future__ import annotations

import ast
import contextlib
import math
import os
import re
import struct
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from blobnet.datasets.checks import check_finite, check_real
from blobnet.datasets.source import Rows, Source, kept_type
from blobnet.errors import BlobnetError, DataError, FileError
from blobnet.support.regular_file import check_regular
from blobnet.support.system import open_to_read, read_at

#: The types of .npy files that are read, as NumPy calls them: numbers and texts.
_PLAIN = re.compile(r"[<>|=]?([?bBhHiIlLqQefdgFDG]|[biufcSU][0-9]{1,9})")
#: Whole numbers as Python 2 wrote them.
_LONG = re.compile(r"\b([0-9]+)L\b")
#: Bytes of a header that are read, as NumPy does.
_LONGEST_HEADER = 10_000


def written(file: Path | int) -> tuple[int, int]:
    """Return the length of a file, by its path or descriptor, and when it was last written to."""
    status = os.stat(file)  # noqa: PTH116 - which takes numbers too
    return status.st_size, status.st_mtime_ns


def check_unwritten(subject: str, path: Path, before: tuple[int, int], now: tuple[int, int]) -> None:
    """Raises DataError where somebody wrote to a file between two looks at it by :func:`written`."""
    if before != now:
        rule, hint = "the file must stay as it was", "do not write to data while they are used."
        raise DataError(subject, rule, file=path, bytes=now[0], before=before[0], hint=hint)


class FileSource(Source):  # type: ignore[misc]  # mypy sees this package under another name
    """Samples or labels in a part of a file, in C's order.

    NOTE: they are read, not mapped. A map of a file that is cut short ends the process, and counts as memory of it.

    Args:
        path: the file.
        offset: of the first sample, in bytes.
        shape: of the array.
        dtype: of the array; that of labels stays, that of samples becomes one of KEPT_TYPES.
        subject: what errors call it.
        has_labels: whether they are labels, which nobody looks at here.

    Raises:
        FileError: the file cannot be read, or does not hold that many bytes.
        DataError: the array does not hold real numbers.
    """

    is_parallel = True

    def __init__(
        self,
        path: Path,
        offset: int,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        subject: str,
        has_labels: bool = False,
    ) -> None:
        check_real(dtype, "y" if has_labels else "x", subject)
        self.subject, self.shape, self.dtype = subject, shape, dtype if has_labels else kept_type(dtype)
        self._path, self._offset, self._stored, self._has_labels = path, offset, dtype, has_labels
        self._row_bytes = math.prod(shape[1:]) * dtype.itemsize
        needed = offset + shape[0] * self._row_bytes
        try:
            self._file = open_to_read(path)
            weakref.finalize(self, os.close, self._file)
            self._written = written(self._file)
        except OSError as error:
            raise FileError(str(path), "the file must be readable", reason=error) from error
        size = self._written[0]
        if size < needed:
            raise FileError(str(path), "the file must hold the whole array, but it is cut short", bytes=size, of=needed)

    def read(self, rows: Rows, out: npt.NDArray[Any]) -> None:
        is_same = self._stored == self.dtype or self._stored.kind == "b"
        is_direct = is_same and out.flags.c_contiguous
        values = out.view(self._stored) if is_direct else np.empty(out.shape, self._stored)
        target = values.reshape(-1).view(np.uint8).data
        # Samples that lie side by side are read at once.
        ends = [*(np.flatnonzero(np.diff(rows) != 1) + 1).tolist(), len(rows)]
        first = 0
        for end in ends:
            place = self._offset + int(rows[first]) * self._row_bytes
            self._fill(target[first * self._row_bytes : end * self._row_bytes], place)
            first = end
        check_unwritten(self.subject, self._path, self._written, written(self._file))
        if not is_direct:
            with np.errstate(over="ignore"):  # What float32 cannot hold is found below.
                np.copyto(out, values, casting="unsafe")
        if not self._has_labels:
            check_finite(out, "x", self.subject, rows)

    def _fill(self, target: memoryview, place: int) -> None:
        while target:
            try:
                count = read_at(self._file, target, place)
            except OSError as error:
                raise DataError(self.subject, "the file must stay readable", file=self._path, cause=error) from error
            if not count:
                rule = "the file must stay as long as it was"
                hint = "do not write to data while they are used."
                raise DataError(self.subject, rule, file=self._path, ends_at=place, hint=hint)
            target, place = target[count:], place + count


@contextlib.contextmanager
def readable(
    path: Path, kind: str, faults: tuple[type[Exception], ...] = (OSError, ValueError, EOFError)
) -> Iterator[None]:
    """Makes a FileError, "the file must be a readable ``kind``", of ``faults``, and of a path that is no file."""
    try:
        check_regular(path)
        yield
    except BlobnetError:
        raise
    except faults as error:
        raise FileError(str(path), f"the file must be a readable {kind}", reason=error) from error


def read_npy(path: Path) -> npt.NDArray[Any]:
    """The whole array in a .npy file.

    Raises:
        FileError: it cannot be read.
    """
    with readable(path, ".npy array"), path.open("rb") as file:
        check_header(file, path.stat().st_size)
        file.seek(0)
        return np.asarray(np.lib.format.read_array(file, allow_pickle=False))


def npy_shape(path: Path) -> tuple[int, ...]:
    """The shape of the array in a .npy file, without its values.

    Raises:
        FileError: it cannot be read.
    """
    with readable(path, ".npy array"), path.open("rb") as file:
        return npy_header(file)[0]


def npy_header(file: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """The shape of the .npy array that begins at a file's position, whether it is in Fortran's order, and its type.

    The file is then at the first value.

    Raises:
        ValueError: there is no such array.
    """
    lengths, version = {(1, 0): "<H", (2, 0): "<I"}, np.lib.format.read_magic(file)
    if version not in lengths:
        raise ValueError(f"arrays of format {version} hold no plain numbers")
    try:
        (size,) = struct.unpack(lengths[version], file.read(struct.calcsize(lengths[version])))
        text = file.read(min(size, _LONGEST_HEADER)).decode("latin-1")
        header = ast.literal_eval(_LONG.sub(r"\1", text).strip())
        shape, is_fortran, plain = (header[key] for key in ("shape", "fortran_order", "descr"))
    except (struct.error, SyntaxError, TypeError, LookupError, ValueError, MemoryError, RecursionError) as error:
        raise ValueError(f"the header cannot be read: {error!r}") from error
    if len(header) > 3 or not isinstance(shape, tuple) or not isinstance(is_fortran, bool):
        raise ValueError(f"the header must have a shape, an order and a type: {text.strip()}")
    if not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(f"the header says that the shape is {shape}")
    # NumPy does not see other types: in what some of them are called it divides by zero, which ends the process.
    if not isinstance(plain, str) or not _PLAIN.fullmatch(plain):
        raise ValueError(f"the type must be one of plain numbers or texts, and is {plain!r}")
    try:
        dtype = np.dtype(plain)
    except TypeError as error:
        raise ValueError(f"the type must be one that NumPy has: {error}") from error
    # An array of one axis, or with one at most that is larger than 1, has both orders.
    return shape, is_fortran and sum(size > 1 for size in shape) > 1, dtype


def check_header(file: Any, size: int) -> None:
    """Raises ValueError if the .npy array that begins at a file's position is longer than the ``size`` bytes of it.

    NOTE: NumPy takes as much memory as the header says, and then reads.
    """
    shape, _, dtype = npy_header(file)
    needed = file.tell() + math.prod(shape) * dtype.itemsize
    if needed > size:
        raise ValueError(f"the array needs {needed} bytes, and there are {size}")
