"""The folder in which blobnet keeps what it can make again: programs, tunings, fetched data."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from blobnet.errors import FileError, warn
from blobnet.support import system
from blobnet.support.at_exit import at_exit
from blobnet.support.regular_file import check_regular

#: Bytes that a disk must have free for what is kept to be of use.
_MIN_FREE = 1 << 24
#: Others may do nothing in a folder of the cache: what lies there is run.
_PRIVATE = 0o700
#: Keeps the threads of this process apart, which locks of files do not.
_LOCKING = threading.Lock()


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


def make_folder(folder: Path) -> None:
    """Makes a folder, and those above it that are not there, for this user alone; raises OSError.

    Where the cache, of which it may be a part, was made so that others may enter it, they may no more.
    """
    if not folder.parent.exists():
        make_folder(folder.parent)
    folder.mkdir(_PRIVATE, exist_ok=True)
    with contextlib.suppress(FileError):
        whole = cache_folder()
        if whole in (folder, *folder.parents) and is_own(whole) and whole.stat().st_mode & 0o077:
            whole.chmod(_PRIVATE)


def is_own(path: Path) -> bool:
    """Return True if a file or folder, and the cache around it, belong to this user.

    Raises:
        OSError: it is not there.
    """
    if not hasattr(os, "geteuid"):  # On Windows.
        return True
    above: list[Path] = []
    with contextlib.suppress(FileError):
        whole = cache_folder()
        above = [folder for folder in path.parents if folder == whole or whole in folder.parents]
    return all(item.stat().st_uid == os.geteuid() for item in (path, *above))


def is_usable(folder: Path) -> bool:
    """Make a folder, and return True if programs may be kept there: it has room, and is this user's own.

    Where others may write to a folder of the user's, that is ended.
    """
    try:
        make_folder(folder)
        if not is_own(folder):
            return False
        if folder.stat().st_mode & 0o022:
            folder.chmod(_PRIVATE)
        return has_room(folder)
    except OSError:
        return False


def has_room(folder: Path) -> bool:
    """Return True if a folder can take files, or be made for them: the disk is neither full nor read-only."""
    try:
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        is_writable = folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)
        return is_writable and shutil.disk_usage(folder).free >= _MIN_FREE
    except OSError:
        return False


@functools.cache
def temporary_folder(purpose: str) -> Path:
    """A folder, one for each purpose, for as long as this process lives; one that cannot be if nothing can."""
    try:
        folder = Path(tempfile.mkdtemp(prefix=f"blobnet-{purpose}-"))
    except OSError:
        return Path(os.devnull, purpose)
    at_exit(shutil.rmtree, folder, ignore_errors=True)
    return folder


def write_entry(path: Path, content: bytes) -> None:
    """Keeps what :func:`read_entry` gives, all or nothing; raises OSError."""
    write_atomically(path, seal(path, content) + content)


def read_entry(path: Path) -> bytes | None:
    """Return what was kept in a file; None if there is none, or, with a warning, if its hash does not confirm it."""
    try:
        check_regular(path)
        data, is_ours = path.read_bytes(), is_own(path)
    except OSError:
        return None
    size = hashlib.sha256().digest_size
    if is_ours and data[:size] == seal(path, data[size:]):
        return data[size:]
    # Others can write a hash, too, and may have been able to write here.
    rule = "be as it was written" if is_ours else "be this user's own"
    warn(str(path), f"an entry of the cache must {rule}, and is made anew", bytes=len(data))
    return None


def seal(path: Path, content: bytes) -> bytes:
    """The hash of what is kept and of its place: what was kept for another program, or device, is none of here."""
    return hashlib.sha256(f"{path.parent.name}/{path.name}\0".encode() + content).digest()


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
    """Keeps others that ask for the same out, while files in a folder are read, changed and written.

    Where a disk has no locks (some network disks), nobody is kept out.
    """
    with _LOCKING, contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            system.lock(stack.enter_context(system.open_lock(folder.with_name(f".{folder.name}.lock"))), waits=True)
        yield
