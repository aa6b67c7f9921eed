"""Whether a path names a file: of a pipe one waits for ever, and of some devices there is no end."""

from __future__ import annotations

import os
import stat
from pathlib import Path

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
