"""HDF5 files that are read without trusting them: nothing in them is executed, and no link is followed."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from blobnet.errors import BlobnetError, FileError
from blobnet.files import atomic
from blobnet.files.atomic import listed
from blobnet.support.formatting import format_bytes

#: The words of HDF5 where a process opens a file a second time, in another way.
_OPEN_ALREADY = ("locking flag values don't match", "already open")
#: The value of the attribute ``format`` of a model file.
MODEL_FORMAT = "blobnet"
#: The errors that h5py raises when it meets damage.
DAMAGE = (OSError, KeyError, RuntimeError, ValueError, TypeError, OverflowError, MemoryError)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[h5py.File]:
    """A file to read; also one that this process has open already, as it lies on the disk."""
    with contextlib.ExitStack() as stack:
        try:
            # Files are replaced whole, so a lock would guard nothing and fail on read-only and network disks.
            file = h5py.File(path, "r", locking=False)
        except OSError as error:
            if not any(words in str(error) for words in _OPEN_ALREADY):
                raise
            file = h5py.File(stack.enter_context(path.open("rb")), "r")
        yield stack.enter_context(file)


def check_source(path: str | os.PathLike[str]) -> int:
    """The size of a file that begins like HDF5.

    Raises:
        FileError: there is no such file, or it is something else.
    """
    start, size = atomic.opening(path)
    if not start:
        raise FileError(str(path), "a model file must be HDF5, but this file is empty")
    if atomic.HDF5_SIGNATURE.startswith(start[:8]) or h5py.is_hdf5(path):
        return size
    kind, hint = atomic.kind_of(path, start)
    raise FileError(str(path), f"a model file must be HDF5, but this is {kind}", hint=hint, begins=start[:16])


@contextlib.contextmanager
def reading(path: str | os.PathLike[str]) -> Iterator[tuple[h5py.File, int]]:
    """A file to read, and its size.

    Raises:
        FileError: there is no such file, it is something else, or what is done with it in the block meets damage.
    """
    size = check_source(path)
    with damage_of(str(path), size), opened(Path(path)) as file:
        yield file, size


@contextlib.contextmanager
def damage_of(subject: str, size: int) -> Iterator[None]:
    """Turns what h5py says of damage to a file of so many bytes into a FileError."""
    try:
        yield
    except BlobnetError:
        raise
    except DAMAGE as error:
        rule = "an HDF5 file must be whole, but this one is cut short or damaged"
        raise FileError(subject, rule, reason=error, bytes=size) from error


def attribute(item: h5py.Group, name: str) -> str | int | None:
    """A number or a text of fixed length; None where there is no such thing."""
    if name not in item.attrs:
        return None
    identifier = item.attrs.get_id(name)
    if identifier.shape != () or identifier.dtype.kind not in "Siu":
        return None
    value = item.attrs[name]
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else int(value)


#: Seconds for texts of variable length, and bytes of memory.
_PATIENCE, _MEMORY = 20, 1 << 31
#: The start of the program of a process of its own. It bounds memory, since damage may say any size.
_PRELUDE = f"""
import contextlib, json, sys
import h5py
with contextlib.suppress(ImportError, OSError, ValueError):
    import resource
    resource.setrlimit(resource.RLIMIT_AS, ({_MEMORY}, {_MEMORY}))
"""


def read_apart(path: str | os.PathLike[str], program: str, *arguments: str) -> Any:
    """Return what a program prints, as JSON, about an HDF5 file that it opens in a process of its own.

    So are texts of variable length read: a wrong byte in the heap that holds them can make HDF5 2.0 loop forever.

    Args:
        path: the file: ``sys.argv[1]`` of the program.
        program: it finds ``json``, ``sys`` and ``h5py`` imported.
        arguments: ``sys.argv[2:]``.

    Raises:
        OSError: it does not end, or ends with an error, the last line of which is given.
    """
    command = [sys.executable, "-I", "-c", _PRELUDE + program, os.fspath(path), *arguments]
    alone = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # Each of NumPy's threads would take memory of its own.
    try:
        done = subprocess.run(command, env=alone, capture_output=True, timeout=_PATIENCE, check=False)
    except subprocess.TimeoutExpired as error:
        raise OSError(f"HDF5 does not end within {_PATIENCE} seconds") from error
    if done.returncode:
        last = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise OSError(last or f"status {done.returncode}")
    return json.loads(done.stdout)


class Reader:
    """Reads datasets from a file that is not trusted.

    Every dataset must lie in the file itself, in one piece and not compressed. So no filter plugin is ever loaded, a
    dataset cannot claim more than the file holds, and where datasets overlap, the sum of all is still kept below the
    size of the file. Texts have a fixed length (:func:`read_apart`).

    Args:
        subject: how errors name the file.
        size: of the file, in bytes.
    """

    def __init__(self, subject: str, size: int) -> None:
        self.subject = subject
        self.unread = size

    def fail(self, rule: str, hint: str | None = None, **received: object) -> FileError:
        """The error of this file."""
        return FileError(self.subject, rule, hint=hint, **received)

    def child(self, group: h5py.Group, name: str, kind: type, optional: bool = False) -> Any:
        """A member of ``group``, without following any link."""
        path = f"{group.name.rstrip('/')}/{name}"
        link = group.get(name, getlink=True)
        if link is None and optional:
            return None
        if link is None:
            raise self.fail(f"the file must hold {ascii(path)[1:-1]}", found=listed(itertools.islice(group, 20)))
        if not isinstance(link, h5py.HardLink):
            rule = f"{ascii(path)[1:-1]} must be in the file itself, links are not followed"
            raise self.fail(rule, link=type(link).__name__, to=ascii(getattr(link, "path", "")))
        member = group[name]
        if not isinstance(member, kind):
            rule = f"{ascii(path)[1:-1]} must be a {kind.__name__.lower()}"
            raise self.fail(rule, kind=type(member).__name__.lower())
        return member

    def _check_storage(self, dataset: h5py.Dataset) -> None:
        properties = dataset.id.get_create_plist()
        rule = f"{ascii(dataset.name)[1:-1]} must be stored in this file, in one piece and not compressed"
        if properties.get_layout() not in (h5py.h5d.COMPACT, h5py.h5d.CONTIGUOUS):
            storage = "virtual" if dataset.is_virtual else "chunked"
            hint = "h5repack -l CONTI -f NONE writes such a file."
            raise self.fail(rule, storage=storage, compression=dataset.compression, hint=hint)
        if properties.get_external_count():
            raise self.fail(rule, storage="external")
        stored = dataset.id.get_storage_size()
        if stored != dataset.nbytes:
            raise self.fail(rule, stored=format_bytes(stored), declared=format_bytes(int(dataset.nbytes)))
        self.unread -= stored
        if self.unread < 0:
            raise self.fail("the datasets of a file must not be larger than the file", hint="do they overlap?")

    def values(self, dataset: h5py.Dataset) -> npt.NDArray[Any]:
        """The numbers of a dataset."""
        self._check_storage(dataset)
        return np.asarray(dataset[()])

    def texts(self, dataset: h5py.Dataset, dimensions: int) -> list[bytes]:
        """The texts of a dataset with so many axes, one after the other."""
        if dataset.ndim != dimensions or dataset.dtype.kind != "S":
            wanted = "a list of texts" if dimensions else "one text"
            hint = f"file[{dataset.name!r}] = numpy.array(..., dtype='S') writes it."
            received = {"shape": dataset.shape, "dtype": dataset.dtype}
            raise self.fail(f"{dataset.name} must be {wanted} of fixed length", hint=hint, **received)
        return [bytes(text) for text in self.values(dataset).flat]
