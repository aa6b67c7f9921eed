"""The folder in which blobnet keeps what it can make again: programs, tunings, fetched data."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from blobnet.errors import FileError


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/blobnet, by default ~/.cache/blobnet.

    Raises:
        FileError: the user has no home folder.
    """
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    except RuntimeError as error:
        raise FileError("cache folder", "the user must have a home folder", hint="set XDG_CACHE_HOME") from error
    return base / "blobnet"


def write_atomically(path: Path, content: bytes) -> None:
    """Makes ``path`` hold ``content``, or leaves it as it is; raises OSError."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keeps other processes that ask for the same out, while files in a folder are read, changed and written.

    Where folders have no locks (some network disks, Windows), nobody is kept out.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(ImportError, OSError):
            import fcntl

            descriptor = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
