"""Operations that differ on Windows, macOS and Linux: locks of files, reads at a place (docs/other_systems.md)."""

from __future__ import annotations

import mmap
import os
import sys
import threading
import time
from pathlib import Path
from typing import IO, Any

#: Seconds between two tries to lock a file, and the byte that is locked on Windows, where others cannot read it then.
_RETRY, _LOCKED_BYTE = 0.05, 1 << 30
#: Bytes of a read where one must seek before.
_AT_ONCE = 1 << 24
_SEEKING = threading.Lock()


def lock(file: IO[Any], *, waits: bool) -> None:
    """Locks an open file until it is closed, or this process ends.

    NOTE: on Linux and macOS a process is never kept out by a lock of its own.

    Args:
        file: open for writing.
        waits: for another process that has locked it.

    Raises:
        BlockingIOError: another process has locked it.
        OSError: the disk has no locks.
    """
    try:
        fcntl: Any = __import__("fcntl")
    except ImportError:
        _lock_on_windows(file, waits=waits)
        return
    # NOTE: not flock, whose locks stay with the processes that were forked from a killed one.
    fcntl.lockf(file, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))


def _lock_on_windows(file: IO[Any], *, waits: bool) -> None:
    msvcrt: Any = __import__("msvcrt")
    while True:
        os.lseek(file.fileno(), _LOCKED_BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
            break
        except PermissionError as error:
            if not waits:
                raise BlockingIOError(*error.args) from error
        time.sleep(_RETRY)
    os.lseek(file.fileno(), 0, os.SEEK_SET)


def open_lock(path: Path) -> IO[str]:
    """A file to :func:`lock`, which is made if it is not there, and does not follow a link that somebody put there.

    Raises:
        OSError: it cannot be written.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    # Nor is a pipe waited for.
    flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    return os.fdopen(os.open(path, flags, 0o666), "a", encoding="ascii")


def open_to_read(path: str | os.PathLike[str]) -> int:
    """A descriptor for :func:`read_at`; the caller closes it."""
    return os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))


def read_at(descriptor: int, target: memoryview, place: int) -> int:
    """Reads bytes of a file from ``place`` on into ``target``; how many, 0 at the file's end.

    Several threads may read at once.
    """
    if hasattr(os, "preadv"):
        count: int = os.preadv(descriptor, [target], place)
        return count
    with _SEEKING:
        os.lseek(descriptor, place, os.SEEK_SET)
        data = os.read(descriptor, min(len(target), _AT_ONCE))
    target[: len(data)] = data
    return len(data)


def untouched_memory(size: int) -> mmap.mmap:
    """Memory, all zero, of which nothing is taken before it is touched (but on Windows, where all of it counts)."""
    if sys.platform == "win32":
        return mmap.mmap(-1, size)
    return mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0))
