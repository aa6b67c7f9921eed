"""Bounds: what is a file, how much memory what it holds may take, how far is counted.

Of a pipe one waits for ever, and of some devices there is no end.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

#: The memory that what a file holds may take: so many times its size, and this much in any case.
MAX_UNPACKED, MIN_MOST = 256, 1 << 30
_OTHERS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def check_regular(path: str | os.PathLike[str]) -> None:
    """Raises OSError unless a path, or what it links to, is a file, which is there."""
    mode = Path(path).stat().st_mode
    if not stat.S_ISREG(mode):
        raise OSError(f"it is {_OTHERS.get(stat.S_IFMT(mode), 'something else')}, and no file")


def most_memory(size: int) -> int:
    """Bytes of memory that what is read of a file of ``size`` bytes may take, all of it together.

    Packing makes small files of large arrays, but what is worth training on is no such thing.
    """
    return max(MIN_MOST, MAX_UNPACKED * size)
