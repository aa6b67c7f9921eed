"""Schedules that were searched for before, in the user's cache: a search takes tens of milliseconds.

A file holds a line for each: a digest of the table and the device, the seal of the line
(blobnet/support/user_cache.py), and the schedule. It counts only with the compiler that wrote it, whose sources its
name stands for; those of others are deleted.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path

from blobnet.contraction.schedule import Schedule
from blobnet.contraction.table import Table
from blobnet.errors import FileError
from blobnet.hardware.device_model import DeviceModel
from blobnet.support.regular_file import check_regular
from blobnet.support.user_cache import cache_folder, is_own, make_folder, seal


def remembered(table: Table, device: DeviceModel, search: Callable[[], Schedule]) -> Schedule:
    """The schedule that ``search`` gave for a table and a device before, else what it gives now.

    Where no file can be read or written, every process searches.
    """
    key, known = key_of(table, device), _known()
    if key not in known and (text := _read(key)) is not None:
        known[key] = text
    if key not in known:
        known[key] = str(search())
        with contextlib.suppress(OSError, FileError):
            make_folder(_path().parent)
            with contextlib.suppress(FileNotFoundError):
                check_regular(_path())
            with _path().open("a", encoding="utf-8") as file:
                file.write(_line(key, known[key]))  # At once: processes may write side by side.
    return Schedule.parse(known[key])


def key_of(table: Table, device: DeviceModel) -> str:
    """What tells a table and a device from others."""
    return hashlib.sha256(f"{table!r} {device!r}".encode()).hexdigest()[:32]


@cache
def _known() -> dict[str, str]:
    """The schedules that this process has asked for, by keys."""
    return {}


def _read(key: str) -> str | None:
    """What the file has for a key; a line that is not as it was written does not count."""
    for line in reversed(_lines().get(key, [])):
        text = line.split(" ", 2)[-1].removesuffix("\n")
        if line == _line(key, text):
            return text
    return None


@cache
def _lines() -> dict[str, list[str]]:
    """The lines of the file, by keys, as they are: thousands, of which a plan asks for a few."""
    found: dict[str, list[str]] = {}
    with contextlib.suppress(OSError, FileError):
        if not is_own(_path().parent):
            return found
        for other in _path().parent.iterdir():
            if other != _path():
                other.unlink()
        check_regular(_path())
        if not is_own(_path()):
            return found
        for line in _path().read_text(encoding="utf-8", errors="replace").splitlines(keepends=True):
            found.setdefault(line.partition(" ")[0], []).append(line)
    return found


def _line(key: str, text: str) -> str:
    return f"{key} {seal(_path(), f'{key} {text}'.encode()).hex()} {text}\n"


@cache
def _path() -> Path:
    """The file of this compiler.

    Raises:
        FileError: the user has no home folder.
    """
    sources = sorted(Path(__file__).parent.glob("*.py"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]
    return cache_folder() / "schedules" / f"{digest}.txt"
